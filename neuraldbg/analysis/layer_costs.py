"""What every layer costs: its own time and that of what it calls, forward and backward, its bytes and operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.durations import Durations
from neuraldbg.records import Phase, Site, SiteKind
from neuraldbg.trace.tables import PHASE_CODE

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

Columns = Mapping[str, NDArray[Any]]
_SIZES: Final = ("host_bytes", "device_bytes")
COLUMNS: Final = ("step", "seq", "site", "pass_id", "phase", "depth", "duration_ns", "rank", *_SIZES)
WARM_STEPS, ENOUGH_STEPS = 2, 8  # the first ones load kernels and fill caches; they count where there are no others


@dataclass(slots=True)
class LayerCost:
    """Durations in nanoseconds. `own` leaves out the layers called inside; `forward`, `backward` and `whole` have
    them."""

    path: str
    type: str | None
    calls: int = 0
    forward: Durations = field(default_factory=Durations)
    backward: Durations = field(default_factory=Durations)
    own_forward_ns: float = 0.0
    own_backward_ns: float = 0.0
    memory_bytes: int | None = None  # of its output in one call
    flops: int | None = None  # of one forward call
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    device: str | None = None
    source: str | None = None
    holds_others: bool = False
    device_ns: float | None = None  # of one forward call launched ahead of the device: no launching is in it
    late_share: float | None = None  # of the forward calls: the device was there before all was launched

    @property
    def own_ns(self) -> float:
        return self.own_forward_ns + self.own_backward_ns

    @property
    def whole_ns(self) -> float:
        return self.forward.total + self.backward.total

    @property
    def flops_per_s(self) -> float | None:
        """Achieved in the forward pass."""
        if self.flops is None or not self.forward.total:
            return None
        return self.flops * self.forward.count / (self.forward.total / 1e9)


@dataclass(frozen=True, slots=True)
class Costs:
    layers: list[LayerCost]
    steps: list[int]  # that were timed and count
    all_steps: int  # that were timed


def layer_costs(trace: Trace, rank: int | None = None) -> Costs:
    """Every layer of the timed steps, the most expensive in own time first."""
    spans: Columns = trace.table("spans", COLUMNS)
    sites = {site.id: site for site in trace.sites}
    layers = np.array([number for number, site in sites.items() if _is_layer(site)], dtype=np.int64)
    spans = _only(spans, np.isin(spans["site"], layers) & (spans["duration_ns"] >= 0))
    if rank is not None:
        spans = _only(spans, spans["rank"] == rank)
    training = spans["phase"] == PHASE_CODE[Phase.FORWARD]
    phase = Phase.FORWARD if training.any() else Phase.EVAL
    steps, everything = _counted(spans["step"])
    spans = _only(spans, np.isin(spans["step"], steps))
    found: dict[int, LayerCost] = {}
    _add_forward(_only(spans, spans["phase"] == PHASE_CODE[phase]), found, sites, trace)
    _add_backward(_only(spans, spans["phase"] == PHASE_CODE[Phase.BACKWARD]), found, sites, trace)
    _add_launches(found, trace)
    return Costs(sorted(found.values(), key=lambda one: -one.own_ns), steps.tolist(), everything)


def _is_layer(site: Site) -> bool:
    return site.kind is SiteKind.MODULE and bool(site.path)


def _only(columns: Columns, rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
    return {name: column[rows] for name, column in columns.items()}


def _counted(steps: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    timed = np.unique(steps)
    return (timed[WARM_STEPS:] if len(timed) >= ENOUGH_STEPS else timed), len(timed)


def _the(found: dict[int, LayerCost], number: int, sites: Mapping[int, Site], trace: Trace) -> LayerCost:
    known = found.get(number)
    if known is None:
        site = sites[number]
        known = found[number] = LayerCost(trace.canonical(number), site.op, flops=site.flops)
        known.shape, known.dtype, known.device, known.source = site.shape, site.dtype, site.device, site.source
    return known


def _add_forward(spans: Columns, found: dict[int, LayerCost], sites: Mapping[int, Site], trace: Trace) -> None:
    own = own_times(spans)
    for number, rows in _by_site(spans["site"]):
        one = _the(found, number, sites, trace)
        one.forward.add_many(spans["duration_ns"][rows])
        one.calls = one.forward.count
        one.own_forward_ns = float(own[rows].sum())
        one.holds_others = bool((own[rows] < spans["duration_ns"][rows]).any())
        held = np.maximum(spans["host_bytes"][rows], 0) + np.maximum(spans["device_bytes"][rows], 0)
        known = (spans["host_bytes"][rows] >= 0) | (spans["device_bytes"][rows] >= 0)
        one.memory_bytes = int(np.median(held[known])) if known.any() else None


def own_times(spans: Columns) -> NDArray[np.float64]:
    """Each call's duration less that of the calls directly inside it.

    Calls are recorded when they end, so those inside come before the one around them and are one deeper: what a call
    holds is everything one deeper since the last call of its own depth.
    """
    durations = spans["duration_ns"].astype(np.float64)
    order = np.lexsort((spans["seq"], spans["rank"]))
    depth, lasted = spans["depth"][order].astype(np.int64), durations[order]
    own = lasted.copy()
    for level in np.unique(depth).tolist():
        inner = np.cumsum(np.where(depth == level + 1, lasted, 0.0))
        at = np.flatnonzero(depth == level)
        own[at] -= np.diff(inner[at], prepend=0.0)
    back = np.empty_like(own)
    back[order] = np.maximum(own, 0.0)
    return back


def _add_backward(spans: Columns, found: dict[int, LayerCost], sites: Mapping[int, Site], trace: Trace) -> None:
    """The pieces of one layer in one backward are one call; those of the layers inside it, by path, belong to it."""
    pieces = dict(_by_site(spans["site"]))
    for number in pieces:
        _the(found, number, sites, trace)
    inside = _inside(found, pieces, sites)
    for number, one in found.items():
        own, rows = pieces.get(number), [pieces[each] for each in (number, *inside.get(number, ())) if each in pieces]
        one.own_backward_ns = 0.0 if own is None else float(spans["duration_ns"][own].sum())
        one.holds_others = one.holds_others or number in inside
        if rows:
            one.backward.add_many(_per_call(spans, np.concatenate(rows)))
            one.calls = one.calls or one.backward.count


def _inside(found: Mapping[int, LayerCost], pieces: Iterable[int], sites: Mapping[int, Site]) -> dict[int, list[int]]:
    """Of every layer those with a backward of their own somewhere inside it, within one model."""
    of_path = {(sites[number].model, sites[number].path): number for number in found}
    inside: dict[int, list[int]] = {}
    for number in pieces:
        path = sites[number].path
        while "." in path:
            path = path.rpartition(".")[0]
            around = of_path.get((sites[number].model, path))
            if around is not None:
                inside.setdefault(around, []).append(number)
    return inside


def _per_call(spans: Columns, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    keys = np.stack([spans["rank"][rows].astype(np.int64), spans["step"][rows], spans["pass_id"][rows]], axis=1)
    _, of_call = np.unique(keys, axis=0, return_inverse=True)
    sums = np.bincount(of_call.ravel(), spans["duration_ns"][rows].astype(np.float64))
    return sums.astype(np.float64)


def _by_site(sites: NDArray[np.int32]) -> Sequence[tuple[int, NDArray[np.int64]]]:
    order = np.argsort(sites, kind="stable")
    numbers, starts = np.unique(sites[order], return_index=True)
    return list(zip(numbers.tolist(), np.split(order, starts[1:]) if len(numbers) else [], strict=True))


def _add_launches(found: dict[int, LayerCost], trace: Trace) -> None:
    for fact in trace.told("launches")[-1:]:
        for told in fact["layers"]:
            one = found.get(told["site"])
            if one is not None and told["calls"]:
                one.late_share = 1 - told["ahead"] / told["calls"]
                one.device_ns = told["ahead_ns"] / told["ahead"] if told["ahead"] else None
