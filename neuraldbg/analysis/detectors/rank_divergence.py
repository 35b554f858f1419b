"""Ranks no longer do the same."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.ranks import Process, interrupted, lost_others, processes
from neuraldbg.records import Call, Finding, Severity
from neuraldbg.trace.rundir import read_launched, read_stacks
from neuraldbg.trace.tables import CALL_CODE

HANGS_S = 10.0  # no rank has moved for so long
UNHEARD_S = 30.0  # a rank that moves, or stands and can say so, has told something by then
UNHEARD = "silence"
UNHEARD_WHY = "it holds the interpreter in code that is not Python's, is stopped, or its machine is gone"
MOST_STACKS = 3  # in the evidence; the file has all
MOST_FRAMES = 8
BY_THE_LAUNCHER = (signal.SIGTERM, signal.SIGINT)  # what a launcher ends the others with when one has failed
WAITING = ("all_", "reduce", "broadcast", "gather", "scatter", "barrier", "send", "recv", "batch_isend", "backward")


@dataclass(frozen=True, slots=True)
class State:
    """How far one rank came, and what was last heard of it."""

    process: Process
    updates: int
    last_ns: int
    end: dict[str, Any] | None
    standing: dict[str, Any] | None  # where it stood, if it never moved again


@symptom("rank_divergence")
def rank_divergence(evidence: Evidence) -> Iterator[Finding]:
    """Ranks no longer do the same.

    Finds: a rank that was killed, fell silent or was done before the others, ranks that all stand still because one of
    them does not come, and ranks that made different numbers of updates.
    Why it matters: ranks wait for each other; one that is missing stops all of them, often without a word.
    Decides by: how each process ended, as its launcher and its own trace tell; of a standstill, what the training
    thread of every rank was doing and for how long, with whole stacks where py-spy is installed; the number of updates
    of every rank.
    Usual cures: look at the rank that is named, not at those that wait for it; the same number of batches on every
    rank (drop_last, DistributedSampler, or the Join context manager); every rank must make the same collectives.
    """
    states = _states(evidence)
    if len(states) < 2:
        return
    found = _killed(evidence, states) or _hang(evidence, states) or _silent(states)
    found = found or _left_early(states) or _unequal(states)
    if found is not None:
        yield found


def lost_rank(evidence: Evidence) -> Finding | None:
    """A rank that died, fell silent or was done before any other failed."""
    states = _states(evidence)
    return (_killed(evidence, states) or _silent(states) or _left_early(states)) if states else None


def _states(evidence: Evidence) -> dict[int, State]:
    return evidence.once("states of ranks", lambda: _states_of(evidence))


def _states_of(evidence: Evidence) -> dict[int, State]:
    trace = evidence.trace
    group = processes(trace)
    if len(group) < 2:
        return {}
    ends = {fact["rank"]: fact for fact in trace.facts("end")}
    stood = {fact["rank"]: fact for fact in trace.facts("standing")}
    joined = {fact["rank"]: int(fact.get("wall_ns") or 0) for fact in trace.facts("process")}
    table = trace.table("calls", ("call", "wall_ns", "rank"))
    steps = np.isin(table["call"], [CALL_CODE[Call.STEP], CALL_CODE[Call.STEP_MANUAL]])
    states = {}
    for rank, one in group.items():
        mine = table["rank"] == one.folder
        last = int(table["wall_ns"][mine].max(initial=0)) or joined.get(one.folder, 0)
        still = stood.get(one.folder)
        moved = still is not None and last > still["wall_ns"] - int(1e9 * still["since_s"]) + int(1e9)
        states[rank] = State(one, int((mine & steps).sum()), last, ends.get(one.folder), None if moved else still)
    return states


def _killed(evidence: Evidence, states: dict[int, State]) -> Finding | None:
    """A signal that no launcher sends by itself; where several died of one, the first. A launcher that ends its ranks
    kills those that do not come to their end, too."""
    launched = read_launched(evidence.trace.path) or {}
    codes = {rank: code for rank, code in launched.get("children") or () if rank in states and code is not None}
    ending = interrupted(launched) or any(_failed_by_itself(one.end) for one in states.values())
    ended_by = (*BY_THE_LAUNCHER, signal.SIGKILL) if ending else BY_THE_LAUNCHER
    dead = [rank for rank, code in codes.items() if code < 0 and -code not in ended_by]
    if not dead:
        return None
    rank = min(dead, key=lambda one: states[one].last_ns)
    state, name = states[rank], signal.Signals(-codes[rank]).name
    return Finding(
        "rank_divergence",
        Severity.CRITICAL,
        f"rank {rank} was killed ({name}) after {_reached(states):,} updates; {_others(states, rank)}",
        step=max(_reached(states) - 1, 0),
        evidence={"signal": name, "updates_it_had_written": state.updates, **_counts(states)},
        rank=rank,
        confidence=0.98,
        inference="SIGKILL without a word is most often the memory of the machine running out (see its kernel log)"
        if name == "SIGKILL"
        else "the process crashed outside Python",
    )


def _hang(evidence: Evidence, states: dict[int, State]) -> Finding | None:
    """No rank moves: each stands somewhere, has left, or is not heard of any more."""
    stood = {rank: one.standing for rank, one in states.items() if one.standing is not None and not _ended_well(one)}
    left = [rank for rank, one in states.items() if rank not in stood and one.end and not interrupted(one.end)]
    unheard = _unheard(states, stood, left)
    stood |= unheard
    if not stood or len(stood) + len(left) < len(states) or max(f["since_s"] for f in stood.values()) < HANGS_S:
        return None
    working = [rank for rank, fact in stood.items() if not _waits(fact["where"])]
    failed = [rank for rank in left if _failed_by_itself(states[rank].end)]
    if failed and all(states[one].end is not None for one in stood):
        return None  # it is over, and what ended it is known
    rank = [*unheard, *working, *failed, *left, *list(stood)[-1:]][0]
    waiting = {each: fact for each, fact in stood.items() if each != rank}
    step = min(one.updates for one in states.values())
    shown = stood.get(rank) or next(iter(stood.values()))
    return Finding(
        "rank_divergence",
        Severity.CRITICAL,
        f"no rank moves: {_where(rank, states[rank], stood.get(rank))}; {_all_where(waiting)}",
        step=step,
        source=shown.get("line"),
        evidence={
            "rank": rank,
            "where": str(shown["where"] if rank in stood else "left"),
            "seconds": float(max(fact["since_s"] for fact in stood.values())),
            **_stacks(evidence, step, [rank, *waiting], shown),
            **_counts(states),
        },
        rank=rank,
        confidence=0.9,
        inference=UNHEARD_WHY if rank in unheard else _why(stood, alone=bool(working or left)),
    )


def _why(stood: dict[int, dict[str, Any]], *, alone: bool) -> str:
    """`alone`: one rank does something else than to wait."""
    if alone:
        return "the others wait for it in a collective, and would for as long as their process group allows"
    if len({(fact["where"], fact.get("collective")) for fact in stood.values()}) > 1:
        return "all of them wait, in different collectives: every rank must make the same ones in the same order"
    return "all of them wait for each other: a collective before this one was not made by all, or the network is cut"


def _failed_by_itself(end: dict[str, Any] | None) -> bool:
    return bool((end or {}).get("error")) and not interrupted(end) and not lost_others(end)


def _unheard(states: dict[int, State], stood: dict[int, Any], left: list[int]) -> dict[int, dict[str, Any]]:
    """Ranks that neither move nor say where they stand, while others stand."""
    now = max((int(fact["wall_ns"]) for fact in stood.values()), default=0)
    missing = {rank: (now - one.last_ns) / 1e9 for rank, one in states.items() if rank not in (*stood, *left)}
    return {rank: {"where": UNHEARD, "since_s": s, "line": None} for rank, s in missing.items() if s > UNHEARD_S}


def _stacks(evidence: Evidence, step: int, ranks: list[int], shown: dict[str, Any]) -> dict[str, str]:
    """As py-spy saw the ranks from outside, where it did; else the lines that the rank itself has told."""
    told = read_stacks(evidence.trace.path)
    own = " < ".join(shown.get("stack") or [])[:400]
    if told is None or told.get("step") != step:
        return {"stack": own} if own else {}
    if told.get("by") is None:
        return {**({"stack": own} if own else {}), "stacks": str(told.get("why_not"))}
    seen = {rank: (told.get("ranks") or {}).get(str(rank)) or {} for rank in ranks[:MOST_STACKS]}
    stacks = {f"stack_of_rank_{rank}": _frames(one) for rank, one in seen.items()}
    return {**stacks, "stacks": f"all threads of all ranks: stacks.json in the run directory ({told['by']})"}


def _frames(one: dict[str, Any]) -> str:
    """Of the main thread, innermost first, without those of the debugger."""
    main = next((each for each in one.get("threads") or () if each.get("main")), None)
    if main is None:
        return str(one.get("why_not") or "not seen")
    named = [_short(frame) for frame in main["frames"] if "/neuraldbg/" not in frame and "<frozen" not in frame]
    return " < ".join(named[:MOST_FRAMES])


def _short(frame: str) -> str:
    """`train (/home/me/train.py:31)` with the name of the file alone."""
    name, _, place = frame.partition(" (")
    return f"{name} ({place.replace(chr(92), '/').rpartition('/')[2]}"


def _silent(states: dict[int, State]) -> Finding | None:
    """Some have lost the connection to a rank of which nothing was heard again. Where one failed by itself, those that
    are silent were ended by its launcher."""
    failed = [one for one in states.values() if one.end is not None and (one.end.get("error") or one.end["exit_code"])]
    silent = [rank for rank, one in states.items() if one.end is None]
    if not failed or not silent or not all(lost_others(one.end) for one in failed):
        return None
    rank = min(silent, key=lambda one: states[one].last_ns)
    return Finding(
        "rank_divergence",
        Severity.CRITICAL,
        f"rank {rank} fell silent after {_reached(states):,} updates and never told an end; {_others(states, rank)}",
        step=max(_reached(states) - 1, 0),
        evidence=_counts(states),
        rank=rank,
        confidence=0.85,
        inference="it was killed, or its machine is gone; the errors of the others follow from that",
    )


def _left_early(states: dict[int, State]) -> Finding | None:
    """Some were done, and others then lost them in the middle of a step."""
    failed = [one for one in states.values() if one.end is not None and not _ended_well(one)]
    done = [rank for rank, one in states.items() if _ended_well(one)]
    if not failed or not done or not all(lost_others(one.end) for one in failed):
        return None
    rank = min(done, key=lambda one: _end_ns(states[one]))
    if _end_ns(states[rank]) > min(map(_end_ns, failed)):
        return None
    return Finding(
        "rank_divergence",
        Severity.CRITICAL,
        f"rank {rank} was done after {states[rank].updates:,} updates while others went on; {_others(states, rank)}",
        step=states[rank].updates,
        evidence=_counts(states),
        rank=rank,
        confidence=0.93,
        inference="it was given fewer batches, or left its loop: every rank must make the same number of updates",
    )


def _end_ns(one: State) -> int:
    return int((one.end or {}).get("wall_ns") or 0)


def _unequal(states: dict[int, State]) -> Finding | None:
    """All ended well, with different numbers of updates: allowed (Join), and worth knowing."""
    if not all(_ended_well(one) for one in states.values()):
        return None
    updates = {rank: one.updates for rank, one in states.items()}
    if len(set(updates.values())) == 1:
        return None
    rank = min(updates, key=lambda one: updates[one])
    return Finding(
        "rank_divergence",
        Severity.INFO,
        f"rank {rank} made {updates[rank]:,} updates, others up to {max(updates.values()):,}",
        step=updates[rank],
        evidence=_counts(states),
        rank=rank,
        confidence=0.9,
        inference="it was given fewer batches; without the Join context manager the others would wait for it for ever",
    )


def _reached(states: dict[int, State]) -> int:
    """Ranks move together, and one that dies has not written its last moments: the others have."""
    return max(one.updates for one in states.values())


def _ended_well(one: State) -> bool:
    return one.end is not None and not one.end.get("error") and not one.end.get("exit_code")


def _waits(where: str) -> bool:
    return where.startswith(WAITING) or "DistributedDataParallel" in where


def _counts(states: dict[int, State]) -> dict[str, float | str]:
    counts = [one.updates for one in states.values()]
    return {"fewest_updates": min(counts), "most_updates": max(counts), "ranks": len(counts)}


def _where(rank: int, state: State, fact: dict[str, Any] | None) -> str:
    if fact is None:
        error = (state.end or {}).get("error")
        return f"rank {rank} has left after {state.updates:,} updates" + (f" ({error[:120]})" if error else "")
    if fact["where"] == UNHEARD:
        return f"nothing was heard of rank {rank} for {fact['since_s']:.0f} s after {state.updates:,} updates"
    return f"rank {rank} stands in {_place(fact)} since {fact['since_s']:.0f} s"


def _place(fact: dict[str, Any]) -> str:
    """`all_reduce 1200 at train.py:44`"""
    number = f" {fact['collective']:,}" if fact.get("collective") else ""
    line = f" at {fact['line']}" if fact.get("line") else ""
    return f"{fact['where']}{number}{line}"


def _all_where(waiting: dict[int, dict[str, Any]]) -> str:
    places: dict[str, list[int]] = {}
    for rank, fact in waiting.items():
        places.setdefault(_place(fact), []).append(rank)
    told = [f"rank{'s' if len(r) > 1 else ''} {', '.join(map(str, r[:4]))} in {where}" for where, r in places.items()]
    return ", ".join(told) or "nobody else is left"


def _others(states: dict[int, State], rank: int) -> str:
    errors = [str(one.end["error"]) for each, one in states.items() if each != rank and one.end and one.end["error"]]
    return f"then others failed with {errors[0][:120]}" if errors else "the others were ended after it"
