"""A recording on disk, read back: the state nearest to a step and the tape from there on, bound to living objects."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from neuraldbg.capture.torch.passes import Autocast, KeptTensor, PassRecord
from neuraldbg.capture.torch.recording import tensorfile
from neuraldbg.capture.torch.recording.coding import Decoder, Repeats, Unwritable, generators_from
from neuraldbg.capture.torch.recording.losses import Loss, Remade, loss_from
from neuraldbg.capture.torch.recording.names import describe_model, describe_optimizer, difference
from neuraldbg.capture.torch.recording.spool import END_FILE, FOLDER, NAMES_FILE, VERSION
from neuraldbg.capture.torch.recording.structure import Buffers
from neuraldbg.capture.torch.recording.tape import (
    Entry,
    State,
    Tape,
    TapedBackward,
    TapedCall,
    TapedPass,
    TapedUpdate,
    told_stretches,
)
from neuraldbg.capture.torch.sweep import owned
from neuraldbg.errors import NotRecorded

FURTHER = 16  # steps after the one that is asked for: gradients may come to its passes so much later
Told = dict[str, Any]


@dataclass
class Objects:
    """Models and optimizers of a process, numbered as in the recording; None where there is none (any more)."""

    models: list[nn.Module | None] = field(default_factory=list)
    optimizers: list[Any] = field(default_factory=list)

    def parameter(self, key: str) -> Any:
        owner, _, name = key.partition(":")
        if owner.startswith("m"):
            root = self.models[int(owner[1:])]
            return None if root is None else root.get_parameter(name)
        optimizer = self.optimizers[int(owner)]
        return None if optimizer is None else owned(optimizer)[int(name)]


class Recorded:
    """The folder `record` of a run."""

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir / FOLDER
        try:
            self.names = json.loads((self.folder / NAMES_FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise NotRecorded(self._nothing(run_dir)) from None
        except (OSError, ValueError) as error:
            raise NotRecorded(f"the recording of {run_dir.name} cannot be read: {error}") from None
        if self.names.get("version") != VERSION:
            raise NotRecorded(f"the recording of {run_dir.name} is of another version of neuraldbg")
        end = self._end()
        self.failed: str | None = None if end is None else end.get("failed")
        self.ended = end is not None and self.failed is None

    def _end(self) -> Told | None:
        try:
            found: Told = json.loads((self.folder / END_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found

    def _nothing(self, run_dir: Path) -> str:
        end = self._end()
        if end is None:
            return f"{run_dir.name} was not recorded: `neural debug --record full train.py` keeps what a replay needs"
        why = end.get("failed") or "no model was trained in the process of the script (children are not recorded)"
        more = (
            "; --record full takes as much as --record-memory says" if end.get("failed") and end.get("windows") else ""
        )
        return f"nothing of {run_dir.name} was recorded: {why}{more}"

    @property
    def environment(self) -> Told:
        found: Told = self.names["environment"]
        return found

    @property
    def repeatable(self) -> bool:
        return bool(self.environment.get("deterministic"))

    @property
    def states(self) -> list[tuple[int, int, Path]]:
        """Where each stands on the tape, its step, its file; oldest first."""
        found = []
        for path in sorted(self.folder.glob("state-*.safetensors")):
            about = tensorfile.read_about(path)
            found.append((about["at"], about["step"], path))
        return found

    @property
    def pieces(self) -> list[tuple[int, Path]]:
        """Files of the tape with the number of their first entry."""
        return [(int(path.name.split("-")[1]), path) for path in sorted(self.folder.glob("tape-*.safetensors"))]

    @property
    def steps(self) -> tuple[int, int] | None:
        """The first and the last step that can be made again."""
        states, pieces = self.states, self.pieces
        last = None
        for _, path in reversed(pieces):
            entries = tensorfile.read_about(path)["entries"]
            counts = ("update", "pass") if self.ended else ("update",)  # of a killed run the last step lacks its end
            found = [one["step"] for one in entries if one["kind"] in counts]
            if found:
                last = max(found)
                break
        return None if not states or last is None or last < states[0][1] else (states[0][1], last)

    def state_for(self, step: int) -> tuple[int, int, Path]:
        known = self.steps
        if known is not None and self.names["windows"]:
            self._need(step)
        if known is None or not known[0] <= step <= known[1]:
            there = "no step is recorded" if known is None else f"steps {known[0]} to {known[1]} are recorded"
            there += "" if self.failed is None else f"; recording had stopped: {self.failed}"
            raise NotRecorded(f"step {step} cannot be made again: {there}")
        return next(one for one in reversed(self.states) if one[1] <= step)

    def _need(self, step: int) -> None:
        """In one of the stretches that were recorded."""
        found = self.stretches()
        if any(first <= step <= last for first, last in found):
            return
        why = f"it was left out; recorded are {told_stretches(found)} (--record full keeps every step)"
        raise NotRecorded(f"step {step} cannot be made again: {why}")

    def stretches(self) -> list[tuple[int, int]]:
        """First and last of steps that follow on each other, from a state on."""
        reached: dict[int, tuple[int, int]] = {}  # where a state stands -> first and last step
        starts = {at: step for at, step, _ in self.states}
        begun, expected = -1, -1
        for _, path in self.pieces:
            for one in (one for one in tensorfile.read_about(path)["entries"] if "n" in one):
                if one["n"] != expected or begun < 0:
                    begun = one["n"] if one["n"] in starts else -1
                expected = one["n"] + 1
                if begun >= 0:
                    reached[begun] = (starts[begun], one["step"])
        return list(reached.values())

    def needs(self, step: int) -> tuple[set[int], set[int]]:
        """Numbers of the models and optimizers that making a step again takes."""
        at, _, path = self.state_for(step)
        models, optimizers = set(), {number for number, *_ in tensorfile.read_about(path)["optimizers"]}
        for one, _ in self._told(at, step + FURTHER):
            if one["kind"] == "pass":
                models.add(one["root"])
            elif one["kind"] == "update":
                optimizers.add(one["optimizer"])
        return models, optimizers

    def check(self, objects: Objects, models: Sequence[int], optimizers: Sequence[int]) -> str | None:
        """What is not as it was recorded, in words."""
        for number in models:
            root = objects.models[number]
            said = root is not None and difference(self.names["models"][number], describe_model(root), "the model")
            if said:
                return said
        for number in optimizers:
            one = objects.optimizers[number]
            told = self.names["optimizers"][number]
            said = one is not None and difference(told, describe_optimizer(one), "the optimizer")
            if said:
                return said
        return None

    # -- reading -------------------------------------------------------------------------------------------------------

    def _told(self, at: int, last_step: int) -> Iterator[tuple[Told, Decoder]]:
        """Everything from one entry on, up to where something was left out: beyond nothing can be reached."""
        pieces, expected = self.pieces, at
        for number, (_, path) in enumerate(pieces):
            if number + 1 < len(pieces) and pieces[number + 1][0] <= at:
                continue
            tensors, about = tensorfile.read(path)
            decoder, repeats = Decoder(tensors, layouts=about["layouts"]), Repeats()
            for one in map(repeats.whole, about["entries"]):
                if one.get("n", one.get("pass", at)) < at:
                    continue
                if "n" in one and (one["step"] > last_step or one["n"] != expected):
                    return
                expected += "n" in one
                yield one, decoder

    def tape(self, step: int, objects: Objects) -> Tape:
        """From the newest usable state before a step."""
        at, _, path = self.state_for(step)
        tape = Tape()
        tape.states = [_state(path, objects)]
        reading = _Reading(objects)
        for told, decoder in self._told(at, step + FURTHER):
            entry = reading.entry(told, decoder)
            if entry is not None:
                tape.entries.append(entry)
        if not tape.entries or tape.entries[-1].step < step:
            self._need(step)
            raise NotRecorded(f"step {step} cannot be made again: what follows on its state was left out")
        return tape

    def still(self, objects: Objects) -> Iterator[tuple[Any, Tensor]]:
        """Parameters that no optimizer moves, with their values."""
        for path in sorted(self.folder.glob("model-*.safetensors")):
            tensors, about = tensorfile.read(path)
            if about["root"] < len(objects.models) and objects.models[about["root"]] is not None:
                for key, value in tensors.items():
                    yield objects.parameter(key), value


def bound_here(recording: Any, run_dir: Path, step: int) -> Any:
    """What lies on disk of a recording under way, bound to what lives in this process."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise NotRecorded("the run is held inside of autocast, whose cache a replay would disturb: go on to the update")
    recording.tape.flush()
    names = recording.tape.names
    objects = Objects(list(names.living_models()), list(names.living_optimizers()))
    recorded = Recorded(run_dir)
    bound = {"tape": recorded.tape(step, objects), "repeatable": recorded.repeatable}
    return SimpleNamespace(core=recording.core, optimizers=recording.optimizers, **bound)


class _Reading:
    """Entries in their order; what came to a pass later is added to it."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._passes: dict[int, TapedPass] = {}
        self._losses: dict[int, Loss] = {}  # by backward

    def entry(self, told: Told, decoder: Decoder) -> Entry | None:
        kind = told["kind"]
        if kind == "pass":
            return self._pass(told, decoder)
        if kind == "ended" and told["pass"] in self._passes:
            self._passes[told["pass"]].digest = told["digest"]
        elif kind == "arrived" and told["pass"] in self._passes:
            loss = self._losses.get(told["backward"])
            known = "gradient" in told
            gradient = decoder.value(told["gradient"]) if known else Remade(loss, told["digest"])  # type: ignore[arg-type]
            self._passes[told["pass"]].arrived.setdefault(told["backward"], {})[told["slot"]] = gradient
        elif kind == "refused" and told["pass"] in self._passes:
            self._passes[told["pass"]].refused = told["why"]
        elif kind == "backward":
            return self._backward(told, decoder)
        elif kind == "call":
            return self._call(told, decoder)
        elif kind == "update":
            return self._update(told, decoder)
        return None

    def _pass(self, told: Told, decoder: Decoder) -> TapedPass:
        root = self._objects.models[told["root"]]
        entry = None if root is None else root.get_submodule(told["entry"])
        refused = told["refused"]
        if "rng" not in told:
            record: Any = None
        else:
            try:
                record = _record(told, decoder)
            except Unwritable as error:
                record, refused = None, refused or f"what it was given holds {error}"
        taped = TapedPass(told["step"], _ref(root), _ref(entry), record, refused=refused, number=told["n"])
        taped.path = told["entry"]
        taped.trainable = tuple(flag == "1" for flag in told.get("trainable", ""))
        self._passes[told["n"]] = taped
        return taped

    def _backward(self, told: Told, decoder: Decoder) -> TapedBackward:
        loss = loss_from(decoder.value(told.get("loss")))
        if loss is not None:
            self._losses[told["number"]] = loss
        value = decoder.value(told.get("value"))
        known = {"value": value, "loss": loss, "autocast": _autocast(told)}
        return TapedBackward(told["step"], told["number"], number=told["n"], **known)

    def _call(self, told: Told, decoder: Decoder) -> TapedCall:
        held = [None if key is None else self._objects.parameter(key) for key in told["of"]]
        refs = tuple(_ref(each) for each in held)
        return TapedCall(told["step"], told["name"], refs, decoder.value(told["amounts"]), number=told["n"])

    def _update(self, told: Told, decoder: Decoder) -> TapedUpdate:
        optimizer = self._objects.optimizers[told["optimizer"]]
        groups = tuple(decoder.value(told["groups"]) if "groups" in told else ())
        taped = TapedUpdate(told["step"], _ref(optimizer), groups, dict(told["digests"]), refused=told["refused"])
        taped.gradients, taped.number = decoder.value(told.get("gradients")), told["n"]
        taped.scaling = decoder.value(told.get("scaling"))
        return taped


def _ref(one: Any) -> Any:
    return (lambda: None) if one is None else weakref.ref(one)


def _record(told: Told, decoder: Decoder) -> PassRecord:
    def keep(tensor: Tensor) -> KeptTensor:
        return KeptTensor(tensor, None)

    return PassRecord(
        rng=generators_from(told["rng"], decoder),
        args=decoder.value(told["args"], keep),
        kwargs=decoder.value(told["kwargs"], keep),
        training=tuple(flag == "1" for flag in told["training"]),
        buffers=Buffers(
            {name: decoder.tensor(each) for name, each in told["buffers"].items()},
            [(decoder.layouts[number], decoder.tensor(each)) for number, each in told["packed"]],
        ),
        autocast=_autocast(told),
        grad_enabled=told["grad"],
        backwards_before=0,
    )


def _autocast(told: Told) -> tuple[Autocast, ...]:
    return tuple(Autocast(kind, on, getattr(torch, dtype)) for kind, on, dtype in told["autocast"])


def _state(path: Path, objects: Objects) -> State:
    tensors, about = tensorfile.read(path)
    for name, device in about["devices"].items():
        tensors[name] = tensors[name].to(device)
    values, gradients = [], []
    for name, value in tensors.items():
        kind, _, key = name.partition("/")
        parameter = objects.parameter(key) if kind == "p" else None
        if parameter is not None:
            values.append((_ref(parameter), value))
            gradients.append((_ref(parameter), tensors.get(f"g/{key}")))
    optimizers = []
    for number, positions, plain in about["optimizers"]:
        kept: dict[int, dict[str, Any]] = {at: dict(plain.get(str(at), {})) for at in positions}
        for name, value in tensors.items():
            if name.startswith(f"s/{number}/"):
                _, _, at, field_name = name.split("/", 3)
                kept[int(at)][field_name] = value
        optimizers.append((_ref(objects.optimizers[number]), kept))
    return State(about["step"], values, gradients, optimizers, at=about["at"])
