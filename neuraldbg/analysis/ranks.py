"""Which process of a run is which: the one the user started, the one that speaks for all, the ranks of a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from neuraldbg.errors import UnknownName
from neuraldbg.trace.rundir import read_launched

if TYPE_CHECKING:
    from neuraldbg.records import RunInfo
    from neuraldbg.trace import Trace


OTHERS_GONE = ("connection", "closed by peer", "timed out", "timeout", "gloo", "nccl", "broken pipe", "socket", "store")


@dataclass(frozen=True, slots=True)
class Process:
    """One rank of a process group, and the folder it writes to."""

    folder: int
    rank: int
    world_size: int
    host: str | None = None
    pid: int | None = None
    local_rank: int | None = None
    node: int | None = None
    attempt: int = 0
    backend: str | None = None


def processes(trace: Trace) -> dict[int, Process]:
    """The ranks that train together, by their rank; of a launch that was begun anew, those of the last time. Empty for
    a run of one process."""
    found: dict[int, Process] = {}
    for fact in trace.facts("process"):
        one = _process(fact)
        if one is None or one.world_size < 2:
            continue
        known = found.get(one.rank)
        if known is None or one.attempt >= known.attempt:
            found[one.rank] = one
    last = max((one.attempt for one in found.values()), default=0)
    return {rank: one for rank, one in sorted(found.items()) if one.attempt == last}


def named(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0, 1, 2, 3 ...`"""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:4]))}{' ...' if len(ranks) > 4 else ''}"


def folder_of(trace: Trace, rank: int) -> int:
    """The folder of a rank; of a run without ranks, that of a process. UnknownName where there is none."""
    known = {number: one.folder for number, one in processes(trace).items()} or {each: each for each in trace.ranks}
    if rank not in known:
        raise UnknownName("rank", str(rank), [str(each) for each in known], listed_by="/api/ranks")
    return known[rank]


def _process(fact: dict[str, Any]) -> Process | None:
    rank, world = fact.get("group_rank"), fact.get("world_size")
    if not isinstance(rank, int) or not isinstance(world, int):
        return None
    more = {name: fact.get(name) for name in ("host", "pid", "local_rank", "node", "backend")}
    return Process(fact["rank"], rank, world, attempt=int(fact.get("attempt") or 0), **more)


def started_rank(trace: Trace) -> int | None:
    """The folder of the process that the user started; None where only children recorded anything."""
    children = {fact["rank"] for fact in trace.facts("run") if fact.get("child")}
    return next((rank for rank in trace.ranks if rank not in children), None)


def main_rank(trace: Trace) -> int | None:
    """The folder of the process that speaks for the run: the one the user started or, where that only started ranks,
    the first of those."""
    ranks = processes(trace)
    started = started_rank(trace)
    if not ranks or started in {one.folder for one in ranks.values()}:
        return started
    return next(iter(ranks.values())).folder


def run_of_main(trace: Trace) -> RunInfo:
    """What is known of the run: its start, what the processes learned while it ran, and how it ended."""
    run: RunInfo = trace.run
    for fact in trace.facts("run"):
        known = {name: str(version) for name, version in (fact.get("versions") or {}).items()}
        run = replace(run, backend=run.backend or fact.get("backend"), versions={**run.versions, **known})
    ranks = processes(trace)
    if ranks:
        run = replace(run, world_size=max(one.world_size for one in ranks.values()))
    ends = {fact["rank"]: fact for fact in trace.facts("end")}
    end = read_launched(trace.path) or ends.get(-1 if (main := started_rank(trace)) is None else main)
    failed = None if interrupted(end) else first_failure(ranks, ends)
    if failed is not None and (end is None or end.get("exit_code") or end is ends.get(failed[0].folder)):
        rank, of_rank = failed
        error = str(of_rank.get("error") or "it failed")
        whose = "" if error.startswith("KeyboardInterrupt") else f"rank {rank.rank}: "
        end = {**of_rank, **(end or {}), "error": f"{whose}{error}"}
    if end is None:
        return replace(run, ended=False, exit_code=None, error=None, duration_s=None)
    return replace(
        run, ended=True, exit_code=end.get("exit_code"), error=end.get("error"), duration_s=end.get("duration_s")
    )


def first_failure(ranks: dict[int, Process], ends: dict[int, dict[str, Any]]) -> tuple[Process, dict[str, Any]] | None:
    """The rank that was the first to end with an error of its own: others follow it, and their errors tell little."""
    failed = [(one, ends[one.folder]) for one in ranks.values() if one.folder in ends and _bad(ends[one.folder])]
    return min(failed, key=lambda each: (lost_others(each[1]), each[1].get("wall_ns") or 0), default=None)


def interrupted(end: dict[str, Any] | None) -> bool:
    """By Ctrl-C."""
    return str((end or {}).get("error") or "").startswith("KeyboardInterrupt")


def lost_others(end: dict[str, Any] | None) -> bool:
    """Whether a rank failed because others were gone, and not by itself."""
    error = str((end or {}).get("error") or "").lower()
    return any(word in error for word in OTHERS_GONE)


def _bad(end: dict[str, Any]) -> bool:
    return bool(end.get("error") or end.get("exit_code"))
