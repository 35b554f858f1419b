"""What is known of every layer at the end of a run: its latest numbers, its first bad step, its cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.records import Kind, Phase, Site, SiteKind, TensorStats
from neuraldbg.trace.tables import KIND_CODE, PHASE_CODE

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

Columns = Mapping[str, NDArray[Any]]
KIND_OF = {code: kind for kind, code in KIND_CODE.items()}
_EVAL = PHASE_CODE[Phase.EVAL]
_CODES = 16  # more than there are kinds or phases
_DENSE = 50_000_000
_INDEX_COLUMNS = ("step", "seq", "site", "kind", "phase", "slot", "nan_count", "inf_count")
_VALUE_COLUMNS = ("count", "mean", "std", "min", "max", "l2", "zero_count", "nan_count", "inf_count", "digest")


@dataclass(frozen=True, slots=True)
class LayerSummary:
    """One module with everything recorded about it and its parameters. None where nothing was recorded."""

    path: str
    aliases: tuple[str, ...]
    type: str | None
    params: int | None
    stats: Mapping[str, TensorStats]  # activation, gradient (of the output), parameter, parameter_gradient, update
    stats_step: int | None  # step of the latest statistics
    first_bad_step: int | None  # first step with a NaN or an infinity
    first_bad_seq: int | None  # orders the layers that went bad in the same step
    bad_kind: str | None  # what held it: "activation", "gradient", "parameter", ...
    bad_word: str | None  # "NaN", "Inf" or "NaN+Inf", at that step
    forward_ms: float | None
    backward_ms: float | None
    memory_bytes: int | None
    flops: int | None
    grad_l2: float | None  # norm over the gradients of its parameters
    update_ratio: float | None  # ||update|| / ||parameter|| over its weight tensors, last recorded update
    shape: tuple[int, ...] | None
    source: str | None


@dataclass(slots=True)
class _Owned:
    """A module, the model site it is the root of, and the parameter sites that belong to it."""

    site: Site
    twins: list[Site] = field(default_factory=list)
    parameters: list[Site] = field(default_factory=list)

    @property
    def module_ids(self) -> list[int]:
        return [self.site.id, *(site.id for site in self.twins)]

    @property
    def ids(self) -> list[int]:
        return list(dict.fromkeys([*self.module_ids, *(site.id for site in self.parameters)]))


def summarise_layers(trace: Trace) -> tuple[LayerSummary, ...]:
    """The layers of a run in the order first seen; containers that hold no number of their own are left out."""
    index = trace.table("stats", columns=_INDEX_COLUMNS)
    bad = _first_bad(index)
    latest, stats = _picked(trace, _latest_rows(index))
    del index
    spans = _Spans(trace.table("spans", columns=("site", "phase", "duration_ns", "host_bytes", "device_bytes")))
    layers: list[LayerSummary] = []
    for owned in _with_parameters(trace.sites):
        rows = {
            (site_id, kind): latest[site_id, kind]
            for site_id in owned.ids
            for kind in KIND_OF
            if (site_id, kind) in latest
        }
        if _worth_a_line(owned, rows, bad) or not (_is_model(owned) or _is_container(owned.site, trace.sites)):
            layers.append(_layer(trace, owned, stats, rows, (bad, spans)))
    return tuple(layers)


def _worth_a_line(owned: _Owned, rows: Mapping[tuple[int, int], int], bad: Mapping[int, Any]) -> bool:
    """Whether something was seen of this module itself, not only of those inside it."""
    if owned.parameters or any(site_id in bad for site_id in owned.module_ids):
        return True
    own_kinds = (KIND_CODE[Kind.ACTIVATION], KIND_CODE[Kind.GRADIENT])
    return any((site_id, kind) in rows for site_id in owned.module_ids for kind in own_kinds)


def _is_model(owned: _Owned) -> bool:
    return owned.site.kind is SiteKind.MODEL or bool(owned.twins)


def _layer(
    trace: Trace,
    owned: _Owned,
    stats: Columns,
    rows: Mapping[tuple[int, int], int],
    measured: tuple[Mapping[int, _Bad], _Spans],
) -> LayerSummary:
    bad, spans = measured
    site = owned.site
    first_bad = min((bad[site_id] for site_id in owned.ids if site_id in bad), default=None, key=_Bad.order)
    return LayerSummary(
        path=trace.canonical(site),
        aliases=tuple(trace.aliases(site)),
        type=site.op,
        params=_parameter_count(owned),
        stats=_stats_by_kind(owned, stats, rows),
        stats_step=max((int(stats["step"][row]) for row in rows.values()), default=None),
        first_bad_step=first_bad.step if first_bad else None,
        first_bad_seq=first_bad.seq if first_bad else None,
        bad_kind=_bad_kind(owned, first_bad) if first_bad else None,
        bad_word=first_bad.word if first_bad else None,
        forward_ms=_forward_ms(spans, owned),
        backward_ms=spans.mean_ms(site.id, Phase.BACKWARD),
        memory_bytes=spans.output_bytes(site.id),
        flops=site.flops,
        grad_l2=_joint_l2(owned.parameters, Kind.GRADIENT, stats, rows),
        update_ratio=_update_ratio(owned.parameters, stats, rows),
        shape=site.shape,
        source=site.source or site.defined,
    )


def _forward_ms(spans: _Spans, owned: _Owned) -> float | None:
    """Of training passes; of evaluation where there was no other."""
    for phase in (Phase.FORWARD, Phase.EVAL):
        for site_id in owned.module_ids:
            found = spans.mean_ms(site_id, phase)
            if found is not None:
                return found
    return None


def _with_parameters(sites: Iterable[Site]) -> list[_Owned]:
    """Modules and models in order of appearance, each with the parameters it owns directly."""
    sites = list(sites)
    owned = {site.id: _Owned(site) for site in sites if site.kind in (SiteKind.MODEL, SiteKind.MODULE)}
    by_path = {(site.model, site.path): site.id for site in sites if site.kind is SiteKind.MODULE}
    for (model, path), root in by_path.items():
        if not path and model in owned:
            owned[root].twins.append(owned.pop(model).site)
    for site in sites:
        if site.kind is SiteKind.PARAMETER:
            home = by_path.get((site.model, site.path.rpartition(".")[0]), site.model)
            if home in owned:
                owned[home].parameters.append(site)
            else:  # a raw tensor with a gradient, of no module
                owned[site.id] = _Owned(site, parameters=[site])
    return list(owned.values())


def _is_container(site: Site, sites: Iterable[Site]) -> bool:
    below = f"{site.path}." if site.path else ""
    return any(
        other.kind is SiteKind.MODULE
        and other.model == site.model
        and other.id != site.id
        and other.path.startswith(below)
        for other in sites
    )


def _parameter_count(owned: _Owned) -> int | None:
    if owned.site.parameters is not None and owned.site.kind is SiteKind.MODULE:
        return owned.site.parameters  # owned directly, as the site says
    sizes = [_elements(site) for site in owned.parameters]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return None
    return sum(known) if owned.parameters else None


def _elements(site: Site) -> int | None:
    if site.parameters is not None:
        return site.parameters
    return math.prod(site.shape) if site.shape is not None else None


def _latest_rows(index: Columns) -> dict[tuple[int, int], int]:
    """(site, kind) -> its last row; first output only, and evaluation only where nothing else was seen."""
    found: dict[tuple[int, int], int] = {}
    first_slot = index["slot"] == 0
    for chosen in (first_slot & (index["phase"] == _EVAL), first_slot & (index["phase"] != _EVAL)):
        rows = np.flatnonzero(chosen)
        names, group = _grouped(index["site"][rows], index["kind"][rows])
        last = np.full(len(names), -1, dtype=np.int64)
        np.maximum.at(last, group, rows)
        found.update(zip(names, last.tolist(), strict=True))
    return found


def _grouped(site: NDArray[Any], code: NDArray[Any]) -> tuple[list[tuple[int, int]], NDArray[np.int64]]:
    """The distinct (site, code) pairs, and for every row which of them it has. Without sorting where ids are dense."""
    key = site.astype(np.int64) * _CODES + code
    if len(key) and key.min() >= 0 and key.max() < _DENSE:
        present = np.zeros(int(key.max()) + 1, dtype=np.bool_)
        present[key] = True
        names, group = np.flatnonzero(present), (np.cumsum(present) - 1)[key]
    else:
        names, group = np.unique(key, return_inverse=True)
    return [divmod(name, _CODES) for name in names.tolist()], group


def _picked(trace: Trace, latest: dict[tuple[int, int], int]) -> tuple[dict[tuple[int, int], int], Columns]:
    """Only the values of the wanted rows, column by column: a long run has more rows than fit in memory at once."""
    rows = np.array(sorted(set(latest.values())), dtype=np.int64)
    columns = {name: trace.table("stats", columns=(name,))[name][rows] for name in ("step", *_VALUE_COLUMNS)}
    places = np.searchsorted(rows, np.array(list(latest.values()), dtype=np.int64))
    return dict(zip(latest, places.tolist(), strict=True)), columns


@dataclass(frozen=True, slots=True)
class _Bad:
    """The first row of a site that holds a NaN or an infinity."""

    site: int
    step: int
    seq: int
    kind: Kind
    word: str

    def order(self) -> tuple[int, int]:
        return self.step, self.seq


def _first_bad(index: Columns) -> dict[int, _Bad]:
    rows = np.flatnonzero((index["nan_count"] > 0) | (index["inf_count"] > 0))
    rows = rows[np.lexsort((index["seq"][rows], index["step"][rows], index["site"][rows]))]
    sites, first = np.unique(index["site"][rows], return_index=True)
    found = {}
    for site, row in zip(sites.tolist(), rows[first].tolist(), strict=True):
        nan, inf = index["nan_count"][row] > 0, index["inf_count"][row] > 0
        word = "NaN+Inf" if nan and inf else "NaN" if nan else "Inf"
        kind = KIND_OF[int(index["kind"][row])]
        found[site] = _Bad(site, int(index["step"][row]), int(index["seq"][row]), kind, word)
    return found


def _bad_kind(owned: _Owned, bad: _Bad) -> str:
    of_parameter = bad.site not in owned.module_ids
    return "parameter_gradient" if of_parameter and bad.kind is Kind.GRADIENT else bad.kind.value


def tensor_stats(stats: Columns, row: int) -> TensorStats:
    """One row of the statistics table as a record; a column without a finite value is None."""
    values = {name: stats[name][row].item() for name in _VALUE_COLUMNS}
    for name in ("mean", "std", "min", "max", "l2"):
        values[name] = None if math.isnan(values[name]) else values[name]
    values["digest"] = values["digest"] or None
    return TensorStats(**values)


def _stats_by_kind(owned: _Owned, stats: Columns, rows: Mapping[tuple[int, int], int]) -> dict[str, TensorStats]:
    found = {
        KIND_OF[kind].value: tensor_stats(stats, row)
        for (site_id, kind), row in rows.items()
        if site_id in owned.module_ids
    }
    weight = _weights(owned.parameters)[:1]
    for site in weight:
        for kind, name in (
            (Kind.PARAMETER, "parameter"),
            (Kind.GRADIENT, "parameter_gradient"),
            (Kind.UPDATE, "update"),
        ):
            row = rows.get((site.id, KIND_CODE[kind]))
            if row is not None:
                found[name] = tensor_stats(stats, row)
    return found


def _weights(parameters: list[Site]) -> list[Site]:
    """Weight tensors, largest first: those with two or more dimensions, or all where there is none."""
    matrices = [site for site in parameters if site.shape is not None and len(site.shape) >= 2]
    return sorted(matrices or parameters, key=lambda site: -(_elements(site) or 0))


def _joint_l2(parameters: list[Site], kind: Kind, stats: Columns, rows: Mapping[tuple[int, int], int]) -> float | None:
    squares = 0.0
    seen = False
    for site in parameters:
        row = rows.get((site.id, KIND_CODE[kind]))
        if row is not None:
            if math.isnan(stats["l2"][row]):
                return None
            squares += float(stats["l2"][row]) ** 2
            seen = True
    return math.sqrt(squares) if seen else None


def _update_ratio(parameters: list[Site], stats: Columns, rows: Mapping[tuple[int, int], int]) -> float | None:
    """Only weights whose update and value were both recorded count; None when there is none or they are all zero."""
    both = [
        site
        for site in _weights(parameters)
        if (site.id, KIND_CODE[Kind.UPDATE]) in rows and (site.id, KIND_CODE[Kind.PARAMETER]) in rows
    ]
    update = _joint_l2(both, Kind.UPDATE, stats, rows)
    size = _joint_l2(both, Kind.PARAMETER, stats, rows)
    return update / size if update is not None and size else None


class _Spans:
    """Mean durations and output sizes per site and phase."""

    def __init__(self, spans: Columns) -> None:
        names, group = _grouped(spans["site"], spans["phase"])
        counts = np.bincount(group, minlength=len(names))
        totals = np.bincount(group, weights=spans["duration_ns"], minlength=len(names))
        self._count = dict(zip(names, counts.tolist(), strict=True))
        self._total_ns = dict(zip(names, totals.tolist(), strict=True))
        known = (spans["host_bytes"] >= 0) | (spans["device_bytes"] >= 0)
        rows = np.flatnonzero(known & (spans["phase"] != PHASE_CODE[Phase.BACKWARD]))
        places, group = _grouped(spans["site"][rows], np.zeros(len(rows), dtype=np.int64))
        last = np.full(len(places), -1, dtype=np.int64)
        np.maximum.at(last, group, rows)
        held = np.maximum(spans["host_bytes"][last], 0) + np.maximum(spans["device_bytes"][last], 0)
        self._bytes = {site: size for (site, _), size in zip(places, held.tolist(), strict=True)}

    def mean_ms(self, site_id: int, phase: Phase) -> float | None:
        key = (site_id, PHASE_CODE[phase])
        return self._total_ns[key] / self._count[key] / 1e6 if key in self._count else None

    def output_bytes(self, site_id: int) -> int | None:
        return self._bytes.get(site_id)
