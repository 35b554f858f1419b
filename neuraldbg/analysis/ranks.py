"""Which process of a run is the one the user started."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neuraldbg.records import RunInfo
    from neuraldbg.trace import Trace


def main_rank(trace: Trace) -> int | None:
    """The first rank that is not a spawned child's; None where only children recorded anything."""
    children = {fact["rank"] for fact in trace.facts("run") if fact.get("child")}
    return next((rank for rank in trace.ranks if rank not in children), None)


def run_of_main(trace: Trace) -> RunInfo:
    """What is known of the run: its start, what the process learned while it ran, and how that process ended."""
    run: RunInfo = trace.run
    for fact in trace.facts("run"):
        known = {name: str(version) for name, version in (fact.get("versions") or {}).items()}
        run = replace(run, backend=run.backend or fact.get("backend"), versions={**run.versions, **known})
    main = main_rank(trace)
    ends = [fact for fact in trace.facts("end") if fact["rank"] == main]
    if not ends:
        return replace(run, ended=False, exit_code=None, error=None, duration_s=None)
    end = ends[-1]
    return replace(
        run, ended=True, exit_code=end.get("exit_code"), error=end.get("error"), duration_s=end.get("duration_s")
    )
