"""The gradient debugger: what flows back through every layer, how that develops, and whether it is healthy."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis import gradients as judge
from neuraldbg.analysis.results import Result
from neuraldbg.capture.arrays import Numbers, numbers_of
from neuraldbg.capture.kernels import memory
from neuraldbg.debug.record import Record
from neuraldbg.debug.settings import DebugConfig, Sampling
from neuraldbg.debug.tensors import whole_row
from neuraldbg.errors import UnknownLayer
from neuraldbg.records import Kind

MOST_LAYERS: Final = 10_000
MOST_UNITS: Final = 2**20  # of a layer that are followed one by one


class LayerHealth(Enum):
    """How a layer stands."""

    Healthy = "healthy"
    Warning = "warning"
    Critical = "critical"
    Unknown = "unknown"


class GradientTrend(Enum):
    """Where the norm of a layer goes."""

    Unknown = "unknown"
    Increasing = "increasing"
    Decreasing = "decreasing"
    Stable = "stable"


_TRENDS: Final = {
    "rising": GradientTrend.Increasing,
    "falling": GradientTrend.Decreasing,
    "steady": GradientTrend.Stable,
}


@dataclass(frozen=True, eq=False)
class GradientFlow(Result):
    """One layer's gradient at one step. Of a gradient that only the norm was told of, the rest is None."""

    layer_name: str
    step: int
    gradient_norm: float  # nan where a value is
    gradient_mean: float | None = None
    gradient_std: float | None = None
    gradient_max: float | None = None
    gradient_min: float | None = None
    dead_neurons_ratio: float | None = None  # share of units whose gradient is all zero at this step
    active_neurons_ratio: float | None = None
    elements: int | None = None
    timestamp: float = 0.0


@dataclass(frozen=True, eq=False)
class LayerGradients(Result):
    """How one layer stands."""

    layer_name: str
    health: LayerHealth
    trend: GradientTrend
    issues: tuple[str, ...]
    last_norm: float
    mean_norm: float | None
    dead_neurons_ratio: float | None  # share of units without a gradient in the last records; None: too few
    records: int


@dataclass(frozen=True, eq=False)
class GradientFlowAnalysis(Result):
    """All layers, in the order they were first recorded. `health_score` is 1 where all are healthy; None without."""

    overall_health: LayerHealth
    health_score: float | None
    layers: dict[str, LayerGradients]
    vanishing_layers: tuple[str, ...]
    exploding_layers: tuple[str, ...]
    dead_layers: tuple[str, ...]
    bad_layers: tuple[str, ...]  # NaN or infinite
    decay_per_layer: float | None  # factor by which the norm shrinks from one layer to the one before it
    recommendations: tuple[str, ...]


class _Layer:
    """The newest records of one layer, and of each of its units when it last had a gradient. `told`: by somebody who
    has the values, not read from a trace."""

    def __init__(self, most: int, *, told: bool) -> None:
        self.flows: deque[GradientFlow] = deque(maxlen=most)
        self.told = told
        self.records = 0
        self.active_at: NDArray[np.int64] | None = None

    def units(self, active: NDArray[np.bool_] | None) -> None:
        self.records += 1
        if active is None or active.size > MOST_UNITS:
            self.active_at = None
        elif self.active_at is None or self.active_at.size != active.size:
            self.active_at = np.where(active, self.records, self.records - 1)
        else:
            self.active_at[active] = self.records

    def dead_ratio(self, window: int) -> float | None:
        if self.active_at is None or self.records < window or not self.active_at.size:
            return None
        return float((self.active_at <= self.records - window).mean())


class GradientDebugger:
    """Keeps the newest `max_gradient_history` records of each layer."""

    def __init__(self, config: DebugConfig, record: Record) -> None:
        self._config, self._record = config, record
        self._limits = config.gradients
        self._layers: dict[str, _Layer] = {}
        self._sampling = Sampling(config.sampling_rate)
        self._lock = threading.RLock()
        self.pull: Callable[[], None] | None = None  # fetches what a watched model has recorded by itself

    def __call__(self) -> GradientDebugger:
        return self

    def record_gradient_flow(self, layer: str, gradients: Any) -> GradientFlow | None:
        """From the values of a gradient: any array or tensor. None where this call is not sampled. One without values
        is no record of its layer."""
        step = self._sampled(layer)
        return None if step is None else self.took(layer, numbers_of(gradients), step)

    def _sampled(self, layer: str) -> int | None:
        """The step of this record; None where it is not taken. Those that are not count too."""
        if not self._config.enable_gradient_debugging:
            return None
        step = self._record.comes((Kind.GRADIENT, layer))
        return step if self._sampling.takes(layer) else None

    def took(self, layer: str, numbers: Numbers, step: int) -> GradientFlow:
        """A record of values that somebody has at hand already, such as a hook."""
        row = whole_row(memory.measured(numbers.flat(), numbers.element), numbers)
        count, mean, std, low, high, l2, _, nans, infs, _ = row
        bad = bool(nans or infs)
        active = _active_units(numbers)
        dead = None if active is None or not active.size else float(1 - active.mean())
        flow = GradientFlow(
            layer_name=layer,
            step=step,
            gradient_norm=0.0 if not count else math.nan if bad else l2,
            gradient_mean=None if math.isnan(mean) else mean,
            gradient_std=None if math.isnan(std) else std,
            gradient_max=None if math.isnan(high) else high,
            gradient_min=None if math.isnan(low) else low,
            dead_neurons_ratio=dead,
            active_neurons_ratio=None if dead is None else 1 - dead,
            elements=count,
            timestamp=time.time(),
        )
        if count:
            self._keep(flow, active)
            self._record.stats(layer, Kind.GRADIENT, row, step=step)
        return flow

    def record_gradient_norm(self, layer: str, norm: Any) -> GradientFlow | None:
        """Where only the norm is at hand."""
        step = self._sampled(layer)
        if step is None:
            return None
        flow = GradientFlow(layer, step, float(norm), timestamp=time.time())
        self._keep(flow, None)
        self._record.norm(layer, float(norm), step=step)
        return flow

    def add(self, flow: GradientFlow) -> None:
        """One that is in the trace already. Layers that are told of otherwise keep to that: the gradient of an output
        and that of a weight make no curve together."""
        self._keep(flow, None, told=False)

    def _keep(self, flow: GradientFlow, active: NDArray[np.bool_] | None, *, told: bool = True) -> None:
        with self._lock:
            layer = self._layers.get(flow.layer_name)
            if layer is None and len(self._layers) >= MOST_LAYERS:
                return
            if layer is None or (told and not layer.told):
                layer = self._layers[flow.layer_name] = _Layer(self._config.max_gradient_history, told=told)
            if layer.told is told:
                layer.flows.append(flow)
                layer.units(active)

    # -- asking ------------------------------------------------------------------------------------------------------

    def get_flow(self, layer: str) -> list[GradientFlow]:
        """The newest records of a layer, oldest first."""
        self._pull()
        if layer not in self._layers:
            raise UnknownLayer(layer, self._layers)
        return list(self._layers[layer].flows)

    def flows(self) -> dict[str, list[GradientFlow]]:
        """The newest records of every layer, oldest first."""
        self._pull()
        with self._lock:
            return {name: list(one.flows) for name, one in self._layers.items()}

    def get_trend(self, layer: str) -> GradientTrend:
        """Unknown below eight records."""
        told = judge.trend([flow.gradient_norm for flow in self.get_flow(layer)])
        return GradientTrend.Unknown if told is None else _TRENDS[told]

    def clear(self) -> None:
        """Forgets every record; the trace has them."""
        with self._lock:
            self._layers.clear()

    def _pull(self) -> None:
        if self.pull is not None:
            self.pull()

    def analyze_gradient_flow(self) -> GradientFlowAnalysis:
        """Every layer held against the limits, against its own past and against the others."""
        self._pull()
        with self._lock:
            layers = dict(self._layers)
        curves = {name: _curve(one) for name, one in layers.items()}
        faded = set(judge.vanishing(curves, threshold=self._limits.vanishing_threshold))
        alike = [{name: curves[name] for name, one in layers.items() if one.told is told} for told in (False, True)]
        for group in alike:
            faded |= set(judge.vanishing({name: one for name, one in group.items() if one.size > 1}))
        grown = set(judge.exploding(curves)) | set(judge.exploding(curves, threshold=self._limits.exploding_threshold))
        told = {name: self._of_layer(name, one, name in faded, name in grown) for name, one in layers.items()}
        bad = tuple(name for name, one in told.items() if not math.isfinite(one.last_norm))
        scores = [_SCORES[one.health] for one in told.values() if one.health is not LayerHealth.Unknown]
        dead = tuple(name for name, one in told.items() if self._is_dead(one))
        return GradientFlowAnalysis(
            overall_health=_worst(told),
            health_score=sum(scores) / len(scores) if scores else None,
            layers=told,
            vanishing_layers=tuple(name for name in told if name in faded),
            exploding_layers=tuple(name for name in told if name in grown and name not in bad),
            dead_layers=dead,
            bad_layers=bad,
            decay_per_layer=judge.decay_per_layer(max(alike, key=len)),
            recommendations=tuple(_recommended(bool(faded), bool(grown - set(bad)), bool(dead), bool(bad))),
        )

    def _is_dead(self, one: LayerGradients) -> bool:
        ratio = one.dead_neurons_ratio
        return ratio is not None and ratio > self._limits.dead_neuron_threshold

    def _of_layer(self, name: str, layer: _Layer, faded: bool, grown: bool) -> LayerGradients:
        norms = [flow.gradient_norm for flow in layer.flows]
        finite = [norm for norm in norms if math.isfinite(norm)]
        dead = layer.dead_ratio(self._limits.no_gradient_steps)
        trend = judge.trend(norms)
        issues = list(self._issues(norms, finite, dead, faded, grown))
        return LayerGradients(
            layer_name=name,
            health=max((health for health, _ in issues), key=_ORDER.index, default=LayerHealth.Healthy),
            trend=GradientTrend.Unknown if trend is None else _TRENDS[trend],
            issues=tuple(text for _, text in issues),
            last_norm=norms[-1],
            mean_norm=sum(finite) / len(finite) if finite else None,
            dead_neurons_ratio=dead,
            records=layer.records,
        )

    def _issues(
        self, norms: list[float], finite: list[float], dead: float | None, faded: bool, grown: bool
    ) -> list[tuple[LayerHealth, str]]:
        limits, found = self._limits, []
        if not math.isfinite(norms[-1]):
            found.append((LayerHealth.Critical, "the gradient is NaN or infinite"))
        still = limits.no_gradient_steps
        if len(norms) >= still and not any(norms[-still:]):
            found.append((LayerHealth.Critical, f"no gradient in the last {still} records"))
        elif faded:
            found.append((LayerHealth.Critical, f"the gradient has vanished: its norm is {norms[-1]:.3g}"))
        if grown and math.isfinite(norms[-1]):
            much = norms[-1] > 10 * limits.exploding_threshold
            found.append(
                (LayerHealth.Critical if much else LayerHealth.Warning, f"the norm has grown to {norms[-1]:.3g}")
            )
        if dead is not None and dead > limits.dead_neuron_threshold:
            found.append((LayerHealth.Warning, f"{dead:.0%} of its units had no gradient in the last {still} records"))
        if len(finite) > 1 and float(np.var(finite)) > limits.oscillation_variance_threshold:
            found.append((LayerHealth.Warning, f"the norm swings: its variance is {float(np.var(finite)):.3g}"))
        return found


_ORDER: Final = [LayerHealth.Unknown, LayerHealth.Healthy, LayerHealth.Warning, LayerHealth.Critical]
_SCORES: Final = {LayerHealth.Healthy: 1.0, LayerHealth.Warning: 0.5, LayerHealth.Critical: 0.0}


def _worst(layers: dict[str, LayerGradients]) -> LayerHealth:
    return max((one.health for one in layers.values()), key=_ORDER.index, default=LayerHealth.Unknown)


def _curve(layer: _Layer) -> judge.LayerGradients:
    sizes = [flow.elements for flow in layer.flows if flow.elements]
    norms = [flow.gradient_norm for flow in layer.flows]
    return judge.LayerGradients([flow.step for flow in layer.flows], norms, sizes[-1] if sizes else 1)


def _active_units(numbers: Numbers) -> NDArray[np.bool_] | None:
    """Which units (entries of the first axis, or values of a vector) have a gradient other than zero; None for what is
    not stored in full."""
    stored = numbers.compact
    if numbers.sparse or not stored.size or stored.ndim == 0:
        return None
    unsigned = {"float8_e4m3fn": 0x7F, "float8_e5m2": 0x7F, "bfloat16": 0x7FFF}.get(numbers.dtype)
    units = stored.reshape(len(stored), -1) if stored.ndim > 1 else stored
    active = units != 0 if unsigned is None else units & unsigned != 0
    return np.asarray(active.any(axis=1) if active.ndim > 1 else active)


def _recommended(vanishing: bool, exploding: bool, dead: bool, bad: bool) -> list[str]:
    found = []
    if bad:
        found.append("find the operation that makes the first NaN or Inf: neural debug --alert-on-nan train.py")
    if vanishing:
        found.append(
            "vanishing gradients: batch normalisation, ReLU instead of a saturating activation, skip connections"
        )
    if exploding:
        found.append(
            "exploding gradients: a smaller learning rate, or torch.nn.utils.clip_grad_norm_(..., max_norm=1.0)"
        )
    if dead:
        found.append("dead units: LeakyReLU, another initialisation, a smaller learning rate")
    return found
