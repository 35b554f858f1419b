"""How a run can be reached from outside: the line to its gate, and what a pause tells people to type."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from neuraldbg.control.breakpoints import split_break
from neuraldbg.control.channel import ChannelServer
from neuraldbg.control.gate import Gate
from neuraldbg.control.server_file import how_to_continue
from neuraldbg.control.verbs import Verbs


def with_breakpoints(gate: Gate, breakpoints: Iterable[str], break_on: Iterable[str]) -> Gate:
    """The gate with its first breakpoints, as they were typed: a mistake in one is told before anything is begun."""
    for text in breakpoints:
        layer, phase, condition = split_break(text)
        gate.breakpoints.add(layer, condition, phase=phase)
    for kind in break_on:
        gate.break_on(kind)
    return gate


def open_line(gate: Gate, run_dir: Path, *, served: bool) -> ChannelServer:
    """Whoever comes over the line may ask everything of the gate. `served`: a server of ours comes, so a pause may wait
    for it."""
    line = ChannelServer(Verbs(gate), run_dir)
    gate.on_event.append(line.publish)
    gate.how_to_answer = lambda: how_to_continue(run_dir) or f"`neural view {run_dir}` serves it"
    gate.remote = served
    return line
