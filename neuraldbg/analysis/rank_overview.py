"""All ranks of a run at a glance: how far each is, how fast, what it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from neuraldbg.analysis.ranks import processes

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

LOOK_BACK = 50  # steps of which the usual time is taken
SERIES = ("loss", "step_time_s", "sync_s")


def overview(trace: Trace) -> dict[str, Any]:
    """`ranks`: one entry each, None for what it did not record. `slowest` = the rank with the most work of its own,
    `imbalance` = by how much that is above the mean of all, `sync_share` = of all time, what is spent in collectives
    and waiting for others, `overlap_share` = of the communication, what was hidden behind a rank's own work."""
    entries = rank_entries(trace)
    own = {
        one["rank"]: one["step_time_s"] - one["sync_s"]
        for one in entries
        if one["step_time_s"] is not None and one["sync_s"] is not None
    }
    mean = float(np.mean(list(own.values()))) if own else 0.0
    slowest = max(own, key=lambda rank: own[rank], default=None)
    return {
        "ranks": entries,
        "world_size": max((one.world_size for one in processes(trace).values()), default=1),
        "slowest": slowest if len(own) > 1 else None,
        "imbalance": own[slowest] / mean - 1 if slowest is not None and len(own) > 1 and mean > 0 else None,
        "sync_share": _mean(entries, "sync_share"),
        "overlap_share": _mean(entries, "overlap_share"),
    }


def _mean(entries: list[dict[str, Any]], name: str) -> float | None:
    known = [one[name] for one in entries if one[name] is not None]
    return float(np.mean(known)) if known else None


def rank_entries(trace: Trace) -> list[dict[str, Any]]:
    """By rank of the process group; a process that is in none goes by the number of its folder."""
    by_folder = {one.folder: one for one in processes(trace).values()}
    ended = {fact["rank"] for fact in trace.told("end")}
    stood = {fact["rank"]: fact for fact in trace.told("standing")}
    hidden = {fact["rank"]: fact for fact in trace.told("overlap")}
    tails = trace.tails(SERIES, LOOK_BACK)
    entries = []
    for folder in trace.ranks:
        one = by_folder.get(folder)
        if by_folder and one is None:
            continue  # a parent that only started the others
        numbers = _numbers(tails.get(folder) or {})
        still = stood.get(folder)
        entries.append(
            {
                "rank": folder if one is None else one.rank,
                "folder": folder,
                "host": None if one is None else one.host,
                "local_rank": None if one is None else one.local_rank,
                "ended": folder in ended,
                **numbers,
                "overlap_share": _hidden(hidden.get(folder)),
                "standing": None if still is None or still["step"] < (numbers["last_step"] or 0) else still["where"],
            }
        )
    return sorted(entries, key=lambda entry: entry["rank"])


def _hidden(told: dict[str, Any] | None) -> float | None:
    """Of the communication, the part behind the rank's own work, as it was told last."""
    if told is None or not told["communication_s"] > 0:
        return None
    return float(told["hidden_s"] / told["communication_s"])


def _numbers(tail: Any) -> dict[str, Any]:
    last = max((int(steps[-1]) for steps, _ in tail.values() if len(steps)), default=None)
    loss, step_s, sync_s = (tail.get(name, ((), ()))[1] for name in SERIES)
    usual, waited = _median(step_s), _median(sync_s)
    total = float(np.sum(step_s)) if len(step_s) else 0.0
    return {
        "last_step": last,
        "loss": float(loss[-1]) if len(loss) else None,
        "step_time_s": usual,
        "sync_s": waited,
        "sync_share": min(float(np.sum(sync_s)) / total, 1.0) if len(sync_s) and total > 0 else None,
    }


def _median(values: Any) -> float | None:
    """By sorting: `np.median` looks for NaN and axes, which a thousand ranks would feel."""
    count = len(values)
    if not count:
        return None
    ordered = np.sort(values)
    return float(ordered[count // 2] if count % 2 else (ordered[count // 2 - 1] + ordered[count // 2]) / 2)
