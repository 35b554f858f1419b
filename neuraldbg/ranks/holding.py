"""Whether and how one rank can be held: the first one can be talked to, the others stop where it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neuraldbg.capture.place import Place
from neuraldbg.control.gate import Gate
from neuraldbg.control.reach import open_line, with_breakpoints
from neuraldbg.control.together import Follower, FollowerGate, Leader
from neuraldbg.ranks.orders import Orders
from neuraldbg.viewing import say


class Holding:
    def __init__(self, run_dir: Path, orders: Orders, place: Place | None) -> None:
        self.gate: Gate | None = None
        self._parts: list[Any] = []  # closed in reverse
        if not orders.breaking:
            return
        first, several = place is None or place.rank == 0, place is not None and place.world_size > 1
        if first:
            self.gate = with_breakpoints(Gate(pausing=orders.pausing, say=say), orders.breakpoints, orders.break_on)
            self.gate.run_dir = run_dir
            self._lead(run_dir, orders, together=several)
        elif place is not None and orders.may_pause:
            follower = FollowerGate(run_dir, place.rank, pausing=orders.pausing)
            for kind in orders.break_on:
                follower.break_on(kind)
            self.gate = follower
            self._parts.append(Follower(follower, run_dir))

    def _lead(self, run_dir: Path, orders: Orders, *, together: bool) -> None:
        gate = self.gate
        assert gate is not None
        if orders.step:
            gate.stop_each("layer")
        if orders.serve:
            try:
                self._parts.append(open_line(gate, run_dir, served=orders.served))
            except OSError as error:
                say(f"nobody can reach this run from outside: {error}")
        if together and orders.may_pause:
            self._parts.append(Leader(gate, run_dir))

    def script_over(self, signal: int | None) -> None:
        if self.gate is not None and signal is not None:
            self.gate.retire()

    def close(self) -> None:
        while self._parts:
            self._parts.pop().close()
