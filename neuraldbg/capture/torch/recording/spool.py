"""Files of a recording: pieces of the tape and states between them, thinned and cut so that they stay within bounds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from neuraldbg.capture.guard import attempt_or_why
from neuraldbg.capture.torch.nested import leaves
from neuraldbg.capture.torch.passes import Autocast, KeptTensor, PassRecord
from neuraldbg.capture.torch.recording import tensorfile
from neuraldbg.capture.torch.recording.coding import Encoder, Generators, Repeats, Unwritable
from neuraldbg.capture.torch.recording.environment import environment, user_files
from neuraldbg.capture.torch.recording.ferry import Ferry
from neuraldbg.capture.torch.recording.hashing import Digest
from neuraldbg.capture.torch.recording.names import Names
from neuraldbg.capture.torch.recording.structure import Buffers
from neuraldbg.capture.torch.recording.tape import MOST_STATES
from neuraldbg.trace.rundir import write_atomically

FOLDER: Final = "record"
NAMES_FILE: Final = "names.json"
END_FILE: Final = "end.json"
VERSION: Final = 2
WORK_S: Final = 0.0005
REST_S: Final = 0.0001  # long enough for another thread to wake up


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
    updates: int = 0


class Breather:
    """Lets the training have Python again. A thread that computes gives it up every 5 ms only; the training asks for it
    after every operation."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def __call__(self) -> None:
        if time.perf_counter() - self._since > WORK_S:
            time.sleep(REST_S)
            self._since = time.perf_counter()


class Spool:
    """Used by one thread only."""

    def __init__(self, folder: Path, limit_bytes: int, say: Callable[[str], None], *, windows: bool = False) -> None:
        self.folder = folder
        self.windows = windows  # steps are left out on purpose: a state serves only what follows on it
        self.failed: str | None = None
        self.state_cost_s = 0.0
        self.computed_s = 0.0
        self._limit = limit_bytes
        self._say = say
        self._pieces: list[Piece] = []
        self._states: list[Piece] = []
        self._models: list[Piece] = []
        self.ferry = Ferry()
        self._breathe = Breather()
        self._made = False
        self._environment: dict[str, Any] = {}
        self._cwd = Path.cwd()  # the script may go elsewhere

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in (*self._pieces, *self._states, *self._models))

    def take(self, items: list[Item], names: Names, streams: Sequence[Any] = ()) -> None:
        """`streams`: of devices, on which what the items hold was made."""
        if self.failed or not items:
            return
        began = time.thread_time()
        _, why = attempt_or_why(lambda: self._take_all(items, names, streams))
        self.computed_s += time.thread_time() - began
        if why is not None:
            self.stop(why)

    def stop(self, why: str) -> None:
        """For good; what lies there can still be used."""
        if self.failed is None:
            self.failed = why
            self._say(f"recording has stopped: {why}; training continues")

    def _take_all(self, items: list[Item], names: Names, streams: Sequence[Any]) -> None:
        self.ferry.waits_for(streams)
        if not self._made:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._made = True
        if names.changed:
            self._write_names(names)
        before = self.bytes
        self._take(items)
        self._stay_within(self._limit - min(max(self.bytes - before, 0), self._limit // 3))

    def close(self, names: Names) -> None:
        """Says how it ended, also where nothing was recorded."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self._made and not self.failed and (self._later_files() or names.changed):
                self._write_names(names)
            updates = sum(one.updates for one in self._pieces)
            told = {"bytes": self.bytes, "failed": self.failed, "updates": updates, "windows": self.windows}
            write_atomically(self.folder / END_FILE, json.dumps(told))
        except OSError as error:
            self.failed = str(error)

    def _later_files(self) -> bool:
        """Files of the user's that were imported since the first ones were hashed are added."""
        known = self._environment.get("files")
        if known is None:
            return False
        later = {name: digest for name, digest in user_files(self._cwd).items() if name not in known}
        known.update(later)
        return bool(later)

    def _write_names(self, names: Names) -> None:
        names.changed = False
        if not self._environment:
            self._environment = environment(self._cwd)
        told = {
            "version": VERSION,
            "models": names.models,
            "optimizers": names.optimizers,
            "environment": self._environment,
            "windows": self.windows,
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
                still = {name: self.ferry.host(each) for name, each in item.tensors.items()}
                self._models.append(Piece(path, tensorfile.write(path, still, item.told), 0, 0))
            else:
                entries.append(item)
                if kind == "void":
                    self._forget_states(item.told["after"])
        self._write_piece(entries)

    def _write_piece(self, items: list[Item]) -> None:
        if not items:
            return
        encoder = Encoder(self.ferry.host)
        generators = Generators(encoder)
        repeats, told = Repeats(), []
        for item in items:
            told.append(repeats.shortened(_told(item, encoder, generators)))
            self._breathe()
        numbers = [item.told["n"] for item in items if "n" in item.told]
        first = numbers[0] if numbers else self._pieces[-1].last if self._pieces else 0
        last = numbers[-1] if numbers else first
        path = self.folder / f"tape-{first:010d}-{len(self._pieces):06d}.safetensors"
        size = tensorfile.write(
            path, encoder.tensors, {"version": VERSION, "entries": told, "layouts": encoder.told_layouts()}
        )
        updates = sum(item.told["kind"] == "update" for item in items)
        self._pieces.append(Piece(path, size, first, last, updates))

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
        for name, each in tensors.items():
            tensors[name] = self.ferry.host(each)
            self._breathe()
        path = self.folder / f"state-{item.told['at']:010d}.safetensors"
        size = tensorfile.write(path, tensors, told)
        self._states.append(Piece(path, size, item.told["at"], item.told["at"]))
        self.state_cost_s = time.thread_time() - began

    # -- bounds --------------------------------------------------------------------------------------------------------

    def _forget_states(self, after: int) -> None:
        gone = [one for one in self._states if one.first > after]
        self._states = [one for one in self._states if one.first <= after]
        _remove(gone)

    def _stay_within(self, wanted: int) -> None:
        """With room for as much again as was just written. Of many states every second one goes; else the oldest, and
        what lies before the next."""
        while self.bytes > wanted:
            held = sum(one.bytes for one in self._states)
            if len(self._states) > MOST_STATES and (held > self.bytes // 2 or self.windows):
                gone = self._states[1:-1:2]
                gone += self._only_after(gone) if self.windows else []
                self._states = [one for one in self._states if one not in gone]
                self._pieces = [one for one in self._pieces if one not in gone]
            elif len(self._states) > 1:
                gone = [self._states.pop(0)]
                old = [one for one in self._pieces if one.last < self._states[0].first]
                self._pieces = [one for one in self._pieces if one not in old]
                gone += old
            elif self.bytes <= self._limit:
                return
            else:
                raise OSError(f"a state and what follows it take more than {self._limit >> 20} MB (--record-memory)")
            _remove(gone)

    def _only_after(self, states: list[Piece]) -> list[Piece]:
        """Pieces that begin from one of these: between windows nothing leads from one state to the next."""
        starts = [one.first for one in self._states]
        wanted = {one.first for one in states}
        return [one for one in self._pieces if max((at for at in starts if at <= one.first), default=-1) in wanted]


def _remove(pieces: list[Piece]) -> None:
    for one in pieces:
        one.path.unlink(missing_ok=True)


def _told(item: Item, encoder: Encoder, generators: Generators) -> dict[str, Any]:
    told = dict(item.told)
    if "digest" in told:
        told["digest"] = _read(told["digest"], encoder)
    if "digests" in told:
        told["digests"] = [(at, _read(each, encoder)) for at, each in told["digests"]]
    try:
        for name, value in item.values.items():
            told[name] = encoder.value(value)
        if item.record is not None:
            told["trainable"] = _bits(item.trainable)
            told |= told_record(item.record, encoder, generators, packed=True)
    except Unwritable as error:
        told["refused"] = f"what it was given holds {error}, which is not written"
    return told


def _read(digest: Digest, encoder: Encoder) -> int:
    return digest if isinstance(digest, int) else digest.read(encoder.host)


def told_record(
    record: PassRecord, encoder: Encoder, generators: Generators, *, packed: bool = False
) -> dict[str, Any]:
    """`packed`: buffers as they are held, by the layouts of the file; else each by its name."""
    buffers, held = record.buffers, []
    if packed and isinstance(buffers, Buffers):
        held = [[encoder.layout(layout), encoder.tensor(tensor)] for layout, tensor in buffers.packed]
        buffers = buffers.single
    found = {
        "packed": held,
        "rng": generators.told(record.rng),
        "training": _bits(record.training),
        "buffers": {name: encoder.tensor(buffer) for name, buffer in buffers.items()},
        "autocast": told_autocast(record.autocast),
        "grad": record.grad_enabled,
        "args": encoder.value(record.args),
        "kwargs": encoder.value(record.kwargs),
    }
    if not all(leaf.intact for leaf in leaves((record.args, record.kwargs), KeptTensor)):
        raise Unwritable("an input that was written to at once")
    return found


def told_autocast(states: tuple[Autocast, ...]) -> list[Any]:
    return [[one.device_type, one.enabled, str(one.dtype).removeprefix("torch.")] for one in states]


def _bits(flags: tuple[bool, ...]) -> str:
    return "".join("01"[flag] for flag in flags)
