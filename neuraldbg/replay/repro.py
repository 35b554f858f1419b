"""One recorded training step, made again: python repro.py [PROJECT]

Needs torch and safetensors. The script in `source` (or in PROJECT, where the data is) runs up to its first pass, so
that its models are there; nothing is trained. Weights, batch and generators come from the files beside this one. Prints
each loss; ends with 0 when every output, every loss and every gradient has the same bits as in the run, else with 1.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import sys
import traceback
import types
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

HERE = Path(__file__).resolve().parent
MOST_UPDATES = 1000  # of the script, before every model is there
ELSEWHERE = "the script ended before its models were there; where its data lies: python repro.py PROJECT"


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
    if "named" in told:
        return class_of(told["named"])(*value_of(told["of"], tensors))
    if "coo" in told:
        indices, values = value_of(told["coo"], tensors)
        return torch.sparse_coo_tensor(
            indices, values, told["size"], is_coalesced=told["coalesced"], check_invariants=False
        )
    if "csr" in told:
        rows, columns, values = value_of(told["csr"], tensors)
        return torch.sparse_csr_tensor(rows, columns, values, told["size"], check_invariants=False)
    if "dtype" in told:
        return getattr(torch, told["dtype"])
    if "tensor" not in told:
        return torch.device(told["device"])
    found = tensors[told["tensor"]].clone()
    return found.to(told["device"]) if "device" in told else found


def class_of(name: str) -> Any:
    """Of a named tuple; the script has imported its module."""
    module, _, path = name.partition(":")
    found: Any = sys.modules[module]
    for part in path.split("."):
        found = getattr(found, part)
    return found


def shapes(module: Any) -> list[Any]:
    return [[path, list(p.shape)] for path, p in module.named_parameters()]


def models_in_memory(wanted: list[Any]) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some objects warn when they are asked what they are
        modules = [each for each in gc.get_objects() if isinstance(each, torch.nn.Module)]
    found: list[Any] = []
    for model in wanted:
        alike = [each for each in modules if type(each).__name__ == model["class"] and each not in found]
        found.extend([each for each in alike if shapes(each) == model["shapes"]][:1])
    return found


def models_of(script: Path, told: Any) -> list[Any]:
    """Run the script until every model is built and one of them is called. Its updates move nothing."""
    found: list[Any] = []
    called_once: weakref.WeakSet[Any] = weakref.WeakSet()
    updates = [0]

    def called(module: Any, _: Any) -> None:
        if module in called_once or not torch.is_grad_enabled() or next(module.parameters(), None) is None:
            return
        called_once.add(module)
        found[:] = models_in_memory(told["models"])
        if len(found) == len(told["models"]):
            raise Found

    def stepped(optimizer: Any, *_: Any) -> None:
        updates[0] += 1
        if updates[0] > MOST_UPDATES:
            sys.exit("the script builds other models than the ones of the run")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    handles = [register_module_forward_pre_hook(called), register_optimizer_step_pre_hook(stepped)]
    run_script(script, told)
    for handle in handles:
        handle.remove()
    if len(found) != len(told["models"]):
        sys.exit(ELSEWHERE)
    return found


def run_script(script: Path, told: Any) -> None:
    """As the main program, until its models are found."""
    main = types.ModuleType("__main__")
    main.__file__, main.__package__ = str(script), told["package"]
    first = Path.cwd() if told["package"] is not None else script.parent
    sys.modules["__main__"], sys.argv, sys.path[0] = main, [str(script), *told["args"]], str(first)
    sys.excepthook = fails
    try:
        exec(compile(script.read_text(encoding="utf-8"), str(script), "exec"), vars(main))
    except Found:
        pass
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    sys.excepthook = sys.__excepthook__


def fails(kind: Any, error: Any, trace: Any) -> None:
    traceback.print_exception(kind, error, trace)
    print(ELSEWHERE, file=sys.stderr)


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
    parameters = (p for module in modules for p in module._parameters.values() if p is not None)
    for parameter, flag in zip(parameters, told["trainable"], strict=False):
        parameter.requires_grad_(flag == "1")
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


def change_gradients(told: Any, held: list[Any], tensors: dict[str, Any]) -> None:
    """A zero_grad, a clipping or an unscaling."""
    amounts, gradients = value_of(told["amounts"], tensors), [p.grad for p in held if p.grad is not None]
    if told["name"] == "zero":
        for p in held:
            p.grad = None if amounts[0] or p.grad is None else torch.zeros_like(p.grad)
    elif told["name"] != "unscale":
        getattr(torch.nn.utils, told["name"])(held, *amounts[0], **amounts[1])
    elif gradients:
        scale, found = amounts[0].to(gradients[0].device), torch.zeros(1, device=gradients[0].device)
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, scale)


def flat(value: Any) -> list[Any]:
    """Every tensor of an output, the outer ones first."""
    found, ahead = [], [value]
    while ahead:
        here, ahead = ahead, []
        for one in here:
            if isinstance(one, torch.Tensor):
                found.append(one)
            elif isinstance(one, dict):
                ahead.extend(one.values())
            elif isinstance(one, list | tuple):
                ahead.extend(one)
            elif hasattr(one, "__dataclass_fields__"):
                ahead.extend(getattr(one, name, None) for name in one.__dataclass_fields__)
    return found


def same(found: Any, recorded: Any) -> bool:
    """Bit for bit, also where it is not a number."""
    if found is None or recorded is None:
        return found is recorded
    one, other = (each.detach().cpu().to_dense().contiguous().reshape(-1) for each in (found, recorded))
    equal = one.dtype == other.dtype and found.shape == recorded.shape
    return equal and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


class Step:
    def __init__(self, models: list[Any], told: Any, tensors: dict[str, Any]) -> None:
        self.models, self.told, self.tensors = models, told, tensors
        self.parameters = {
            f"{number}/{path}": parameter
            for number, model in enumerate(models)
            for path, parameter in model.named_parameters()
        }
        self.outputs: dict[int, list[Any]] = {}
        self.same = True

    def begin(self, weights: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.data.copy_(weights[name])
                left = self.told["begun"].get(name)
                parameter.grad = None if left is None else value_of(left, self.tensors)

    def check(self, what: str, found: Any, recorded: Any) -> None:
        equal = same(found, recorded)
        self.same = self.same and equal
        shown = f" {float(found.detach())!r}" if found.numel() == 1 else ""
        print(f"{what}{shown}: {'identical' if equal else 'NOT identical'}")

    def run(self) -> bool:
        for one in self.told["entries"]:
            if one["kind"] == "pass":
                outputs = flat(run_pass(one, self.models[one["model"]], self.tensors))
                self.outputs[one["n"]] = outputs
                for number, recorded in enumerate(one["outputs"]):
                    self.check(f"output {number} of pass {one['n']}", outputs[number], value_of(recorded, self.tensors))
            elif one["kind"] == "call":
                change_gradients(one, [self.parameters[name] for name in one["of"]], self.tensors)
            else:
                self.backward(one)
        self.check_gradients()
        return self.same

    def backward(self, one: Any) -> None:
        given = [(each["pass"], each["slot"], value_of(each["gradient"], self.tensors)) for each in one["arrived"]]
        recorded = None if one["value"] is None else value_of(one["value"], self.tensors)
        if one["loss"] is not None:
            output = self.differentiable(one["of"])[0].detach().requires_grad_()
            loss = loss_of(one["loss"], output, self.tensors)
            self.check("loss", loss, recorded)
            given.append((one["of"], 0, torch.autograd.grad(loss, output)[0]))
        else:
            scalars = [t for outputs in self.outputs.values() for t in outputs if t.numel() == 1 and t.requires_grad]
            if recorded is not None and any(same(each, recorded) for each in scalars):
                self.check("loss (of the model itself)", recorded, recorded)
        outputs = [self.differentiable(number)[slot] for number, slot, _ in given]
        gradients = [gradient for *_, gradient in given]
        if not given:
            return
        # what came to an output in all is known, also where another output was made of it
        handles = [o.register_hook(lambda _, g=g: g.clone()) for o, g in zip(outputs, gradients, strict=True)]
        with cast_as(one["autocast"]):
            torch.autograd.backward(outputs, gradients, retain_graph=True)
        for handle in handles:
            handle.remove()

    def differentiable(self, number: int) -> list[Any]:
        return [each for each in self.outputs[number] if each.requires_grad]

    def check_gradients(self) -> None:
        """As the optimizer saw them."""
        if self.told["uncompared"] is not None:
            print(f"gradients: not compared; {self.told['uncompared']}")
            return
        recorded = {name: value_of(each, self.tensors) for name, each in self.told["gradients"].items()}
        wrong = [name for name, p in self.parameters.items() if not same(p.grad, recorded.get(name))]
        self.same = self.same and not wrong
        names = ", ".join(wrong[:3]) + (" ..." if len(wrong) > 3 else "")
        print(f"gradients of {len(recorded)} parameters: {f'NOT identical ({names})' if wrong else 'identical'}")


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
    if not (project / told["script"]).is_file():
        sys.exit(f"{project} has no {told['script']}")
    os.chdir(project)
    step = Step(models_of(project / told["script"], told), told, tensors)
    step.begin(load_file(HERE / "weights.safetensors"))
    sys.exit(0 if step.run() else 1)


if __name__ == "__main__":
    main()
