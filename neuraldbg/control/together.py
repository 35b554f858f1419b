"""All ranks stop after one and the same update: the first rank says after which, in a file of the run directory that
the others look at.

Ranks that train together are at most one update apart, so the first rank names an update that lies far enough ahead for
everybody to have read of it. A file needs no port and works wherever the run directory does; nobody's training thread
ever waits for a disk: a thread of ours looks.
"""

from __future__ import annotations

import json
import math
import os
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from neuraldbg.control.breakpoints import Watched
from neuraldbg.control.gate import Gate
from neuraldbg.errors import NeuralDbgError
from neuraldbg.records import Stop

FILE = "hold.json"
LOOK_S = 0.1
AHEAD_S = 0.5  # so far ahead lies the update that all stop after
LEAST_AHEAD = 2  # updates
FIELDS = ("layer", "condition", "phase", "enabled", "group", "once")


class Leader:
    """In the first rank. Its gate is the one that people talk to; whatever holds it holds everybody."""

    def __init__(self, gate: Gate, run_dir: Path) -> None:
        self.gate = gate
        self._file = run_dir / FILE
        self._run_dir = run_dir
        self._lock = threading.Lock()
        self._told: dict[str, Any] = {}
        self._until: int | None = None
        self._leave = False
        gate.on_event.append(self._gate_says)
        gate.together = self
        self.tell()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, name="neuraldbg-ranks", daemon=True)
        self._thread.start()

    def ahead(self) -> int:
        """The update after which everybody can stop, counted as the trainer does."""
        step, step_s = self.gate.pace()
        updates = math.ceil(AHEAD_S / step_s) if step_s and step_s > 0 else LEAST_AHEAD
        return step + max(LEAST_AHEAD, min(updates, 100_000))

    def pause(self, why: str, *, leave: bool = False) -> None:
        until = self.ahead()
        self._say(until, leave=leave)
        self.gate.stop_at(until, why, leave=leave)

    def tell(self) -> None:
        """Write down what holds now, where it is news."""
        everybody = [one.as_dict() for one in self.gate.breakpoints.all()]
        breakpoints = [{name: one[name] for name in FIELDS} for one in everybody]
        with self._lock:
            told = {"until": self._until, "leave": self._leave, "breakpoints": breakpoints}
            if told == self._told:
                return
            self._told = told
            draft = self._file.with_suffix(f".{os.getpid()}")
            with suppress(OSError):
                draft.write_text(json.dumps({**told, "pid": os.getpid(), "host": socket.gethostname()}))
                os.replace(draft, self._file)

    def _say(self, until: int | None, *, leave: bool = False) -> None:
        self._until, self._leave = until, leave
        self.tell()

    def _gate_says(self, event: Mapping[str, Any]) -> None:
        if event.get("event") == "paused":
            self._say(int(event["step"]))
        elif event.get("event") == "running":
            unit = self.gate.state().get("stops_next")
            self._say(int(event["step"]) + 1 if unit == "step" else None)
            if self.gate.aborting:
                self._say(int(event["step"]), leave=True)

    def _look(self) -> None:
        while not self._done.wait(LOOK_S):
            self.tell()
            for file in self._run_dir.glob("asked-*.json"):
                self._asked(file)

    def _asked(self, file: Path) -> None:
        """A breakpoint of another rank was hit: its reasons are those of a pause of all."""
        with suppress(OSError, ValueError):
            why = str(json.loads(file.read_text(encoding="utf-8"))["why"])
            file.unlink()
            with suppress(NeuralDbgError):  # paused already
                self.gate.pause(why)

    def close(self) -> None:
        self._done.set()
        self._thread.join(2.0)
        with suppress(OSError):
            self._file.unlink(missing_ok=True)


class FollowerGate(Gate):
    """In every other rank. Nobody talks to it: it stops where the first rank says, and tells that rank of its own
    hits."""

    def __init__(self, run_dir: Path, rank: int, **options: Any) -> None:
        super().__init__(**options)
        self.remote = True
        self.become(rank, run_dir)

    def become(self, rank: int, run_dir: Path) -> None:
        self.rank = rank
        self._asking = run_dir / f"asked-{rank:05d}.json"

    def _stop(self, stop: Stop, reasons: list[str], hit: list[Watched]) -> None:
        if self.stops_here(stop):
            self.hold(stop, reasons)
            return
        told = [why for why in reasons if not self._meant_for_everybody(why, hit)]
        if told and self.pausing:
            why = f"rank {self.rank}: {'; '.join(told)} {stop.title()}"
            draft = self._asking.with_suffix(f".{os.getpid()}")
            with suppress(OSError):
                draft.write_text(json.dumps({"why": why}))
                os.replace(draft, self._asking)
        self._told = []

    def _meant_for_everybody(self, why: str, hit: list[Watched]) -> bool:
        """A breakpoint without a condition is hit in every rank: the first one stops for it by itself."""
        return any(one.condition is None and why == f"breakpoint {one.id}" for one in hit)

    def _talk(self, stop: Stop, reasons: list[str]) -> None:
        """The first rank says that the run is held, once for all."""


class Follower:
    """The thread beside a FollowerGate that reads what the first rank says."""

    def __init__(self, gate: FollowerGate, run_dir: Path) -> None:
        self.gate = gate
        self._file = run_dir / FILE
        self._breakpoints: Any = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, name="neuraldbg-ranks", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._done.wait(LOOK_S):
            with suppress(NeuralDbgError, OSError, ValueError, KeyError, TypeError):
                self.obey(_read(self._file))

    def obey(self, told: Mapping[str, Any] | None) -> None:
        """The same however often it is read: what holds now, not what has changed. None: nobody leads any more."""
        gate = self.gate
        until = None if told is None else told.get("until")
        if told is not None and told.get("breakpoints") != self._breakpoints:
            self._breakpoints = told["breakpoints"]
            self._take(self._breakpoints)
        here = gate.state()
        if until is None:
            gate.stop_nowhere()
            if here["state"] == "paused":
                gate.resume()
            return
        leave = bool(told and told.get("leave"))
        if here["state"] != "paused":
            gate.stop_at(until, "all ranks are held", leave=leave)
        elif leave:
            gate.abort()
        elif here["step"] < until:
            gate.stop_at(until, "all ranks are held")
            gate.resume()

    def _take(self, wanted: list[dict[str, Any]]) -> None:
        mine = self.gate.breakpoints
        for one in list(mine.all()):
            mine.remove(one.id)
        for each in wanted:
            more = {name: each[name] for name in ("phase", "enabled", "group", "once")}
            mine.add(each["layer"], each["condition"], **more, pending=True)

    def close(self) -> None:
        self._done.set()
        self._thread.join(2.0)


def _read(file: Path) -> dict[str, Any] | None:
    """What the first rank says; None where it has gone, whatever became of it."""
    try:
        told: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if told.get("host") == socket.gethostname() and told.get("until") is not None:
        try:
            os.kill(int(told["pid"]), 0)
        except ProcessLookupError:
            return None
    return told
