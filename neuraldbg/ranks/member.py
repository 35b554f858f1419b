"""One rank of a run that somebody else began: the training script as the main program, watched, without a viewer of its
own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from neuraldbg.capture.attachment import Attachment, Plan
from neuraldbg.capture.place import Place, place_of
from neuraldbg.ranks.holding import Holding
from neuraldbg.ranks.orders import Orders, read_orders
from neuraldbg.script import (
    Outcome,
    Program,
    die_by_signal,
    flush_streams,
    hide_own_imports,
    load_module,
    load_script,
    wait_for_threads,
)

NOT_FOUND = "the run that the first rank makes was not found; on several nodes name a directory all see with --out"


class Runnable(Protocol):
    def run(self) -> Outcome: ...


def main(run_dir: str) -> None:
    """What a launcher's child runs: `sys.argv` has the script, or -m and a module, and its words."""
    target = sys.argv[1:]
    flush_streams()
    sys.exit(run_member(_program(target), Path(run_dir)))


def _program(words: Sequence[str]) -> Program:
    if words[0] == "-m":
        return load_module(words[1], tuple(words[2:]))
    return load_script(words[0], tuple(words[1:]))


def run_member(program: Runnable, run_dir: Path | None) -> int:
    """Run the script to its end; its own exit code. Without a run directory, as it would run alone."""
    orders = None
    try:
        orders = None if run_dir is None else read_orders(run_dir)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"neuraldbg: this rank is not watched: {error}", file=sys.stderr)
    if run_dir is None:
        print(f"neuraldbg: this rank is not watched: {NOT_FOUND}", file=sys.stderr)
    if orders is None or run_dir is None:
        return _alone(program)
    place = place_of(os.environ)
    holding = Holding(run_dir, orders, place)
    attachment = Attachment(plan_of(orders, place), gate=holding.gate, place=place)
    attachment.start()
    hide_own_imports()
    began = time.monotonic()
    outcome = program.run()
    holding.script_over(outcome.signal)
    wait_for_threads()
    end: dict[str, Any] = {"exit_code": outcome.exit_code, "error": outcome.error, "error_at": outcome.error_at}
    attachment.close(**end, duration_s=time.monotonic() - began, signal=outcome.signal)
    holding.close()
    flush_streams()
    die_by_signal(outcome)
    return outcome.exit_code


def plan_of(orders: Orders, place: Place | None, *, leads: bool = False) -> Plan:
    """What the machine uses is sampled once; process groups must outlast a pause, where one is possible."""
    first = leads or place is None or place.rank == 0
    return replace(orders.plan, resources=orders.plan.resources and first, patient=orders.may_pause)


def _alone(program: Runnable) -> int:
    hide_own_imports()
    outcome = program.run()
    wait_for_threads()
    flush_streams()
    die_by_signal(outcome)
    return outcome.exit_code
