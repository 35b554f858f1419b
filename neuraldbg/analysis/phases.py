"""The phases of a step: how long each took, and whether together they are the step that was timed apart from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.durations import Durations
from neuraldbg.analysis.ranks import main_rank, processes
from neuraldbg.records import Phase, SiteKind
from neuraldbg.trace.tables import PHASE_CODE

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

PHASES: Final = ("data", "forward", "loss", "backward", "optimizer", "outside")
EVAL: Final = "eval"  # told only where there was one
SERIES: Final = "time."
Curve = tuple[NDArray[np.int64], NDArray[np.float64]]  # steps and values
_NO_CURVE: Final[Curve] = (np.empty(0, np.int64), np.empty(0))
_OF_RANKS: Final = ("step_time_s", f"{SERIES}data")
_SPANS: Final = {Phase.DATA: "data", Phase.BACKWARD: "backward", Phase.UPDATE: "optimizer", Phase.FORWARD: "forward"}


@dataclass(frozen=True, slots=True)
class Phases:
    """Means of one step, in milliseconds. None: not measured."""

    mean_ms: dict[str, float | None]
    step_ms: Durations  # of the same steps, timed from update to update
    every_step_ms: Durations  # of all steps, timed phases or not
    steps: int

    @property
    def covered(self) -> float | None:
        """The sum of the phases over the step that was timed apart from them."""
        known = [value for value in self.mean_ms.values() if value is not None]
        mean = self.step_ms.mean
        return sum(known) / mean if len(known) >= len(PHASES) and mean else None

    def share(self, phase: str) -> float | None:
        value, step = self.mean_ms.get(phase), self.step_ms.mean
        return None if value is None or not step else min(value / step, 1.0)

    @property
    def jitter(self) -> float | None:
        """Spread of the step time over its mean."""
        told = self.every_step_ms
        return told.std / told.mean if told.count > 2 and told.mean and told.std is not None else None


def phases(trace: Trace, steps: Sequence[int]) -> Phases:
    """`steps`: those that count, as `layer_costs` tells them; of a model without layers all that were timed."""
    curves = _curves(trace)
    times, timed = (curves.get(name, _NO_CURVE) for name in ("step_time_s", f"{SERIES}outside"))
    wanted = np.intersect1d(np.asarray(steps, np.int64), timed[0]) if len(steps) else np.unique(timed[0])
    every = Durations()
    every.add_many(np.maximum(times[1][(times[0] > 0) & ~np.isnan(times[1])], 0.0) * 1e3)
    if not len(wanted):
        return _from_spans(trace, steps, times, every)
    mean: dict[str, float | None] = {}
    for phase in (*PHASES, EVAL):
        of_phase = curves.get(SERIES + phase)
        if of_phase is not None:
            mean[phase] = float(np.sum(_at(of_phase, wanted))) / len(wanted) * 1e3
    return Phases(mean, _step_ms(times, wanted), every, len(wanted))


def _at(curve: Curve, wanted: NDArray[np.int64]) -> NDArray[np.float64]:
    """The last value of each of these steps, where there is one."""
    order = np.argsort(curve[0], kind="stable")
    steps, values = curve[0][order], curve[1][order]
    where = np.searchsorted(steps, wanted, side="right") - 1
    known = where >= 0
    known[known] = steps[where[known]] == wanted[known]
    return values[where[known]]


def _step_ms(times: Curve, wanted: Sequence[int] | NDArray[np.int64]) -> Durations:
    told = Durations()
    told.add_many(np.maximum(_at(times, np.asarray(wanted, np.int64)), 0.0) * 1e3)
    return told


def _curves(trace: Trace) -> dict[str, Curve]:
    names = {
        site.id: site.path
        for site in trace.sites
        if site.kind is SiteKind.SERIES and (site.path.startswith(SERIES) or site.path == "step_time_s")
    }
    table = trace.table("scalars", ("step", "site", "value", "rank"))
    mine = np.isin(table["site"], list(names)) & _of_main(trace, table["rank"])
    step, site, value = (table[name][mine] for name in ("step", "site", "value"))
    return {path: (step[site == number], value[site == number]) for number, path in names.items() if number in site}


def rank_times(trace: Trace) -> list[dict[str, Any]]:
    """Of every process that trained: the mean of its steps after the first, and how long it waited for data in one."""
    sites = {site.path: site.id for site in trace.sites if site.kind is SiteKind.SERIES and site.path in _OF_RANKS}
    means = {path: _means_of_ranks(trace, number) for path, number in sites.items()}
    steps, waits = (means.get(path, {}) for path in ("step_time_s", f"{SERIES}data"))
    folders = {rank: one.folder for rank, one in processes(trace).items()} or {each: each for each in trace.ranks}
    return [
        {"rank": rank, "step_ms": steps[folder], "data_ms": waits.get(folder)}
        for rank, folder in folders.items()
        if folder in steps
    ]


def _means_of_ranks(trace: Trace, site: int) -> dict[int, float]:
    """By folder, in milliseconds: one pass over the rows, however many ranks there are."""
    table = trace.table("scalars", ("step", "value", "rank"), site=site)
    usable = (table["step"] > 0) & np.isfinite(table["value"])
    folders = table["rank"][usable].astype(np.int64)
    counts, sums = np.bincount(folders), np.bincount(folders, weights=table["value"][usable])
    there = np.flatnonzero(counts)
    return dict(zip(there.tolist(), (1e3 * sums[there] / counts[there]).tolist(), strict=True))


def _of_main(trace: Trace, ranks: NDArray[np.int32]) -> NDArray[np.bool_]:
    main = main_rank(trace)
    there = np.unique(ranks)
    chosen = main if main is not None and main in there else (there[0] if len(there) else 0)
    return np.asarray(ranks == chosen)


def _from_spans(trace: Trace, steps: Sequence[int], times: Curve, every: Durations) -> Phases:
    """A run that was debugged, not profiled: what it timed. The forward has the glue between layers in it; loss and
    outside were not measured."""
    kinds = (SiteKind.MODEL, SiteKind.LOADER, SiteKind.LOSS, SiteKind.OPTIMIZER)
    numbers = [site.id for site in trace.sites if site.kind in kinds]
    table = trace.table("spans", ("step", "site", "phase", "duration_ns", "rank"))
    mine = np.isin(table["site"], numbers) & np.isin(table["step"], list(steps)) & _of_main(trace, table["rank"])
    mean: dict[str, float | None] = dict.fromkeys(PHASES)
    for phase, name in _SPANS.items():
        of_phase = mine & (table["phase"] == PHASE_CODE[phase]) & (table["duration_ns"] >= 0)
        if of_phase.any():
            mean[name] = float(table["duration_ns"][of_phase].sum()) / max(len(steps), 1) / 1e6
    return Phases(mean, _step_ms(times, steps), every, len(steps))
