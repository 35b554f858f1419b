"""Ranks no longer do the same."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.rank_states import HANGS_S, JOINING, JOINS_S, State, ran_ahead, states_of_ranks, waits
from neuraldbg.analysis.ranks import interrupted, lost_others, named
from neuraldbg.records import Finding, Severity
from neuraldbg.trace.rundir import read_launched, read_stacks

UNHEARD_S = 30.0  # a rank that moves, or stands and can say so, has told something by then
UNHEARD = "silence"
UNHEARD_WHY = "it holds the interpreter in code that is not Python's, is stopped, or its machine is gone"
MOST_STACKS = 3  # in the evidence; the file has all
MOST_FRAMES = 8
DEATHS = {
    "SIGKILL": "SIGKILL without a word is most often the memory of the machine running out (see its kernel log)",
    "SIGABRT": "it was aborted outside Python: process groups do that where ranks make different collectives, or wait "
    "too long for one; what they say is on stderr",
}
BY_THE_LAUNCHER = (signal.SIGTERM, signal.SIGINT)  # what a launcher ends the others with when one has failed


@symptom("rank_divergence")
def rank_divergence(evidence: Evidence) -> Iterator[Finding]:
    """Ranks no longer do the same.

    Finds: a rank that was killed, fell silent, never came or was done before the others, ranks that all stand still
    because one of them does not come, one that trains on alone while others wait for it, and ranks that made different
    numbers of updates.
    Why it matters: ranks wait for each other; one that is missing stops all of them, often without a word.
    Decides by: how each process ended, as its launcher and its own trace tell; of a standstill, what the training
    thread of every rank was doing and for how long, with whole stacks where py-spy is installed; the number of updates
    of every rank.
    Usual cures: look at the rank that is named, not at those that wait for it; the same number of batches on every
    rank (drop_last, DistributedSampler, or the Join context manager); every rank must make the same collectives.
    """
    states = states_of_ranks(evidence)
    found = _absent(states)
    if found is None and len(states) > 1:
        found = _killed(evidence, states) or _ran_ahead(evidence, states) or _hang(evidence, states)
        found = found or _silent(states) or _left_early(states) or _unequal(states)
    if found is not None:
        yield found


def lost_rank(evidence: Evidence) -> Finding | None:
    """A rank that died, fell silent or was done before any other failed."""
    states = states_of_ranks(evidence)
    found = _absent(states)
    if found is not None or len(states) < 2:
        return found
    return _killed(evidence, states) or _ran_ahead(evidence, states) or _silent(states) or _left_early(states)


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
        inference=DEATHS.get(name, "the process crashed outside Python"),
    )


def _hang(evidence: Evidence, states: dict[int, State]) -> Finding | None:
    """No rank moves: each stands somewhere, has left, or is not heard of any more."""
    stood = {rank: one.standing for rank, one in states.items() if one.standing is not None and not one.ended_well}
    left = [rank for rank, one in states.items() if rank not in stood and one.end and not interrupted(one.end)]
    unheard = _unheard(states, stood, left)
    stood |= unheard
    if not stood or len(stood) + len(left) < len(states) or max(f["since_s"] for f in stood.values()) < HANGS_S:
        return None
    working = [rank for rank, fact in stood.items() if not waits(fact["where"])]
    failed = [rank for rank in left if _failed_by_itself(states[rank].end)]
    if failed and all(states[one].end is not None for one in stood):
        return None  # it is over, and what ended it is known
    rank = [*unheard, *working, *failed, *left, *list(stood)[-1:]][0]
    waiting = {each: fact for each, fact in stood.items() if each != rank}
    step = min(one.updates for each, one in states.items() if each not in unheard)  # whose last rows are not written
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


def _ran_ahead(evidence: Evidence, states: dict[int, State]) -> Finding | None:
    """It makes update after update while others wait for it: it does not take part in their collectives."""
    found = ran_ahead(states)
    if found is None:
        return None
    rank = found.ahead[0]
    waiting = {each: fact for each in found.waited if (fact := states[each].standing) is not None}
    shown = next(iter(waiting.values()), {})
    seconds = {"seconds": float(max(fact["since_s"] for fact in waiting.values()))} if waiting else {}
    return Finding(
        "rank_divergence",
        Severity.CRITICAL,
        f"{named(found.ahead)} made {states[rank].updates:,} updates alone while {named(found.waited)} waited for "
        f"gradients after {found.step:,}; {_all_where(waiting) if waiting else _others(states, rank)}",
        step=found.step,
        source=shown.get("line"),
        evidence={**seconds, **_stacks(evidence, found.step, [rank, *waiting], shown), **_counts(states)},
        rank=rank,
        confidence=0.95,
        inference="it does not take part in what the others wait in: every rank must make the same collectives",
    )


def _absent(states: dict[int, State]) -> Finding | None:
    """Those who are there wait for ranks of which nothing was ever heard."""
    world = max((one.process.world_size for one in states.values()), default=0)
    missing = [rank for rank in range(world) if rank not in states]
    stood = {
        rank: fact
        for rank, one in states.items()
        if (fact := one.standing) is not None and fact["where"] == JOINING and not one.ended_well
    }
    if not missing or not stood or (since_s := max(fact["since_s"] for fact in stood.values())) < JOINS_S:
        return None
    return Finding(
        "rank_divergence",
        Severity.CRITICAL,
        f"{len(states)} of {world} ranks have come and wait since {since_s:.0f} s for {named(missing)}: "
        f"{_all_where(stood)}",
        step=0,
        source=next(iter(stood.values())).get("line"),
        evidence={"seconds": float(since_s), "missing": len(missing), **_counts(states)},
        rank=missing[0],
        confidence=0.9,
        inference="it was not started, ended before it could join, or does not reach the others: MASTER_ADDR, "
        "MASTER_PORT and WORLD_SIZE must be the same on all of them",
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
    seen = [_short(frame) for frame in main["frames"] if "/neuraldbg/" not in frame and "<frozen" not in frame]
    return " < ".join(seen[:MOST_FRAMES])


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
    failed = [one for one in states.values() if one.end is not None and not one.ended_well]
    done = [rank for rank, one in states.items() if one.ended_well]
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
        inference=(
            "it did not wait for them: every rank must make the same collectives"
            if states[rank].updates > max(one.updates for one in failed) + 1
            else "it was given fewer batches, or left its loop: every rank must make the same number of updates"
        ),
    )


def _end_ns(one: State) -> int:
    return int((one.end or {}).get("wall_ns") or 0)


def _unequal(states: dict[int, State]) -> Finding | None:
    """All ended well, with different numbers of updates: allowed (Join), and worth knowing."""
    if not all(one.ended_well for one in states.values()):
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
    told = [f"{named(ranks)} in {where}" for where, ranks in places.items()]
    return ", ".join(told) or "nobody else is left"


def _others(states: dict[int, State], rank: int) -> str:
    errors = [str(one.end["error"]) for each, one in states.items() if each != rank and one.end and one.end["error"]]
    return f"then others failed with {errors[0][:120]}" if errors else "the others were ended after it"
