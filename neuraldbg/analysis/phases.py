"""The phases of a step: how long each took, and whether together they are the step that was timed apart from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.durations import Durations
from neuraldbg.analysis.ranks import main_rank
from neuraldbg.records import Phase, SiteKind
from neuraldbg.trace.tables import PHASE_CODE

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

PHASES: Final = ("data", "forward", "loss", "backward", "optimizer", "outside")
EVAL: Final = "eval"  # told only where there was one
SERIES: Final = "time."
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
    times = curves.get("step_time_s", {})
    timed = curves.get(f"{SERIES}outside", {})
    wanted = [step for step in steps if step in timed] if len(steps) else sorted(timed)
    every = Durations(max(value, 0.0) * 1e3 for step, value in times.items() if step > 0 and value == value)
    if not wanted:
        return _from_spans(trace, steps, times, every)
    mean: dict[str, float | None] = {}
    for phase in (*PHASES, EVAL):
        of_phase = curves.get(SERIES + phase)
        if of_phase is not None:
            mean[phase] = float(np.mean([of_phase.get(step, 0.0) for step in wanted])) * 1e3
    step_ms = Durations(max(times[step], 0.0) * 1e3 for step in wanted if step in times)
    return Phases(mean, step_ms, every, len(wanted))


def _curves(trace: Trace) -> dict[str, dict[int, float]]:
    names = {
        site.id: site.path
        for site in trace.sites
        if site.kind is SiteKind.SERIES and (site.path.startswith(SERIES) or site.path == "step_time_s")
    }
    table = trace.table("scalars", ("step", "site", "value", "rank"))
    mine = np.isin(table["site"], list(names)) & _of_main(trace, table["rank"])
    found: dict[str, dict[int, float]] = {}
    rows = zip(*(table[name][mine].tolist() for name in ("step", "site", "value")), strict=True)
    for step, site, value in rows:
        found.setdefault(names[site], {})[step] = value
    return found


def _of_main(trace: Trace, ranks: NDArray[np.int32]) -> NDArray[np.bool_]:
    main = main_rank(trace)
    there = np.unique(ranks)
    chosen = main if main is not None and main in there else (there[0] if len(there) else 0)
    return np.asarray(ranks == chosen)


def _from_spans(trace: Trace, steps: Sequence[int], times: dict[int, float], every: Durations) -> Phases:
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
    step_ms = Durations(max(times[step], 0.0) * 1e3 for step in steps if step in times)
    return Phases(mean, step_ms, every, len(steps))
