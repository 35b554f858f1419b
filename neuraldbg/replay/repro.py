"""One recorded training step, made again: python repro.py [PROJECT]

Needs torch and safetensors. The script in `source` (or in PROJECT, where the data is) runs up to its first pass, so
that its model is there; weights, batch and generators come from the files beside this one. Prints each loss, and ends
with 0 when every output and every loss has the same bits as in the run, else with 1.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812
from torch.nn.modules.module import register_module_forward_pre_hook

HERE = Path(__file__).resolve().parent


class Found(BaseException):
    """The models are there."""


def value_of(told: Any, tensors: dict[str, Any]) -> Any:
    """Nested lists, tuples and dicts with the tensors in them."""
    if isinstance(told, list):
        return [value_of(each, tensors) for each in told]
    if not isinstance(told, dict):
        return told
    if "tuple" in told:
        return tuple(value_of(each, tensors) for each in told["tuple"])
    if "dict" in told:
        return {key: value_of(each, tensors) for key, each in told["dict"]}
    if "dtype" in told:
        return getattr(torch, told["dtype"])
    if "tensor" not in told:
        return torch.device(told["device"])
    found = tensors[told["tensor"]].clone()
    return found.to(told["device"]) if "device" in told else found


def shapes(module: Any) -> list[Any]:
    return [[path, list(p.shape)] for path, p in module.named_parameters()]


def models_of(script: Path, args: list[str], wanted: list[Any]) -> list[Any]:
    """Run the script until every model is built and one of them is called."""
    found: list[Any] = []

    def called(module: Any, _: Any) -> None:
        if not torch.is_grad_enabled() or next(module.parameters(), None) is None:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some objects warn when they are asked what they are
            modules = [each for each in gc.get_objects() if isinstance(each, torch.nn.Module)]
        found.clear()
        for model in wanted:
            alike = [each for each in modules if type(each).__name__ == model["class"]]
            alike = [each for each in alike if shapes(each) == model["shapes"] and each not in found]
            found.extend(alike[:1])
        if len(found) == len(wanted):
            raise Found

    main = types.ModuleType("__main__")
    main.__file__ = str(script)
    sys.modules["__main__"], sys.argv, sys.path[0] = main, [str(script), *args], str(script.parent)
    handle = register_module_forward_pre_hook(called)
    with contextlib.suppress(Found):
        exec(compile(script.read_text(encoding="utf-8"), str(script), "exec"), vars(main))
    handle.remove()
    if len(found) != len(wanted):
        sys.exit("the script ended before its models were there")
    return found


def draw_as_recorded(told: Any, tensors: dict[str, Any]) -> None:
    torch.set_rng_state(value_of(told["torch"], tensors))
    version, numbers, gauss = told["python"]
    random.setstate((version, tuple(value_of(numbers, tensors).tolist()), gauss))
    if told.get("numpy") is not None and "numpy" in sys.modules:
        keys, *rest = told["numpy"]
        state = ("MT19937", value_of(keys, tensors).numpy().astype("uint32"), *rest)
        sys.modules["numpy"].random.set_state(state)
    for device, state in enumerate(told.get("cuda") or ()):
        torch.cuda.set_rng_state(value_of(state, tensors), device)


@contextlib.contextmanager
def cast_as(states: list[Any]) -> Iterator[None]:
    with contextlib.ExitStack() as around:
        for kind, enabled, dtype in states:
            if enabled:
                around.enter_context(torch.autocast(kind, dtype=getattr(torch, dtype)))
        yield


def run_pass(told: Any, root: Any, tensors: dict[str, Any]) -> Any:
    modules = list(root.modules())
    for module, flag in zip(modules, told["training"], strict=True):
        module.training = flag == "1"
    for name, buffer in told["buffers"].items():
        owner, _, leaf = name.rpartition(".")
        root.get_submodule(owner)._buffers[leaf] = value_of(buffer, tensors)
    draw_as_recorded(told["rng"], tensors)
    with cast_as(told["autocast"]):
        entry = root.get_submodule(told["entry"])
        return entry(*value_of(told["args"], tensors), **value_of(told["kwargs"], tensors))


def loss_of(told: Any, output: Any, tensors: dict[str, Any]) -> Any:
    loss = value_of(told, tensors)
    seen, target = output.to(loss["dtype"]).reshape(loss["shape"]), loss["target"]
    if loss["kind"] == "cross_entropy":
        logs = F.log_softmax(seen, loss["dim"])
        weight, ignored = loss["weight"], loss["ignore_index"]
        found = F.nll_loss(logs, target, weight, ignore_index=ignored, reduction=loss["reduction"])
    elif loss["kind"] == "mse":
        found = F.mse_loss(seen, target, reduction=loss["reduction"])
    else:
        found = F.binary_cross_entropy_with_logits(seen, target, loss["weight"], reduction=loss["reduction"])
    for name, amount in reversed(loss["factors"]):
        found = found * amount if name == "mul" else found / amount
    return found


def flat(value: Any) -> list[Any]:
    """Every tensor of an output, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for part in parts for tensor in flat(part)]


class Step:
    def __init__(self, models: list[Any], tensors: dict[str, Any]) -> None:
        self.models, self.tensors = models, tensors
        self.outputs: dict[int, list[Any]] = {}
        self.same = True

    def check(self, what: str, found: Any, recorded: Any) -> None:
        equal = torch.equal(found.detach().cpu(), recorded.cpu())
        self.same = self.same and equal
        shown = f" {float(found.detach())!r}" if found.numel() == 1 else ""
        print(f"{what}{shown}: {'identical' if equal else 'NOT identical'}")

    def run(self, entries: list[Any]) -> bool:
        for one in entries:
            if one["kind"] == "pass":
                outputs = flat(run_pass(one, self.models[one["model"]], self.tensors))
                self.outputs[one["n"]] = outputs
                for number, recorded in enumerate(one["outputs"]):
                    self.check(f"output {number} of pass {one['n']}", outputs[number], value_of(recorded, self.tensors))
            else:
                self.backward(one)
        return self.same

    def backward(self, one: Any) -> None:
        recorded = None if one["value"] is None else value_of(one["value"], self.tensors)
        if one["loss"] is not None and one["of"] in self.outputs:
            loss = loss_of(one["loss"], self.outputs[one["of"]][0], self.tensors)
            self.check("loss", loss, recorded)
            with cast_as(one["autocast"]):
                loss.backward()
            return
        scalars = [t for outputs in self.outputs.values() for t in outputs if t.numel() == 1 and t.requires_grad]
        if recorded is not None and any(torch.equal(each.detach(), recorded) for each in scalars):
            self.check("loss (of the model itself)", recorded, recorded)
        given = [each for each in one["arrived"] if each["pass"] in self.outputs]
        if given:
            slots = [[t for t in self.outputs[each["pass"]] if t.requires_grad][each["slot"]] for each in given]
            with cast_as(one["autocast"]):
                torch.autograd.backward(slots, [value_of(each["gradient"], self.tensors) for each in given])


def main() -> None:
    from safetensors.torch import load_file

    told = json.loads((HERE / "step.json").read_text(encoding="utf-8"))
    tensors = load_file(HERE / "tensors.safetensors")
    for name, stride in told["strides"].items():
        tensors[name] = torch.as_strided(tensors[name].contiguous().reshape(-1), tensors[name].shape, stride)
    torch.set_num_threads(told["environment"]["threads"])
    if told["environment"].get("deterministic"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when CUDA starts
        torch.use_deterministic_algorithms(True)
    if torch.__version__ != told["environment"]["torch"]:
        print(f"recorded with torch {told['environment']['torch']}, this is {torch.__version__}")
    project = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else HERE / "source"
    os.chdir(project)
    models = models_of(project / told["script"], told["args"], told["models"])
    weights = load_file(HERE / "weights.safetensors")
    with torch.no_grad():
        for number, model in enumerate(models):
            for path, parameter in model.named_parameters():
                parameter.data.copy_(weights[f"{number}/{path}"])
                parameter.grad = None
    sys.exit(0 if Step(models, tensors).run(told["entries"]) else 1)


if __name__ == "__main__":
    main()
