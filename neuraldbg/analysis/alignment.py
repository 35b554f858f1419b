"""Two losses over something else than the number of the update: epochs of the data, or time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.ranks import main_rank
from neuraldbg.records import Call
from neuraldbg.trace.tables import CALL_CODE

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

POINTS: Final = 400
_LOSS: Final = "loss"


@dataclass(frozen=True, slots=True)
class Positions:
    """Where every recorded loss of a run lies: its step, its place in epochs or seconds, its value."""

    steps: NDArray[np.int64]
    places: NDArray[np.float64]
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Aligned:
    """`loss`: place, and at each the last value of both runs until there (None before the first and after the last)."""

    loss: tuple[tuple[float, float | None, float | None], ...]
    steps: tuple[int, ...]  # of the first run at each place
    unknown: str | None = None  # why there is nothing


def aligned(a: Trace, b: Trace, by: str) -> Aligned:
    sides = [positions(trace, by) for trace in (a, b)]
    for name, side in zip("AB", sides, strict=True):
        if side is None or not len(side.places):
            why = "used no DataLoader whose length is known" if by == "epoch" else "has no loss with a time"
            return Aligned((), (), f"run {name} {why}")
    known = [side for side in sides if side is not None]
    grid = np.linspace(0.0, max(side.places[-1] for side in known), POINTS)
    one, other = (_values(side, grid) for side in known)
    steps = known[0].steps[np.maximum(_last(known[0], grid), 0)]
    return Aligned(tuple(zip(grid.tolist(), one, other, strict=True)), tuple(steps.tolist()))


def _last(side: Positions, grid: NDArray[np.float64]) -> NDArray[np.intp]:
    return np.searchsorted(side.places, grid + 1e-9, side="right") - 1


def _values(side: Positions, grid: NDArray[np.float64]) -> list[float | None]:
    last = _last(side, grid)
    there = (last >= 0) & (grid <= side.places[-1] + 1e-9)
    return [float(side.values[at]) if here else None for at, here in zip(last, there, strict=True)]


def positions(trace: Trace, by: str) -> Positions | None:
    """None where this run does not tell."""
    rows = trace.history(_LOSS, "scalar") if any(site.path == _LOSS for site in trace.sites) else None
    if rows is None or not len(rows):
        return None
    mine = rows["rank"] == (main_rank(trace) if main_rank(trace) is not None else rows["rank"].min())
    steps, values, when = rows["step"][mine], rows["value"][mine], rows["wall_ns"][mine]
    order = np.argsort(rows["seq"][mine], kind="stable")
    steps, values, when = steps[order], values[order], when[order]
    if by == "time":
        places = (when - when[0]) / 1e9
    else:
        found = epochs(trace, steps)
        if found is None:
            return None
        places = found
    return Positions(steps, np.maximum.accumulate(places), values)


def epochs(trace: Trace, steps: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """Epochs begun of the loader that handed out most batches, at each of these steps."""
    calls = trace.table("calls", ("step", "seq", "site", "call", "rank"))
    of_main = calls["rank"] == (main_rank(trace) or 0)
    batches = (calls["call"] == CALL_CODE[Call.BATCH]) & (calls["site"] >= 0) & of_main
    if not batches.any():
        return None
    sites, counts = np.unique(calls["site"][batches], return_counts=True)
    site = int(sites[np.argmax(counts)])
    length = _batches_of_an_epoch(trace, site)
    if not length:
        return None
    handed_out = np.sort(calls["step"][batches & (calls["site"] == site)])
    return (np.searchsorted(handed_out, steps, side="right") - 1).astype(np.float64) / length


def _batches_of_an_epoch(trace: Trace, site: int) -> float | None:
    """As counted in its first epoch, where that was whole; else as the loader says."""
    for fact in trace.facts("loader_rows"):
        if fact.get("site") == site and fact.get("iterators", 0) > 1 and fact.get("epoch_batches"):
            return float(fact["epoch_batches"])
    for fact in trace.facts("loader"):
        if fact.get("site") == site and fact.get("length") and fact.get("batch_size"):
            return float(-(-fact["length"] // fact["batch_size"]))
    return None
