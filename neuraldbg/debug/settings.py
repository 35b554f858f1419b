"""What a session may be told, with the original's names and defaults."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any

from neuraldbg.errors import ConfigError, nearest


def from_on(name: str, value: Any, *, least: int = 1, kind: type[Any] = Integral) -> None:
    """ConfigError where it is no number of that kind, or below."""
    if not isinstance(value, kind) or value < least:
        raise ConfigError(f"{name} is a number from {least} on, not {value!r}")


def _is_share(value: Any, *, of_nothing: bool) -> bool:
    """From 0 to 1; 0 is one where there may be one of nothing."""
    return isinstance(value, Real) and 0 <= float(value) <= 1 and (of_nothing or float(value) > 0)


@dataclass(frozen=True, slots=True)
class GradientDebugConfig:
    """When a gradient is called vanishing, exploding, dead, oscillating or absent."""

    vanishing_threshold: float = 1e-7  # of the norm
    exploding_threshold: float = 10.0
    dead_neuron_threshold: float = 0.1  # share of a layer's units
    oscillation_variance_threshold: float = 100.0  # of the norm
    no_gradient_steps: int = 10  # records in a row

    def __post_init__(self) -> None:
        from_on("no_gradient_steps", self.no_gradient_steps)
        if not _is_share(self.dead_neuron_threshold, of_nothing=True):
            raise ConfigError(f"dead_neuron_threshold is a share from 0 to 1, not {self.dead_neuron_threshold!r}")


@dataclass(frozen=True, slots=True)
class DebugConfig:
    """How a session looks, how much it keeps, and where it writes."""

    enable_tensor_inspection: bool = True
    enable_gradient_debugging: bool = True
    enable_model_diagnostics: bool = True
    enable_visualization: bool = False  # `stop()` draws loss and gradient flow into dashboard.html of the run
    enable_memory_profiling: bool = True  # the report has the tensors that live and pile up
    enable_computation_graph_analysis: bool = True  # an attached model gets a verdict, as `neural debug` gives it
    max_tracked_tensors: int = 1000
    max_gradient_history: int = 100  # per layer
    max_performance_history: int = 10_000
    max_kept_bytes: int = 64_000_000  # of copies of tensors, for comparisons
    max_alerts: int = 1000
    output_dir: str | os.PathLike[str] | None = None  # None: a new folder in neuraldbg_runs/
    sampling_rate: float = 1.0  # share of the calls of each name that are looked at; the first always is
    budget: str = "1%"  # of an attached model's step time
    extreme_value: float = 1e10
    tensor_vanishing: float = 1e-8  # norm of a tensor that is inspected as a gradient
    tensor_exploding: float = 100.0
    large_tensor_bytes: int = 2**30
    alert_log: bool = True
    alert_file: str | os.PathLike[str] | None = None  # one JSON object per line
    alert_webhook: str | None = None  # POST of the same JSON
    alert_bell: bool = False  # of the terminal
    gradients: GradientDebugConfig = field(default_factory=GradientDebugConfig)

    def __post_init__(self) -> None:
        if not _is_share(self.sampling_rate, of_nothing=False):
            raise ConfigError(f"sampling_rate is a share above 0 and up to 1, not {self.sampling_rate!r}")
        for name in ("max_tracked_tensors", "max_gradient_history", "max_performance_history", "max_alerts"):
            from_on(name, getattr(self, name))
        from_on("max_kept_bytes", self.max_kept_bytes, least=0, kind=Real)


def config_from(given: DebugConfig | None, options: dict[str, Any]) -> DebugConfig:
    """A config, or one made of options; an unknown option answers with the nearest."""
    known = [each.name for each in fields(DebugConfig)]
    for name in options:
        if name not in known:
            near = nearest(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise ConfigError(f"no setting {name!r} of a session; {hint}")
    if given is None:
        return DebugConfig(**options)
    if not isinstance(given, DebugConfig):
        raise ConfigError(
            f"a session takes a DebugConfig(...), or its settings as keywords, not a {type(given).__name__}"
        )
    return DebugConfig(**{**{name: getattr(given, name) for name in known}, **options})


class Sampling:
    """Every k-th call of each name, without a random number: whole steps are looked at, not single layers of many."""

    MOST_NAMES = 10_000

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._calls: dict[Any, int] = {}

    def takes(self, name: Any) -> bool:
        if self.rate >= 1:
            return True
        calls = self._calls.get(name, 0)
        if not calls and len(self._calls) >= self.MOST_NAMES:
            del self._calls[next(iter(self._calls))]
        self._calls[name] = calls + 1
        return calls == 0 or int(calls * self.rate) > int((calls - 1) * self.rate)
