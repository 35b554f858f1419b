"""How far every rank came, how it ended, and what was last heard of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.ranks import Process, lost_others, processes
from neuraldbg.records import Call
from neuraldbg.trace.tables import CALL_CODE

HANGS_S = 10.0  # a rank that has not moved for so long
JOINS_S = 20.0  # one that waits for others to come: where they are many some take a while
AHEAD = 3  # updates: ranks that put their gradients together are never so far apart
JOINING = "init_process_group"
WAITING = (
    *("all_", "reduce", "broadcast", "gather", "scatter", "barrier", "send", "recv", "batch_isend", "backward"),
    *(JOINING, "new_group", "split_group", "Work.wait", "Join"),
)
FOR_GRADIENTS = ("backward", "all_", "reduce_scatter", "Work.wait")  # elsewhere a rank may wait for hours on purpose


@dataclass(frozen=True, slots=True)
class State:
    """How far one rank came, and what was last heard of it."""

    process: Process
    updates: int
    last_ns: int
    end: dict[str, Any] | None
    standing: dict[str, Any] | None  # where it stood, if it never moved again
    wrapped: bool = False  # it has a model that puts gradients together by itself

    @property
    def ended_well(self) -> bool:
        return self.end is not None and not self.end.get("error") and not self.end.get("exit_code")


@dataclass(frozen=True, slots=True)
class RanAhead:
    """Ranks that went on by themselves while others waited for their gradients."""

    ahead: tuple[int, ...]
    waited: tuple[int, ...]
    step: int  # the update that those who waited never made


def states_of_ranks(evidence: Evidence) -> dict[int, State]:
    """By rank; empty for a run of one process."""
    return evidence.once("states of ranks", lambda: _states_of(evidence))


def _states_of(evidence: Evidence) -> dict[int, State]:
    trace = evidence.trace
    group = processes(trace)
    if not group:
        return {}
    ends = {fact["rank"]: fact for fact in trace.facts("end")}
    stood = {fact["rank"]: fact for fact in trace.facts("standing")}
    joined = {fact["rank"]: int(fact.get("wall_ns") or 0) for fact in trace.facts("process")}
    gone = {fact["rank"]: int((fact.get("rows") or {}).get("updates", 0)) for fact in trace.facts("evicted")}
    wrapped = {fact["rank"] for fact in trace.facts("wrapper")}
    table = trace.table("calls", ("step", "call", "wall_ns", "rank"))
    folders = table["rank"].astype(np.int64)
    size = max([*(one.folder for one in group.values()), int(folders.max(initial=0))]) + 1
    steps = np.isin(table["call"], [CALL_CODE[Call.STEP], CALL_CODE[Call.STEP_MANUAL]])
    updates, reached, heard = np.bincount(folders[steps], minlength=size), *np.zeros((2, size), np.int64)
    np.maximum.at(reached, folders[steps], table["step"][steps] + 1)  # rows may be lost or evicted
    np.maximum.at(heard, folders, table["wall_ns"])
    states = {}
    for rank, one in group.items():
        last = int(heard[one.folder]) or joined.get(one.folder, 0)
        still = stood.get(one.folder)
        moved = still is not None and last > still["wall_ns"] - int(1e9 * still["since_s"]) + int(1e9)
        count = max(int(updates[one.folder]) + gone.get(one.folder, 0), int(reached[one.folder]))
        end = ends.get(one.folder)
        states[rank] = State(one, count, last, end, None if moved else still, one.folder in wrapped)
    return states


def waits(where: str) -> bool:
    """Whether that is a place in which one rank waits for others."""
    return where.startswith(WAITING) or "DistributedDataParallel" in where


def ran_ahead(states: dict[int, State]) -> RanAhead | None:
    """Those who wait for the gradients of others, or did until they lost them, and ranks that made many updates more:
    these never took part."""
    waited = {rank: one.updates for rank, one in states.items() if _waited_for_gradients(one)}
    if not waited:
        return None
    step = min(waited.values())
    ahead = tuple(rank for rank, one in states.items() if one.updates >= step + AHEAD)
    behind = tuple(rank for rank in waited if rank not in ahead)
    return RanAhead(ahead, behind, step) if ahead else None


def _waited_for_gradients(one: State) -> bool:
    if one.ended_well:
        return False
    if one.standing is None:
        return one.wrapped and lost_others(one.end)
    where = str(one.standing["where"])
    long = one.standing["since_s"] >= HANGS_S or lost_others(one.end)
    return long and (where.startswith(FOR_GRADIENTS) or "DistributedDataParallel" in where)
