"""The anomalies of a recorded run: its layers and series, step by step, through the detector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.anomalies.detector import AnomalyDetector
from neuraldbg.records import Kind, Phase, Site, SiteKind
from neuraldbg.trace.tables import KIND_CODE, PHASE_CODE

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

STEPS_AT_ONCE = 256  # read together: a long run never lies in memory as a whole
BYTES_PER_MB = 1_000_000
_STATS = (
    "step",
    "rank",
    "site",
    "kind",
    "phase",
    "slot",
    "count",
    "mean",
    "l2",
    "zero_count",
    "nan_count",
    "inf_count",
)
_SPANS = ("step", "rank", "site", "phase", "duration_ns", "host_bytes", "device_bytes")
_SCALARS = ("step", "rank", "site", "value")
# series of what somebody chose (a new value there is a decision) and of the machine, whose load is not the training's
SET_NOT_MEASURED = ("lr", "loss_scale", "resource")
Columns = Mapping[str, NDArray[Any]]
Keys = NDArray[np.int64]
Samples = dict[tuple[int, int, int], dict[str, float]]  # by step, rank and number of the layer


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A sample of a layer, or of a series of the whole run, that is unlike those before it."""

    step: int
    layer: str | None  # None: of the run, such as its loss or what the user has recorded
    rank: int
    metrics: tuple[str, ...]  # those that are unusual
    methods: tuple[str, ...]  # which find them so
    scores: Mapping[str, float]  # as detect_anomalies gives them; that of the forest only where its vote decided
    values: Mapping[str, float]  # what was measured; NaN where a tensor held a NaN or an infinity

    @property
    def severity(self) -> float:
        """The largest distance among its unusual metrics, in standard deviations; else what a subclass gave it."""
        worst = [abs(self.scores[name]) for name in self.metrics if name in self.scores]
        return max(worst, default=abs(self.scores.get("custom", 0.0)))


@dataclass(frozen=True, slots=True)
class Sample:
    """What was measured of one layer or series in one step."""

    step: int
    layer: str | None
    rank: int
    values: Mapping[str, float]

    @property
    def remembered_as(self) -> str:
        """Each rank's layers and every series are compared only with their own past."""
        name = self.layer if self.layer is not None else f"series {next(iter(self.values))}"
        return name if self.rank == 0 else f"{name} of rank {self.rank}"


def anomalies_of(trace: Trace, detector: AnomalyDetector | None = None) -> Iterator[Anomaly]:
    """In the order of the steps. A `detector` remembers what it was shown: give it again, with
    `trace.between(next_step, None)`, to go on where an earlier call ended."""
    judge = detector if detector is not None else AnomalyDetector()
    for sample in samples_of(trace):
        found = judged(sample, judge)
        if found is not None:
            yield found


def judged(sample: Sample, detector: AnomalyDetector) -> Anomaly | None:
    """By what is remembered, to which the sample is then added."""
    name, values = sample.remembered_as, sample.values
    found = detector.judge(name, values, every_score=False)
    detector.add_sample(name, values)
    if not found.is_anomaly:
        return None
    return Anomaly(sample.step, sample.layer, sample.rank, found.metrics, found.methods, found.scores, values)


def samples_of(trace: Trace) -> Iterator[Sample]:
    """Of layers in training passes: execution_time (seconds per call), memory (MB of output), mean_activation,
    zero_ratio, and grad_norm (of the layer's own parameters, else of its output). Of the run: every series that is
    measured, by its own name."""
    layers = _Layers(trace.sites)
    steps = trace.steps
    for first in range(0, len(steps), STEPS_AT_ONCE):
        window = (int(steps[first]), int(steps[min(first + STEPS_AT_ONCE, len(steps)) - 1]))
        samples: Samples = {}
        _take_spans(samples, layers, trace.table("spans", _SPANS, between=window))
        _take_stats(samples, layers, trace.table("stats", _STATS, between=window))
        _take_scalars(samples, layers, trace.table("scalars", _SCALARS, between=window))
        for (step, rank, number), values in sorted(samples.items()):
            site = layers.sites[number]
            yield Sample(step, None if site in layers.series else trace.canonical(site), rank, values)


class _Layers:
    """The layer that each site belongs to: a parameter to its module, a model to the module that is its root."""

    def __init__(self, sites: list[Site]) -> None:
        modules = {(site.model, site.path): site.id for site in sites if site.kind is SiteKind.MODULE}
        known = [site for site in sites if site.kind in (SiteKind.MODULE, SiteKind.MODEL, SiteKind.PARAMETER)]
        self.series = {site.id: site.path for site in sites if site.kind is SiteKind.SERIES and _is_measured(site.path)}
        known += [site for site in sites if site.id in self.series]
        self.sites = [site.id for site in known]
        numbers = {site.id: number for number, site in enumerate(known)}
        self._of: dict[int, int] = {}
        self.with_parameters: set[int] = set()
        self.parameters = np.array([site.id for site in known if site.kind is SiteKind.PARAMETER], dtype=np.int64)
        for site in known:
            owner = site.id
            if site.kind is SiteKind.PARAMETER:
                owner = modules.get((site.model, site.path.rpartition(".")[0]), site.id)
                self.with_parameters.add(numbers[owner])
            elif site.kind is SiteKind.MODEL:
                owner = modules.get((site.id, ""), site.id)
            self._of[site.id] = numbers[owner]

    def of(self, sites: NDArray[np.int32]) -> Keys:
        """Numbers of layers; -1 for a site that is none of any layer."""
        distinct, which = np.unique(sites, return_inverse=True)
        return np.array([self._of.get(site, -1) for site in distinct.tolist()], dtype=np.int64)[which]


def _take_spans(samples: Samples, layers: _Layers, spans: Columns) -> None:
    rows = _only(spans, (spans["phase"] == PHASE_CODE[Phase.FORWARD]) & (layers.of(spans["site"]) >= 0))
    keys, group = _by_layer(rows, layers)
    seconds = np.bincount(group, weights=rows["duration_ns"] / 1e9, minlength=len(keys))
    _put(samples, "execution_time", keys, seconds / np.maximum(np.bincount(group, minlength=len(keys)), 1))
    largest = np.full(len(keys), -1.0)
    known = np.maximum(rows["host_bytes"], 0) + np.maximum(rows["device_bytes"], 0)
    np.maximum.at(largest, group, np.where((rows["host_bytes"] >= 0) | (rows["device_bytes"] >= 0), known, -1.0))
    _put(samples, "memory", keys[largest >= 0], largest[largest >= 0] / BYTES_PER_MB)


def _take_stats(samples: Samples, layers: _Layers, stats: Columns) -> None:
    training = (stats["phase"] != PHASE_CODE[Phase.EVAL]) & (layers.of(stats["site"]) >= 0) & (stats["slot"] == 0)
    _take_activations(samples, layers, _only(stats, training & (stats["kind"] == KIND_CODE[Kind.ACTIVATION])))
    gradients = _only(stats, training & (stats["kind"] == KIND_CODE[Kind.GRADIENT]))
    of_parameter = np.isin(gradients["site"], layers.parameters)
    owned = np.isin(layers.of(gradients["site"]), list(layers.with_parameters))
    _take_gradients(samples, layers, _only(gradients, of_parameter | ~owned))


def _take_activations(samples: Samples, layers: _Layers, rows: Columns) -> None:
    """Mean over the calls of a step; NaN where one of them gave a NaN or an infinity, absent where all were empty."""
    rows = _only(rows, rows["count"] > 0)
    keys, group = _by_layer(rows, layers)
    calls = np.maximum(np.bincount(group, minlength=len(keys)), 1)
    means = np.where(_is_bad(rows), np.nan, rows["mean"])
    _put(samples, "mean_activation", keys, np.bincount(group, weights=means, minlength=len(keys)) / calls)
    zero = rows["zero_count"] / rows["count"]
    _put(samples, "zero_ratio", keys, np.bincount(group, weights=zero, minlength=len(keys)) / calls)


def _take_gradients(samples: Samples, layers: _Layers, rows: Columns) -> None:
    """The norm over all tensors of the layer, each as it was last in the step."""
    place = np.stack([rows[name].astype(np.int64)[::-1] for name in ("step", "rank", "site")], axis=1)
    last = np.unique(place, axis=0, return_index=True)[1]
    rows = _only(rows, len(place) - 1 - last)
    rows = _only(rows, (rows["count"] > 0) & (_is_bad(rows) | ~np.isnan(rows["l2"])))
    keys, group = _by_layer(rows, layers)
    squares = np.where(_is_bad(rows), np.nan, np.square(rows["l2"]))
    _put(samples, "grad_norm", keys, np.sqrt(np.bincount(group, weights=squares, minlength=len(keys))))


def _take_scalars(samples: Samples, layers: _Layers, scalars: Columns) -> None:
    """Mean over what a step recorded: NaN or infinite where one of its values was."""
    for site, name in layers.series.items():
        rows = _only(scalars, scalars["site"] == site)
        if len(rows["site"]):
            keys, group = _by_layer(rows, layers)
            with np.errstate(invalid="ignore"):  # an infinity and its opposite
                total = np.bincount(group, weights=rows["value"], minlength=len(keys))
            _put(samples, name, keys, total / np.bincount(group, minlength=len(keys)))


def _is_measured(series: str) -> bool:
    return series.partition(".")[0] not in SET_NOT_MEASURED


def _is_bad(rows: Columns) -> NDArray[np.bool_]:
    return (rows["nan_count"] > 0) | (rows["inf_count"] > 0)


def _only(columns: Columns, rows: NDArray[Any]) -> Columns:
    return {name: column[rows] for name, column in columns.items()}


def _by_layer(rows: Columns, layers: _Layers) -> tuple[Keys, NDArray[np.intp]]:
    """The distinct (step, rank, layer) of the rows, and for every row which of them it is."""
    place = np.stack([rows["step"], rows["rank"].astype(np.int64), layers.of(rows["site"])], axis=1)
    keys, group = np.unique(place, axis=0, return_inverse=True)
    return keys, group.ravel()


def _put(samples: Samples, metric: str, keys: Keys, values: NDArray[np.float64]) -> None:
    for key, value in zip(keys.tolist(), values.tolist(), strict=True):
        samples.setdefault((key[0], key[1], key[2]), {})[metric] = value
