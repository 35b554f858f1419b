"""What is asked of many ranks and runs: who is slow, who has gone another way, where runs part, what is unusual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.fleet.reduction import LAYER_MARK, Columns, Job, Narrowed, numbered
from neuraldbg.records import Kind
from neuraldbg.store.layout import WORDS
from neuraldbg.trace.tables import KIND_CODE

STEP_TIME: Final = "step_time_s"
FACTOR_OCTAVES: Final = 10  # above the median of a layer's norms: a factor of about a thousand
NOT_FINITE: Final = 9_999  # octaves of norms that have none
ZERO: Final = -9_999
MOST_ROWS: Final = 100  # of an answer
_WHERE: Final = ("layer", "kind", "slot", "rank", "step")


# -- stragglers --------------------------------------------------------------------------------------------------------


def _step_times(columns: Columns) -> Columns:
    mine = columns["layer"] == STEP_TIME
    duration = np.nan_to_num(columns["value"][mine] * 1e9, nan=-1, posinf=-1, neginf=-1)
    return {"rank": columns["rank"][mine], "step": columns["step"][mine], "duration_ns": duration.astype(np.int64)}


def _stragglers(groups: Columns, runs: Sequence[str]) -> list[dict[str, Any]]:
    """Ranks by how often they were the last of their step; a run of one rank has only its times."""
    known = groups["duration_ns"] >= 0
    run, rank, step, duration = (groups[name][known] for name in ("run", "rank", "step", "duration_ns"))
    which = _alike([run, step])
    slowest, fastest = np.zeros(len(run), np.int64), np.full(len(run), 2**62)
    np.maximum.at(slowest, which, duration)
    np.minimum.at(fastest, which, duration)
    slowest, fastest = slowest[which], fastest[which]
    several = np.bincount(which, minlength=1)[which] > 1
    found = []
    for mine in _each(_alike([run, rank])):
        shared = mine[several[mine]]
        last = (duration[shared] == slowest[shared]) & (slowest[shared] > fastest[shared])
        behind = (duration - fastest)[shared]
        found.append(
            {
                "run": runs[int(run[mine[0]])],
                "rank": int(rank[mine[0]]),
                "steps": len(mine),
                "median_step_s": float(np.median(duration[mine])) / 1e9,
                "slowest_share": int(last.sum()) / len(shared) if len(shared) else None,
                "median_behind_s": float(np.median(behind)) / 1e9 if len(behind) else None,
            }
        )
    return sorted(found, key=lambda one: (one["run"], -(one["slowest_share"] or 0), one["rank"]))


# -- ranks that no longer agree ----------------------------------------------------------------------------------------


def _digests(columns: Columns) -> Columns:
    known = columns["digest"] != 0
    kept = {name: columns[name][known] for name in ("layer", "slot", "step", "rank")}
    return {**kept, "low": columns["digest"][known], "high": columns["digest"][known]}


def _digest_outline(columns: Columns) -> Columns:
    known = columns["digest"] != 0
    kept = {name: column[known] for name, column in columns.items()}
    with np.errstate(over="ignore"):
        digests = _stirred(kept["digest"].view(np.uint64))
    return _outlined(kept, digests)


def _steps_to_compare(groups: Columns, runs: Sequence[str]) -> Narrowed:
    """Per run the first steps at which the ranks have not all the same digests of the same parameters."""
    which = _alike([groups["run"], groups["step"]])
    differs = {name: _differs(groups[name], which) for name in ("rows", "places", "marks")}
    elsewhere = differs["rows"] | differs["places"]
    steps: dict[int, NDArray[np.int64]] = {}
    for index in range(len(runs)):
        mine = np.flatnonzero((groups["run"] == index) & (elsewhere | differs["marks"])[which])
        suspect, at = np.unique(groups["step"][mine], return_index=True)
        certain = np.cumsum(~elsewhere[which[mine[at]]])
        steps[index] = suspect[: int(np.searchsorted(certain, MOST_ROWS)) + 1]
    return Narrowed(steps)


def _desync(groups: Columns, runs: Sequence[str], _: Narrowed) -> list[dict[str, Any]]:
    """Parameters that are the same on every rank, until they are not: per run the first steps at which bits differ."""
    which = _alike([groups[name] for name in ("run", "step", "layer", "slot")])
    order = np.argsort(which, kind="stable")
    low, high = groups["low"][order], groups["high"][order]
    other = (np.diff(which[order]) == 0) & ((low[1:] != low[:-1]) | (high[1:] != high[:-1]))
    found: list[dict[str, Any]] = []
    parted = np.flatnonzero(other)
    for index in range(len(runs)):
        for at in parted[groups["run"][order[parted]] == index][:MOST_ROWS].tolist():
            a, b = order[at], order[at + 1]
            found.append(
                {
                    "run": runs[index],
                    "step": int(groups["step"][b]),
                    "layer": str(groups["layer"][b]),
                    "ranks": sorted((int(groups["rank"][a]), int(groups["rank"][b]))),
                }
            )
    return found


# -- where runs part ---------------------------------------------------------------------------------------------------


def _mark(columns: Columns) -> NDArray[np.uint64]:
    """A number for the bits of a statistic."""
    mark = np.zeros(len(columns["step"]), np.uint64)
    with np.errstate(over="ignore"):
        for name, factor in (("mean", 0x9E3779B97F4A7C15), ("l2", 0xC2B2AE3D27D4EB4F), ("max", 0x165667B19E3779F9)):
            bits = np.ascontiguousarray(columns[name], "<f8").view(np.uint64)
            mark += (bits ^ (bits >> np.uint64(29))) * np.uint64(factor)
    return mark


def _marks(columns: Columns) -> Columns:
    return {
        **{name: columns[name] for name in _WHERE},
        "mark": _mark(columns).view(np.int64),
        "seq": columns["seq"],
        "value": columns["l2"],
        "rows": np.ones(len(columns["seq"]), np.int64),
    }


def _mark_outline(columns: Columns) -> Columns:
    return _outlined(columns, _mark(columns))


def _steps_that_part(groups: Columns, runs: Sequence[str]) -> Narrowed:
    """Every run against the first: the earliest step at which the same was recorded and a bit differs, and steps at
    which not the same was recorded, which have to be looked at row by row. The rest is equal, or counted already."""
    which = _alike([groups["rank"], groups["step"]])
    first = np.flatnonzero(groups["run"] == 0)
    steps: dict[int, NDArray[np.int64]] = {}
    known: dict[int, tuple[int, NDArray[np.int64]]] = {}
    for index in range(1, len(runs)):
        one, other = _common(which, first, np.flatnonzero(groups["run"] == index))
        alike = (groups["rows"][one] == groups["rows"][other]) & (groups["places"][one] == groups["places"][other])
        parted = alike & (groups["marks"][one] != groups["marks"][other])
        open_steps = groups["step"][one[~alike]]
        earliest = [groups["step"][one[parted]].min()] if parted.any() else []
        steps[index] = np.unique(np.append(open_steps, earliest).astype(np.int64))
        known[index] = (int(groups["rows"][one[alike]].sum()), _of_rank(groups["rank"], groups["step"])[one[~alike]])
    steps[0] = np.unique(np.concatenate([np.empty(0, np.int64), *steps.values()]))
    return Narrowed(steps, known)


def _divergence(groups: Columns, runs: Sequence[str], narrowed: Narrowed) -> list[dict[str, Any]]:
    """Every run against the first: the earliest number that both recorded and that differs in a bit."""
    which = _alike([groups[name] for name in _WHERE])
    place = _of_rank(groups["rank"], groups["step"])
    found = []
    first = np.flatnonzero(groups["run"] == 0)
    for index in range(1, len(runs)):
        compared, not_counted = narrowed.known[index]
        one, other = _common(which, first, np.flatnonzero(groups["run"] == index))
        compared += int(groups["rows"][other[np.isin(place[other], not_counted)]].sum())
        told: dict[str, Any] = {"run": runs[index], "against": runs[0], "compared": compared}
        parted = np.flatnonzero(groups["mark"][one] != groups["mark"][other])
        if len(parted):
            earliest = parted[np.lexsort((groups["seq"][one[parted]], groups["step"][one[parted]]))[0]]
            a, b = one[earliest], other[earliest]
            told |= {"step": int(groups["step"][a]), "layer": str(groups["layer"][a])}
            told |= {"kind": WORDS["kind"].get(int(groups["kind"][a])), "rank": int(groups["rank"][a])}
            told |= {"norm": _finite(groups["value"][b]), "norm_there": _finite(groups["value"][a])}
        found.append(told)
    return found


def _common(which: NDArray[Any], first: NDArray[Any], mine: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The places of groups that both have, there and here."""
    _, there, here = np.intersect1d(which[first], which[mine], assume_unique=True, return_indices=True)
    return first[there], mine[here]


def _of_rank(rank: NDArray[Any], step: NDArray[Any]) -> NDArray[np.int64]:
    found: NDArray[np.int64] = step.astype(np.int64) * 2**20 + rank
    return found


# -- what is unusual ---------------------------------------------------------------------------------------------------


def _octaves(columns: Columns) -> Columns:
    norms = columns["l2"]
    finite = np.isfinite(norms) & (columns["nan_count"] <= 0) & (columns["inf_count"] <= 0)
    octave = np.frexp(np.where(np.isfinite(norms), norms, 1.0))[1].astype(np.int32)
    octave = np.where(finite, np.where(norms == 0, ZERO, octave), NOT_FINITE).astype(np.int32)
    names = ("layer", "kind", "rank")
    return {
        **{name: columns[name] for name in names},
        "octave": octave,
        "count": np.ones(len(octave), np.int64),
        "first_step": columns["step"],
    }


def _anomalies(groups: Columns, runs: Sequence[str]) -> list[dict[str, Any]]:
    """Norms a thousand times the median of their layer, and what is not finite; the median by powers of two."""
    which = _alike([groups[name] for name in ("run", "layer", "kind", "rank")])
    order = np.lexsort((groups["octave"], which))
    found: list[dict[str, Any]] = []
    edges = np.flatnonzero(np.diff(which[order], prepend=-1))
    for begin, end in zip(edges.tolist(), [*edges[1:].tolist(), len(order)], strict=True):
        found += _unusual_of(groups, order[begin:end], runs)
    order_of = ("first_step", "run", "layer", "kind", "what", "rank")
    return sorted(found, key=lambda one: [str(one[name]) if name == "kind" else one[name] for name in order_of])[
        :MOST_ROWS
    ]


def _unusual_of(groups: Columns, rows: NDArray[Any], runs: Sequence[str]) -> list[dict[str, Any]]:
    octave, count, first = (groups[name][rows] for name in ("octave", "count", "first_step"))
    usual = (octave != NOT_FINITE) & (octave != ZERO)
    about = {
        "run": runs[int(groups["run"][rows[0]])],
        "layer": str(groups["layer"][rows[0]]),
        "kind": WORDS["kind"].get(int(groups["kind"][rows[0]])),
        "rank": int(groups["rank"][rows[0]]),
    }
    found = []
    bad = octave == NOT_FINITE
    if bad.any():
        since = int(first[bad].min())
        found.append({**about, "what": "not finite", "rows": int(count[bad].sum()), "first_step": since})
    if usual.any():
        running = np.cumsum(count[usual])
        median = octave[usual][np.searchsorted(running, (running[-1] + 1) // 2)]
        large = usual & (octave >= median + FACTOR_OCTAVES)
        if large.any():
            rows_there, since = int(count[large].sum()), int(first[large].min())
            found.append({**about, "what": "norm a thousand times its median", "rows": rows_there, "first_step": since})
    return found


def _alike(keys: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """A number for every row, the same for rows that agree in all keys, in the order of the keys."""
    numbers = [numbered(key) for key in keys]
    order = np.lexsort(numbers[::-1])
    new = np.zeros(len(order), np.int64)
    for key in numbers:
        new[1:] |= np.diff(key[order]) != 0
    which = np.empty(len(order), np.int64)
    which[order] = np.cumsum(new)
    return which


def _each(which: NDArray[Any]) -> list[NDArray[Any]]:
    """The rows of every number, number by number."""
    order = np.argsort(which, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(which[order])) + 1) if len(order) else []


def _differs(values: NDArray[Any], which: NDArray[Any]) -> NDArray[np.bool_]:
    """For every number whether its rows have different values."""
    count = int(which.max()) + 1 if len(which) else 0
    one = np.zeros(count, values.dtype)
    one[which] = values  # some row's
    found = np.zeros(count, bool)
    found[which[values != one[which]]] = True
    return found


def _outlined(columns: Columns, marks: NDArray[np.uint64]) -> Columns:
    """Per rank and step: how many rows, a sum for where they are, and one for what they say there. Sums modulo 2^64 of
    numbers without order: equal where the rows are, whatever their order; else equal once in 2^64."""
    place = columns[LAYER_MARK]
    with np.errstate(over="ignore"):
        for name in ("kind", "slot"):
            place = _stirred(place + columns[name].astype(np.int64).view(np.uint64) + np.uint64(1))
        weighted = marks * (place | np.uint64(1))
    ones = np.ones(len(place), np.int64)
    kept = {"rank": columns["rank"], "step": columns["step"], "rows": ones}
    return {**kept, "places": place.view(np.int64), "marks": weighted.view(np.int64)}


def _stirred(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Other numbers, in which every bit depends on every bit."""
    stirred = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    stirred = (stirred ^ (stirred >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return stirred ^ (stirred >> np.uint64(31))


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


_OUTLINE: Final = (("rank", "step"), {"rows": "sum", "places": "sum", "marks": "sum"})
_DIGESTS: Final = ("layer", "kind", "slot", "rank", "step", "digest")
_STATISTICS: Final = (*_WHERE, "seq", "mean", "l2", "max")
_PARAMETERS: Final = (KIND_CODE[Kind.PARAMETER],)
JOBS: Final = {
    job.name: job
    for job in (
        Job(
            "stragglers", "scalars", ("layer", "rank", "step", "value"), ("rank", "step"), {"duration_ns": "max"},
            _step_times, _stragglers,
        ),
        Job(
            "desync", "stats", _DIGESTS, ("layer", "slot", "step", "rank"), {"low": "min", "high": "max"},
            _digests, _desync, _PARAMETERS,
            Job("desync outline", "stats", _DIGESTS, *_OUTLINE, _digest_outline, _steps_to_compare, _PARAMETERS),
        ),
        Job(
            "divergence", "stats", _STATISTICS, _WHERE,
            {"mark": "sum", "seq": "min", "value": "fmin", "rows": "sum"}, _marks, _divergence, (),
            Job("divergence outline", "stats", _STATISTICS, *_OUTLINE, _mark_outline, _steps_that_part),
        ),
        Job(
            "anomalies", "stats", ("layer", "kind", "rank", "step", "l2", "nan_count", "inf_count"),
            ("layer", "kind", "rank", "octave"), {"count": "sum", "first_step": "min"}, _octaves, _anomalies,
        ),
    )
}  # fmt: skip


def job_named(name: str) -> Job:
    """Of a worker, which is told the name: an analysis, or the outline of one."""
    job = JOBS[name.removesuffix(" outline")]
    return job.outline if job.outline is not None and name != job.name else job
