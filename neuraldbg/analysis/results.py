"""What the Python API hands back: objects that read both as attributes and as dicts, since users write both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any


class Result(Mapping[str, Any]):
    """Base of the frozen records below: `report.norm` and `report["norm"]` are the same thing."""

    def __getitem__(self, key: str) -> Any:
        if key not in self._names():
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def _names(self) -> list[str]:
        return [one.name for one in fields(self)]  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts and lists all the way down."""
        return {key: _plain(self[key]) for key in self}


def _plain(value: Any) -> Any:
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


@dataclass(frozen=True, eq=False)
class GradientRecord(Result):
    """A layer's gradient at one step: the norm over its parameters, and what was seen in the largest of them."""

    step: int
    norm: float | None
    mean: float | None = None
    std: float | None = None
    max: float | None = None
    zero_fraction: float | None = None
    nan_count: int = 0
    inf_count: int = 0


class GradientHistory(list[GradientRecord]):
    """The records of one layer in order, with `.steps` and `.norms` as plain lists."""

    def __init__(self, layer: str, records: Any = ()) -> None:
        super().__init__(records)
        self.layer = layer

    @property
    def steps(self) -> list[int]:
        return [record.step for record in self]

    @property
    def norms(self) -> list[float | None]:
        return [record.norm for record in self]


@dataclass(frozen=True, eq=False)
class StepRecord(Result):
    """One update, as seen right after it."""

    step: int
    loss: float | None
    lr: float | None
    grad_norm: float | None
    gradients: Mapping[str, GradientRecord] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class TensorState(Result):
    """A tensor of a past step."""

    layer: str
    step: int
    what: str
    tensor: Any
    stats: Mapping[str, Any]
    source: str = "stored"


@dataclass(frozen=True, eq=False)
class LayerReport(Result):
    """The latest that is known of a layer."""

    layer: str
    type: str | None
    step: int | None
    health: str
    input: Mapping[str, Any] | None
    output: Mapping[str, Any] | None
    gradient: Mapping[str, Any] | None
    weight: Mapping[str, Any] | None
    grad_norm: float | None
    first_bad_step: int | None
    source: str | None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class CausalHypothesis(Result):
    """A possible cause, the numbers that speak for it, and the way from it to the failure."""

    description: str
    confidence: float | None  # None = not judged
    evidence: Mapping[str, Any] = field(default_factory=dict)
    causal_chain: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class LayerHealth(Result):
    status: str  # healthy, vanishing, exploding, nan, dead, missing (no gradient ever came)
    norm: float | None
    trend: str | None  # rising, falling, steady
    first_bad_step: int | None


@dataclass(frozen=True, eq=False)
class GradientHealthReport(Result):
    """What `analyze_gradient_health()` gives."""

    overall: str  # healthy, warning, critical
    score: float | None
    layers: Mapping[str, LayerHealth] = field(default_factory=dict)
    vanishing_layers: tuple[str, ...] = ()
    exploding_layers: tuple[str, ...] = ()
    nan_layers: tuple[str, ...] = ()
    dead_layers: tuple[str, ...] = ()
    causes: tuple[CausalHypothesis, ...] = ()
    recommendations: tuple[str, ...] = ()
    missing_layers: tuple[str, ...] = ()  # may learn, and were never given a gradient


@dataclass(frozen=True, eq=False)
class Verdict(Result):
    """What `diagnose()` answers: the state, one sentence, and the findings behind it."""

    state: str
    headline: str
    findings: tuple[Mapping[str, Any], ...] = ()
