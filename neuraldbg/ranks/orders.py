"""What the processes of one run are told by whoever began it: a file in the run directory, written once."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from neuraldbg.capture.attachment import Plan
from neuraldbg.trace.rundir import write_atomically

ORDERS_FILE = "ranks.json"


@dataclass(frozen=True, slots=True)
class Orders:
    """How every process is watched, and whether it can be held."""

    plan: Plan
    key: str = ""  # of the launch that the run belongs to
    breaking: bool = True
    pausing: bool = True
    breakpoints: tuple[str, ...] = ()
    break_on: tuple[str, ...] = ()
    step: bool = False
    serve: bool = True
    served: bool = False

    def write(self, run_dir: Path) -> None:
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__ if name != "plan"}
        write_atomically(run_dir / ORDERS_FILE, json.dumps({**fields, "plan": self.plan.to_json()}))

    @property
    def may_pause(self) -> bool:
        """Whether anything could ever hold a process: a breakpoint with nobody to answer does not."""
        return self.breaking and self.serve and self.served


def read_orders(run_dir: Path) -> Orders:
    """OSError or ValueError where there are none (yet)."""
    told = json.loads((run_dir / ORDERS_FILE).read_text(encoding="utf-8"))
    lists = {name: tuple(told[name]) for name in ("breakpoints", "break_on")}
    plan = Plan.from_json(told["plan"])
    return Orders(**{**told, **lists, "plan": replace(plan, run_dir=str(run_dir))})
