"""A recorded step as files that stand on their own: weights, batch, generators, environment and a script."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuraldbg.capture.torch.nested import tensors as tensors_in
from neuraldbg.capture.torch.recording import tensorfile
from neuraldbg.capture.torch.recording.coding import Encoder, Generators, Unwritable
from neuraldbg.capture.torch.recording.losses import Remade, told_loss
from neuraldbg.capture.torch.recording.spool import told_autocast, told_record
from neuraldbg.capture.torch.recording.tape import Entry, Tape, TapedBackward, TapedCall, TapedPass, TapedUpdate
from neuraldbg.errors import NotRecorded
from neuraldbg.replay import repro
from neuraldbg.replay.recorded import Objects, Recorded

BUNDLE = "bundle"
WEIGHTS, BATCH, TOLD, SCRIPT = "weights.safetensors", "tensors.safetensors", "step.json", "repro.py"


class Bundle:
    """Collects a step while it is made again."""

    def __init__(self, recorded: Recorded, objects: Objects, tape: Tape, step: int) -> None:
        self._recorded, self._step = recorded, step
        mine = [entry for entry in tape.entries if entry.step == step]
        self._entries = [entry for entry in mine if not isinstance(entry, TapedUpdate)]
        used = {id(entry.root()) for entry in mine if isinstance(entry, TapedPass)}
        called = {id(ref()) for entry in mine if isinstance(entry, TapedCall) for ref in entry.parameters}
        self._models: list[nn.Module] = [
            model
            for model in objects.models
            if model is not None and (id(model) in used or any(id(p) in called for p in model.parameters()))
        ]
        self._weights: dict[str, Tensor] = {}
        self._begun: dict[str, Tensor] = {}  # gradients that the step begins with
        self._gradients: dict[str, Tensor] = {}  # that it ends with
        self._outputs: dict[int, list[Tensor]] = {}
        self._uncompared = _why_not_compared(tape, mine, step)

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for number, model in enumerate(self._models):
            for path, parameter in model.named_parameters():
                yield f"{number}/{path}", parameter

    def begins(self) -> None:
        """The weights are those that the step begins with. Files of them are read by their shapes alone."""
        for name, parameter in self._parameters():
            self._weights[name] = parameter.detach().clone().contiguous()
            if parameter.grad is not None:
                self._begun[name] = parameter.grad.detach().clone()

    def ran(self, taped: TapedPass, outputs: Any) -> None:
        self._outputs[taped.number] = [each.detach().clone() for each in tensors_in(outputs)]

    def ends(self) -> None:
        """The gradients are those that the optimizer sees."""
        for name, parameter in self._parameters():
            if parameter.grad is not None:
                self._gradients[name] = parameter.grad.detach().clone()

    def write(self, out: Path, *, script: str, package: str | None, args: tuple[str, ...]) -> None:
        folder = out / BUNDLE
        folder.mkdir()
        encoder = Encoder()
        generators = Generators(encoder)
        try:
            told = {
                "step": self._step,
                "script": script,
                "package": package,
                "args": list(args),
                "environment": self._recorded.environment,
                "models": [{"class": type(each).__name__, "shapes": repro.shapes(each)} for each in self._models],
                "entries": [self._told(entry, encoder, generators) for entry in self._entries],
                "begun": {name: encoder.tensor(each) for name, each in self._begun.items()},
                "gradients": {name: encoder.tensor(each) for name, each in self._gradients.items()},
                "uncompared": self._uncompared,
            }
        except Unwritable as error:
            raise NotRecorded(f"step {self._step} cannot be bundled: it was given {error}") from None
        strides = {name: layout for name, each in encoder.tensors.items() if (layout := tensorfile.layout_of(each))}
        (folder / TOLD).write_text(json.dumps({**told, "strides": strides}, indent=1), encoding="utf-8")
        tensorfile.write(folder / WEIGHTS, self._weights, {"step": self._step})
        tensorfile.write(folder / BATCH, encoder.tensors, {"step": self._step})

    def _told(self, entry: Entry, encoder: Encoder, generators: Generators) -> dict[str, Any]:
        if isinstance(entry, TapedPass):
            return self._told_pass(entry, encoder, generators)
        if isinstance(entry, TapedCall):
            names = {id(parameter): name for name, parameter in self._parameters()}
            held = [names[id(one)] for one in (ref() for ref in entry.parameters) if id(one) in names]
            return {"kind": "call", "name": entry.name, "of": held, "amounts": encoder.value(entry.amounts)}
        assert isinstance(entry, TapedBackward)
        of = self._pass_of_loss(entry)
        loss = None if entry.loss is None or of is None else encoder.value(told_loss(entry.loss))
        arrived = list(self._arrived(entry, None if loss is None else of, encoder))
        value = None if entry.value is None else encoder.tensor(entry.value)
        told = {"kind": "backward", "value": value, "loss": loss, "of": None if of is None else of.number}
        return {**told, "arrived": arrived, "autocast": told_autocast(entry.autocast)}

    def _told_pass(self, entry: TapedPass, encoder: Encoder, generators: Generators) -> dict[str, Any]:
        root = entry.root()
        number = next(at for at, model in enumerate(self._models) if model is root)
        told = {"kind": "pass", "n": entry.number, "model": number, "entry": entry.path}
        told["outputs"] = [encoder.tensor(each) for each in self._outputs.get(entry.number, [])]
        told["trainable"] = "".join("01"[flag] for flag in entry.trainable)
        return told | told_record(entry.record, encoder, generators)

    def _passes(self, backward: int) -> list[TapedPass]:
        """That a backward came to."""
        return [each for each in self._entries if isinstance(each, TapedPass) and backward in each.arrived]

    def _pass_of_loss(self, entry: TapedBackward) -> TapedPass | None:
        """The pass whose output gives the loss that was recorded."""
        if entry.loss is None or entry.value is None:
            return None
        for taped in reversed(self._passes(entry.backward)):
            if any(isinstance(each, Remade) for each in taped.arrived[entry.backward].values()):
                return taped
            floating = [each for each in self._outputs.get(taped.number, []) if each.is_floating_point()]
            if len(floating) == 1 and floating[0].numel() == math.prod(entry.loss.shape):
                with torch.no_grad():
                    found = entry.loss.value(floating[0])
                if repro.same(found, entry.value):
                    return taped
        return None

    def _arrived(self, entry: TapedBackward, besides: TapedPass | None, encoder: Encoder) -> Iterator[dict[str, Any]]:
        for taped in self._passes(entry.backward):
            for slot, gradient in taped.arrived[entry.backward].items():
                if taped is not besides and not isinstance(gradient, Remade):
                    yield {"pass": taped.number, "slot": slot, "gradient": encoder.tensor(gradient)}


def _why_not_compared(tape: Tape, entries: list[Entry], step: int) -> str | None:
    """Why the gradients of a step are not those that its passes give."""
    updates = [entry for entry in entries if isinstance(entry, TapedUpdate)]
    if not updates:
        return "the step has no update"
    if any(entry.gradients is not None for entry in updates):
        return "a loss term outside of the passes, or something unknown, had a part in them"
    backwards = {entry.backward for entry in entries if isinstance(entry, TapedBackward)}
    before = (each for each in tape.entries if isinstance(each, TapedPass) and each.step != step)
    if any(backwards & each.arrived.keys() for each in before):
        return "part of them went through a pass of a step before"
    return None


def finish(answer: Path, target: Path, origin: Path, files: list[str]) -> None:
    """Put the bundle where it is wanted, with the user's files and the script."""
    shutil.copytree(answer / BUNDLE, target)
    shutil.copy(Path(repro.__file__), target / SCRIPT)
    for name in (name for name in files if not Path(name).is_absolute()):
        copy = target / "source" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(origin / name, copy)
