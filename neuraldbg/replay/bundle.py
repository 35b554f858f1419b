"""A recorded step as files that stand on their own: weights, batch, generators, environment and a script."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from neuraldbg.capture.torch.passes import tensors as tensors_in
from neuraldbg.capture.torch.recording import tensorfile
from neuraldbg.capture.torch.recording.coding import Encoder, Generators, Unwritable
from neuraldbg.capture.torch.recording.losses import Remade, told_loss
from neuraldbg.capture.torch.recording.spool import told_autocast, told_record
from neuraldbg.capture.torch.recording.tape import Entry, Tape, TapedBackward, TapedPass
from neuraldbg.errors import NotRecorded
from neuraldbg.replay import repro
from neuraldbg.replay.recorded import Objects, Recorded

BUNDLE = "bundle"
WEIGHTS, BATCH, TOLD, SCRIPT = "weights.safetensors", "tensors.safetensors", "step.json", "repro.py"


class Bundle:
    """Collects a step while it is made again."""

    def __init__(self, recorded: Recorded, objects: Objects, tape: Tape, step: int) -> None:
        self._recorded, self._objects, self._step = recorded, objects, step
        entries = [entry for entry in tape.entries if entry.step == step]
        self._entries = [entry for entry in entries if isinstance(entry, TapedPass | TapedBackward)]
        used = {id(entry.root()) for entry in self._entries if isinstance(entry, TapedPass)}
        self._models = [model for model in objects.models if id(model) in used]
        self._weights: dict[str, Tensor] = {}
        self._outputs: dict[int, list[Tensor]] = {}

    def begins(self) -> None:
        """The weights are those that the step begins with."""
        for number, model in enumerate(self._models):
            for path, parameter in model.named_parameters() if model is not None else ():
                self._weights[f"{number}/{path}"] = parameter.detach().clone()

    def ran(self, taped: TapedPass, outputs: Any) -> None:
        self._outputs[taped.number] = [each.detach().clone() for each in tensors_in(outputs)]

    def write(self, out: Path, *, script: str, args: tuple[str, ...]) -> None:
        folder = out / BUNDLE
        folder.mkdir()
        encoder = Encoder()
        generators = Generators(encoder)
        try:
            entries = [self._told(entry, encoder, generators) for entry in self._entries]
        except Unwritable as error:
            raise NotRecorded(f"step {self._step} cannot be bundled: it was given {error}") from None
        strides = {name: layout for name, each in encoder.tensors.items() if (layout := tensorfile.layout_of(each))}
        told = {
            "step": self._step,
            "script": script,
            "args": list(args),
            "environment": self._recorded.environment,
            "models": [{"class": type(each).__name__, "shapes": repro.shapes(each)} for each in self._models],
            "strides": strides,
            "entries": entries,
        }
        (folder / TOLD).write_text(json.dumps(told, indent=1), encoding="utf-8")
        tensorfile.write(folder / WEIGHTS, self._weights, {"step": self._step})
        tensorfile.write(folder / BATCH, encoder.tensors, {"step": self._step})

    def _told(self, entry: Entry, encoder: Encoder, generators: Generators) -> dict[str, Any]:
        if isinstance(entry, TapedPass):
            root = entry.root()
            number = next(at for at, model in enumerate(self._models) if model is root)
            told = {"kind": "pass", "n": entry.number, "model": number, "entry": entry.path}
            told["outputs"] = [encoder.tensor(each) for each in self._outputs.get(entry.number, [])]
            return told | told_record(entry.record, encoder, generators)
        assert isinstance(entry, TapedBackward)
        loss = None if entry.loss is None else encoder.value(told_loss(entry.loss))
        arrived = list(self._arrived(entry, encoder)) if loss is None else []
        of = next((each.number for each in self._passes() if entry.backward in each.arrived), None)
        value = None if entry.value is None else encoder.tensor(entry.value)
        told = {"kind": "backward", "value": value, "loss": loss, "of": of, "arrived": arrived}
        return {**told, "autocast": told_autocast(entry.autocast)}

    def _passes(self) -> Iterator[TapedPass]:
        return (each for each in self._entries if isinstance(each, TapedPass))

    def _arrived(self, entry: TapedBackward, encoder: Encoder) -> Iterator[dict[str, Any]]:
        for taped in self._passes():
            for slot, gradient in taped.arrived.get(entry.backward, {}).items():
                if not isinstance(gradient, Remade):
                    yield {"pass": taped.number, "slot": slot, "gradient": encoder.tensor(gradient)}


def finish(answer: Path, target: Path, origin: Path, files: list[str]) -> None:
    """Put the bundle where it is wanted, with the user's files and the script."""
    shutil.copytree(answer / BUNDLE, target)
    shutil.copy(Path(repro.__file__), target / SCRIPT)
    for name in (name for name in files if not Path(name).is_absolute()):
        copy = target / "source" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(origin / name, copy)
