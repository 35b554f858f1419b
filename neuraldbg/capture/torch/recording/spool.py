"""Files of a recording: pieces of the tape and states between them, thinned and cut so that they stay within bounds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from neuraldbg.capture.guard import attempt_or_why
from neuraldbg.capture.torch.passes import KeptTensor, PassRecord, leaves
from neuraldbg.capture.torch.recording import tensorfile
from neuraldbg.capture.torch.recording.coding import Encoder, Generators, Unwritable
from neuraldbg.capture.torch.recording.environment import environment
from neuraldbg.capture.torch.recording.names import Names
from neuraldbg.capture.torch.recording.tape import MOST_STATES
from neuraldbg.trace.rundir import write_atomically

FOLDER: Final = "record"
NAMES_FILE: Final = "names.json"
END_FILE: Final = "end.json"
VERSION: Final = 1


@dataclass(eq=False)
class Item:
    """One thing to be written, as the training thread hands it over."""

    told: dict[str, Any]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)  # of a state or a model: by their own names
    values: Mapping[str, Any] = field(default_factory=dict)
    record: PassRecord | None = None
    trainable: tuple[bool, ...] = ()
    bytes: int = 0


@dataclass(eq=False)
class Piece:
    path: Path
    bytes: int
    first: int  # number of its first entry; of a state, of the first entry after it
    last: int


class Spool:
    """Used by one thread only."""

    def __init__(self, folder: Path, limit_bytes: int, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.failed: str | None = None
        self.state_cost_s = 0.0
        self._limit = limit_bytes
        self._say = say
        self._pieces: list[Piece] = []
        self._states: list[Piece] = []
        self._models: list[Piece] = []
        self._made = False
        self._environment: dict[str, Any] = {}
        self._cwd = Path.cwd()  # the script may go elsewhere

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in (*self._pieces, *self._states, *self._models))

    def take(self, items: list[Item], names: Names) -> None:
        if self.failed or not items:
            return
        _, why = attempt_or_why(lambda: self._take_all(items, names))
        if why is not None:
            self.failed = why
            self._say(f"recording has stopped: {why}; training continues")

    def _take_all(self, items: list[Item], names: Names) -> None:
        if not self._made:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._made = True
        if names.changed:
            self._write_names(names)
        self._take(items)
        self._stay_within()

    def close(self, names: Names) -> None:
        if self._made and not self.failed:
            try:
                if names.changed:
                    self._write_names(names)
                write_atomically(self.folder / END_FILE, json.dumps({"bytes": self.bytes}))
            except OSError as error:
                self.failed = str(error)

    def _write_names(self, names: Names) -> None:
        names.changed = False
        if not self._environment:
            self._environment = environment(self._cwd)
        told = {
            "version": VERSION,
            "models": names.models,
            "optimizers": names.optimizers,
            "environment": self._environment,
        }
        write_atomically(self.folder / NAMES_FILE, json.dumps(told))

    # -- writing -------------------------------------------------------------------------------------------------------

    def _take(self, items: list[Item]) -> None:
        entries: list[Item] = []
        for item in items:
            kind = item.told["kind"]
            if kind == "state":
                self._write_piece(entries)
                entries = []
                self._write_state(item)
            elif kind == "model":
                path = self.folder / f"model-{item.told['root']:03d}.safetensors"
                self._models.append(Piece(path, tensorfile.write(path, item.tensors, item.told), 0, 0))
            else:
                entries.append(item)
                if kind == "void":
                    self._forget_states(item.told["after"])
        self._write_piece(entries)

    def _write_piece(self, items: list[Item]) -> None:
        if not items:
            return
        encoder = Encoder()
        generators = Generators(encoder)
        told = [_told(item, encoder, generators) for item in items]
        numbers = [item.told["n"] for item in items if "n" in item.told]
        first = numbers[0] if numbers else self._pieces[-1].last if self._pieces else 0
        last = numbers[-1] if numbers else first
        path = self.folder / f"tape-{first:010d}-{len(self._pieces):06d}.safetensors"
        size = tensorfile.write(path, encoder.tensors, {"version": VERSION, "entries": told})
        self._pieces.append(Piece(path, size, first, last))

    def _write_state(self, item: Item) -> None:
        began = time.thread_time()
        tensors, kept = dict(item.tensors), []
        for number, entries in item.told["kept"]:
            plain: dict[str, Any] = {}
            for at, entry in entries.items():
                for name, value in entry.items():
                    if isinstance(value, Tensor):
                        tensors[f"s/{number}/{at}/{name}"] = value
                    else:
                        plain.setdefault(str(at), {})[name] = value
            kept.append([number, sorted(entries), plain])
        told = {"version": VERSION, "at": item.told["at"], "step": item.told["step"], "optimizers": kept}
        told["devices"] = {name: str(each.device) for name, each in tensors.items() if each.device.type != "cpu"}
        path = self.folder / f"state-{item.told['at']:010d}.safetensors"
        size = tensorfile.write(path, tensors, told)
        self._states.append(Piece(path, size, item.told["at"], item.told["at"]))
        self.state_cost_s = time.thread_time() - began

    # -- bounds --------------------------------------------------------------------------------------------------------

    def _forget_states(self, after: int) -> None:
        gone = [one for one in self._states if one.first > after]
        self._states = [one for one in self._states if one.first <= after]
        _remove(gone)

    def _stay_within(self) -> None:
        """Of many states every second one goes; else the oldest, and what lies before the next."""
        while self.bytes > self._limit:
            held = sum(one.bytes for one in self._states)
            if len(self._states) > MOST_STATES and held > self.bytes // 2:
                gone = self._states[1:-1:2]
                self._states = [one for one in self._states if one not in gone]
            elif len(self._states) > 1:
                gone = [self._states.pop(0)]
                old = [one for one in self._pieces if one.last < self._states[0].first]
                self._pieces = [one for one in self._pieces if one not in old]
                gone += old
            else:
                raise OSError(f"a state and what follows it take more than {self._limit >> 20} MB (--record-memory)")
            _remove(gone)


def _remove(pieces: list[Piece]) -> None:
    for one in pieces:
        one.path.unlink(missing_ok=True)


def _told(item: Item, encoder: Encoder, generators: Generators) -> dict[str, Any]:
    told = dict(item.told)
    try:
        for name, value in item.values.items():
            told[name] = encoder.value(value)
        if item.record is not None:
            told["trainable"] = _bits(item.trainable)
            told |= told_record(item.record, encoder, generators)
    except Unwritable as error:
        told["refused"] = f"what it was given holds {error}, which is not written"
    return told


def told_record(record: PassRecord, encoder: Encoder, generators: Generators) -> dict[str, Any]:
    found = {
        "rng": generators.told(record.rng),
        "training": _bits(record.training),
        "buffers": {name: encoder.tensor(buffer) for name, buffer in record.buffers.items()},
        "autocast": [[one.device_type, one.enabled, str(one.dtype).removeprefix("torch.")] for one in record.autocast],
        "grad": record.grad_enabled,
        "args": encoder.value(record.args),
        "kwargs": encoder.value(record.kwargs),
    }
    if not all(leaf.intact for leaf in leaves((record.args, record.kwargs), KeptTensor)):
        raise Unwritable("an input that was written to at once")
    return found


def _bits(flags: tuple[bool, ...]) -> str:
    return "".join("01"[flag] for flag in flags)
