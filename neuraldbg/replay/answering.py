"""In the process that has re-created the models: the step made again, and what of it was asked for, written down."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from neuraldbg.capture.torch.inprocess import describe
from neuraldbg.capture.torch.recording import tensorfile
from neuraldbg.capture.torch.recording.environment import environment, unlike
from neuraldbg.errors import NotRecorded
from neuraldbg.replay.bundle import Bundle
from neuraldbg.replay.rebuild import Rebuilder, Rebuilt, Seen
from neuraldbg.replay.recorded import Objects, Recorded
from neuraldbg.replay.recreate import ANSWER, TENSORS, Errand


def answer(errand: Errand, recorded: Recorded, objects: Objects, core: Any) -> None:
    _refuse_what_differs(recorded, objects, errand)
    with torch.no_grad():
        for parameter, value in recorded.still(objects):
            if parameter is not None:
                parameter.data.copy_(value)
    tape = recorded.tape(errand.step, objects)
    layers = {f"{site}/{path}": _module(recorded, objects, site, path) for site, path in errand.layers}
    optimizers = [one for one in objects.optimizers if one is not None]
    bound: Any = SimpleNamespace(core=core, tape=tape, optimizers=optimizers, repeatable=recorded.repeatable)
    rebuilder = Rebuilder(bound)
    bundle = Bundle(recorded, objects, tape, errand.step) if errand.bundle else None
    if bundle is not None:
        rebuilder.on_step, rebuilder.on_pass, rebuilder.on_update = bundle.begins, bundle.ran, bundle.ends
    made = rebuilder.step(errand.step, layers)
    if bundle is not None:
        bundle.write(Path(errand.out), script=_script(errand), package=_package(errand), args=errand.args)
    tensors: dict[str, Tensor] = {}
    told = {name: _told(seen, name, tensors) for name, seen in made.seen.items()}
    tensorfile.write(Path(errand.out, TENSORS), tensors, {})
    Path(errand.out, ANSWER).write_text(json.dumps({**_about(made), "layers": told}), encoding="utf-8")


def _script(errand: Errand) -> str:
    """Its path in the working directory."""
    path = Path(sys.modules["__main__"].__file__ or errand.target).resolve()
    scratch = Path(errand.scratch).resolve()
    if not path.is_relative_to(scratch):
        raise NotRecorded(f"{errand.target} lies outside of the working directory; there is no bundle of that")
    return str(path.relative_to(scratch))


def _package(errand: Errand) -> str | None:
    """Of `python -m`: what relative imports begin from."""
    return str(sys.modules["__main__"].__package__ or "") if errand.module else None


def _about(made: Rebuilt) -> dict[str, Any]:
    proof, identical = made.proof_of(None)
    proofs = {what: made.proof_of(what) for what in tensors_of(Seen())}
    told = {"proof": proof, "identical": identical, "checked": made.checked, "from_step": made.from_step}
    return {**told, "varies": made.varies, "proofs": proofs}


def _refuse_what_differs(recorded: Recorded, objects: Objects, errand: Errand) -> None:
    different = unlike(recorded.environment, environment(Path(errand.scratch)))
    if different:
        raise NotRecorded(f"this is not where the run was recorded: {'; '.join(different)}")
    if recorded.environment.get("device") is None and any(_on_gpu(each) for each in objects.models):
        raise NotRecorded("the run was recorded on a CPU, and the script has its models on a GPU now")
    models, optimizers = recorded.needs(errand.step)
    said = recorded.check(objects, sorted(models), sorted(optimizers))
    if said is not None:
        raise NotRecorded(f"the script builds something else than it did when it was recorded: {said}")


def _on_gpu(model: Any) -> bool:
    return model is not None and any(parameter.is_cuda for parameter in model.parameters())


def _module(recorded: Recorded, objects: Objects, site: int, path: str) -> Any:
    number = next((at for at, model in enumerate(recorded.names["models"]) if model["site"] == site), None)
    root = None if number is None or number >= len(objects.models) else objects.models[number]
    if root is None:
        raise NotRecorded(f"the model of {path!r} makes no pass with gradients around that step")
    return root.get_submodule(path)


def tensors_of(seen: Seen) -> dict[str, Tensor | None]:
    """By what they are called: of a layer that ran several times, the last."""
    return {
        "output": seen.outputs[-1] if seen.outputs else None,
        "input": seen.inputs[-1] if seen.inputs else None,
        "gradient": seen.gradients[max(seen.gradients)] if seen.gradients else None,
        "weight": seen.weight,
        "weight_gradient": seen.weight_gradient,
    }


def _told(seen: Seen, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    told: dict[str, Any] = {"runs": len(seen.outputs)}
    for what, tensor in tensors_of(seen).items():
        if tensor is not None:
            told[what] = describe(tensor)
            if tensor.layout == torch.strided and tensor.dtype in tensorfile.writable:
                tensors[f"{name}#{what}"] = tensor
    return told
