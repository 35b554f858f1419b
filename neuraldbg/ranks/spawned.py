"""A process that the script itself spawns (`mp.spawn`). Which rank it is shows when it joins a process group: from then
on the first one can be talked to and the others stop where it does, as with any launcher."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from dataclasses import replace
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from neuraldbg.capture.attachment import Attachment, Plan
from neuraldbg.control.breakpoints import Watched
from neuraldbg.control.gate import Gate
from neuraldbg.control.reach import open_line, with_breakpoints
from neuraldbg.control.together import Follower, FollowerGate, Leader
from neuraldbg.errors import AbortedByUser, NeuralDbgError
from neuraldbg.records import Stop
from neuraldbg.viewing import say

BEFORE_THE_TRACE = 1  # of multiprocessing's exit priorities: the larger goes first


def attach_child(text: str) -> None:
    """Runs in a spawned child before the script is imported there."""
    plan = Plan.from_json(text)
    told = json.loads(plan.pausable or "{}")
    gate = SpawnedGate(Path(plan.run_dir), 0, pausing=told.get("pausing", True), say=say)
    joining = Joining(gate, Path(plan.run_dir), told)
    Attachment(replace(plan, patient=True), child=True, gate=gate, joined=joining).start()
    Finalize(None, joining.close, exitpriority=BEFORE_THE_TRACE)


class SpawnedGate(FollowerGate):
    """Follows, unless it turns out to be the first rank."""

    leads = False

    def reached(self, stop: Stop, watched: list[Watched]) -> None:
        """Who leaves, leaves with the script that has spawned it: multiprocessing would let that one go on."""
        try:
            super().reached(stop, watched)
        except AbortedByUser:
            parent = parent_process()
            if self.leads and parent is not None and parent.pid == os.getppid():
                os.kill(parent.pid, signal.SIGINT)
            raise

    def _stop(self, stop: Stop, reasons: list[str], hit: list[Watched]) -> None:
        if self.leads:
            Gate._stop(self, stop, reasons, hit)
        else:
            super()._stop(stop, reasons, hit)

    def _talk(self, stop: Stop, reasons: list[str]) -> None:
        if self.leads:
            Gate._talk(self, stop, reasons)


class Joining:
    """Called once, when the process has joined a group of several."""

    def __init__(self, gate: SpawnedGate, run_dir: Path, told: dict[str, Any]) -> None:
        self._gate, self._run_dir, self._told = gate, run_dir, told
        self._parts: list[Any] = []  # closed in reverse

    def __call__(self, rank: int) -> None:
        gate, run_dir = self._gate, self._run_dir
        for kind in self._told.get("break_on") or ():
            gate.break_on(kind)
        if rank > 0:
            gate.become(rank, run_dir)
            self._parts.append(Follower(gate, run_dir))
            return
        gate.leads, gate.run_dir = True, run_dir
        with suppress(NeuralDbgError):  # a mistake in one was told at the start
            with_breakpoints(gate, self._told.get("breakpoints") or (), ())
        if self._told.get("step"):
            gate.stop_each("layer")
        try:
            self._parts.append(open_line(gate, run_dir, served=True))
        except OSError as error:
            say(f"nobody can reach this run from outside: {error}")
        self._parts.append(Leader(gate, run_dir))

    def close(self) -> None:
        self._gate.retire()
        while self._parts:
            self._parts.pop().close()
