"""Model diagnostics: what the model is, how its training goes, and how healthy both are."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from neuraldbg.analysis.dynamics import ConvergenceStatus, TrainingDynamics, TrainingStability, dynamics_of
from neuraldbg.analysis.results import Result
from neuraldbg.debug.architecture import ModelArchitectureInfo, architecture_of
from neuraldbg.debug.record import Record
from neuraldbg.debug.settings import DebugConfig

PERFORMANCE_DROP: Final = 0.5  # of the throughput seen before
FEWEST_RATES: Final = 8
SERIES: Final = {  # field -> series of the trace
    "loss": "loss",
    "accuracy": "user.accuracy",
    "learning_rate": "lr",
    "throughput_samples_per_sec": "user.throughput",
    "memory_usage_mb": "user.memory_mb",
    "gpu_utilization": "user.gpu_utilization",
    "validation_loss": "eval_loss",
    "validation_accuracy": "user.validation_accuracy",
}
BESIDE: Final = {"loss": "loss.user", "learning_rate": "user.lr"}  # where a watched model writes its own


@dataclass(frozen=True, eq=False)
class ModelPerformanceMetrics(Result):
    """One moment of a training. What was not measured is None."""

    training_step: int
    loss: float
    accuracy: float | None = None
    learning_rate: float | None = None
    batch_size: int | None = None
    throughput_samples_per_sec: float | None = None
    memory_usage_mb: float | None = None
    gpu_utilization: float | None = None
    timestamp: Any = None
    validation_loss: float | None = None
    validation_accuracy: float | None = None


@dataclass(frozen=True, eq=False)
class DiagnosticsReport(Result):
    """`health_score` is 1 where nothing is wrong, 0 for a loss that is not finite; None where nothing was recorded."""

    architecture: ModelArchitectureInfo | None
    dynamics: TrainingDynamics
    anomalies: tuple[str, ...]
    health_score: float | None
    recommendations: tuple[str, ...]
    records: int


class ModelDiagnostics:
    """Keeps the newest `max_performance_history` records. Of a watched model those of its trace, by their steps, with
    what else was recorded at the same step."""

    def __init__(self, config: DebugConfig, record: Record) -> None:
        self._config, self._record = config, record
        self._told: deque[tuple[int, ModelPerformanceMetrics]] = deque(maxlen=config.max_performance_history)
        self._seen: deque[ModelPerformanceMetrics] = deque(maxlen=config.max_performance_history)
        self._lock = threading.RLock()
        self.architecture: ModelArchitectureInfo | None = None
        self.pull: Callable[[], None] | None = None

    def __call__(self) -> ModelDiagnostics:
        return self

    def record_architecture(self, architecture: Any) -> ModelArchitectureInfo | None:
        """A ModelArchitectureInfo, or a torch or Keras model that it is read from."""
        if not self._config.enable_model_diagnostics:
            return None
        given = isinstance(architecture, ModelArchitectureInfo)
        self.architecture = architecture if given else architecture_of(architecture)
        self._record.fact("architecture", **self.architecture.to_dict())
        return self.architecture

    def record_performance(self, metrics: ModelPerformanceMetrics) -> None:
        """Numbers of any framework; each is a series of the trace."""
        if not self._config.enable_model_diagnostics:
            return
        one = _plain(metrics)
        self._record.reached(one.training_step)
        step = self._record.comes("performance")
        for name, series in {**SERIES, **(BESIDE if self._record.attached else {})}.items():
            value = one[name]
            if value is not None:
                self._record.scalar(series, value, step=step)
        with self._lock:
            self._told.append((step, one))

    def add(self, metrics: ModelPerformanceMetrics) -> None:
        """One that is in the trace already."""
        with self._lock:
            self._seen.append(metrics)

    # -- asking ------------------------------------------------------------------------------------------------------

    @property
    def history(self) -> list[ModelPerformanceMetrics]:
        """The records that are kept, oldest first; of a watched model those of its trace."""
        self._pull()
        with self._lock:
            told, seen = list(self._told), list(self._seen)
        return _together(told, seen)[-self._config.max_performance_history :] if seen else [one for _, one in told]

    @property
    def latest_loss(self) -> float | None:
        """That was recorded last, without a look at the trace."""
        with self._lock:
            return self._told[-1][1].loss if self._told else None

    def _pull(self) -> None:
        if self.pull is not None:
            self.pull()

    def analyze_training_dynamics(self) -> TrainingDynamics:
        """How the training goes, from the losses alone; unknown below ten."""
        history = self.history
        held = [(one.training_step, one.validation_loss) for one in history if one.validation_loss is not None]
        return dynamics_of([one.training_step for one in history], [one.loss for one in history], held)

    def analyze(self) -> DiagnosticsReport:
        """Dynamics, anomalies, a health score and what to do."""
        dynamics, history = self.analyze_training_dynamics(), self.history
        anomalies = tuple(_anomalies(history))
        return DiagnosticsReport(
            architecture=self.architecture,
            dynamics=dynamics,
            anomalies=anomalies,
            health_score=_score(history, dynamics, anomalies),
            recommendations=tuple(_recommended(history, dynamics, self.architecture)),
            records=len(history),
        )

    def clear(self) -> None:
        """Forgets the records; the trace has them."""
        with self._lock:
            self._told.clear()
            self._seen.clear()


def _plain(metrics: ModelPerformanceMetrics) -> ModelPerformanceMetrics:
    """Numbers of any framework as Python's own."""
    given = dict(metrics)
    for name in SERIES:
        if given[name] is not None:
            given[name] = float(given[name].detach() if hasattr(given[name], "detach") else given[name])
    stamp = time.time() if given["timestamp"] is None else given["timestamp"]
    return ModelPerformanceMetrics(**{**given, "training_step": int(given["training_step"]), "timestamp": stamp})


def _together(
    told: list[tuple[int, ModelPerformanceMetrics]], seen: list[ModelPerformanceMetrics]
) -> list[ModelPerformanceMetrics]:
    """One record for each step: what was seen there, and of what was told the rest."""
    found = {one.training_step: one for one in seen}
    for step, one in told:
        known = dict(found.get(step, one))
        rest = {name: value for name, value in one.items() if known[name] is None}
        found[step] = ModelPerformanceMetrics(**{**known, **rest, "training_step": step})
    return [found[step] for step in sorted(found)]


def _anomalies(history: list[ModelPerformanceMetrics]) -> list[str]:
    found = []
    bad = next((one for one in history if not math.isfinite(one.loss)), None)
    if bad is not None:
        found.append(f"the loss is {bad.loss} at step {bad.training_step}")
    rates = [one.throughput_samples_per_sec for one in history if one.throughput_samples_per_sec is not None]
    if len(rates) >= FEWEST_RATES:
        before, now = sorted(rates[:-3])[len(rates[:-3]) // 2], sorted(rates[-3:])[1]
        if now < PERFORMANCE_DROP * before:
            found.append(f"throughput fell from {before:.3g} to {now:.3g} samples a second")
    sizes = [one.memory_usage_mb for one in history if one.memory_usage_mb is not None]
    if len(sizes) >= FEWEST_RATES and sizes == sorted(sizes) and sizes[-1] > 1.5 * sizes[0] > 0:
        found.append(f"memory grew at every record, from {sizes[0]:.0f} to {sizes[-1]:.0f} MB")
    return found


_POINTS: Final = {
    ConvergenceStatus.Diverging: 0.6,
    ConvergenceStatus.Oscillating: 0.3,
    ConvergenceStatus.Plateau: 0.2,
    TrainingStability.Unstable: 0.3,
    TrainingStability.HighVariance: 0.1,
}


def _score(
    history: list[ModelPerformanceMetrics], dynamics: TrainingDynamics, anomalies: tuple[str, ...]
) -> float | None:
    if not history:
        return None
    if not math.isfinite(history[-1].loss):
        return 0.0
    taken = _POINTS.get(dynamics.convergence_status, 0.0) + _POINTS.get(dynamics.training_stability, 0.0)
    taken += 0.2 * bool(dynamics.overfitting_indicators) + 0.1 * len(anomalies)
    return max(1.0 - taken, 0.0)


def _recommended(
    history: list[ModelPerformanceMetrics], dynamics: TrainingDynamics, architecture: ModelArchitectureInfo | None
) -> list[str]:
    found = []
    if any(not math.isfinite(one.loss) for one in history):
        found.append("the loss became NaN or infinite: neural debug --alert-on-nan train.py names the operation")
    if dynamics.convergence_status in (ConvergenceStatus.Diverging, ConvergenceStatus.Oscillating):
        found.append(f"the loss is {dynamics.convergence_status.value}: lower the learning rate or clip gradients")
    if dynamics.convergence_status is ConvergenceStatus.Plateau:
        found.append(
            "the loss has stopped falling: change the learning rate, or see what neural debug says of the cause"
        )
    if dynamics.overfitting_indicators:
        found.append("overfitting: stop at the lowest validation loss; weight decay, dropout, more data")
    if dynamics.underfitting_indicators:
        found.append("underfitting: a larger model or learning rate, or check that parameters are updated at all")
    if architecture is not None and architecture.total_parameters and not architecture.trainable_parameters:
        found.append("no parameter of the model is trainable: requires_grad is False everywhere")
    return found
