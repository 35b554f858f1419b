"""Are the gradients healthy? Pure functions over each layer's gradient norms.

By default every judgement is relative, so that the scale of the loss does not matter: a layer vanishes against the
strongest layer of its network, and explodes against its own past. Absolute thresholds count only when the user
gives them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

VANISHED = 1e-5  # of the strongest layer's root-mean-square gradient
EXPLODED = 100.0  # times the median of the layer's own past
PAST = 5  # norms a layer must have shown before it can explode against them


@dataclass(frozen=True, slots=True)
class LayerGradients:
    """One layer's gradient over the steps that were looked at."""

    steps: Sequence[int]
    norms: Sequence[float]  # l2 over all parameters of the layer; nan where it held NaN or Inf
    size: int  # elements
    is_weight: bool = True  # has a parameter of two or more dimensions

    def rms(self, index: int = -1) -> float:
        return self.norms[index] / math.sqrt(max(self.size, 1))


def is_bad(norm: float) -> bool:
    return not math.isfinite(norm)


def vanishing(layers: Mapping[str, LayerGradients], *, threshold: float | None = None) -> list[str]:
    """Layers whose latest gradient has faded. With a threshold: below it. Else: far below the strongest layer, or
    exactly zero everywhere."""
    current = {name: one for name, one in layers.items() if one.norms and not is_bad(one.norms[-1])}
    if threshold is not None:
        return [name for name, one in current.items() if one.norms[-1] < threshold]
    weights = {name: one for name, one in current.items() if one.is_weight}
    strongest = max((one.rms() for one in weights.values()), default=0.0)
    if strongest == 0.0:
        return list(weights)
    return [name for name, one in weights.items() if one.rms() < VANISHED * strongest]


def exploding(layers: Mapping[str, LayerGradients], *, threshold: float | None = None) -> list[str]:
    """Layers whose latest gradient is not finite, above the user's threshold, or far above its own past."""
    found = []
    for name, one in layers.items():
        if not one.norms:
            continue
        latest = one.norms[-1]
        if (
            is_bad(latest)
            or (threshold is not None and latest > threshold)
            or (threshold is None and _outgrew_past(one.norms))
        ):
            found.append(name)
    return found


def _outgrew_past(norms: Sequence[float]) -> bool:
    past = sorted(norm for norm in norms[:-1] if not is_bad(norm))
    if len(past) < PAST:
        return False
    median = past[len(past) // 2]
    return median > 0 and norms[-1] > EXPLODED * median


def first_bad_step(one: LayerGradients, layers: Mapping[str, LayerGradients]) -> int | None:
    """The first step at which this layer's gradient was not finite, zero, or faded against the strongest."""
    strongest = _strongest_by_step(layers)
    for step, norm in zip(one.steps, one.norms, strict=True):
        if is_bad(norm):
            return step
        if one.is_weight and norm / math.sqrt(max(one.size, 1)) < VANISHED * strongest.get(step, 0.0):
            return step
    return None


def _strongest_by_step(layers: Mapping[str, LayerGradients]) -> dict[int, float]:
    strongest: dict[int, float] = {}
    for one in layers.values():
        for index, step in enumerate(one.steps):
            if one.is_weight and not is_bad(one.norms[index]):
                strongest[step] = max(strongest.get(step, 0.0), one.rms(index))
    return strongest


def trend(norms: Sequence[float]) -> str | None:
    """Last quarter against first quarter of what was seen: rising, falling or steady. None below eight values."""
    finite = [norm for norm in norms if not is_bad(norm)]
    if len(finite) < 8:
        return None
    quarter = len(finite) // 4
    early, late = sum(finite[:quarter]) / quarter, sum(finite[-quarter:]) / quarter
    if late > 2 * early:
        return "rising"
    return "falling" if late < early / 2 else "steady"


def decay_per_layer(layers: Mapping[str, LayerGradients]) -> float | None:
    """By which factor the gradient shrinks from one weight layer to the one before it (geometric mean), in the order
    given."""
    rms = [one.rms() for one in layers.values() if one.is_weight and one.norms and not is_bad(one.norms[-1])]
    positive = [value for value in rms if value > 0]
    if len(positive) < 3:
        return None
    return float((positive[0] / positive[-1]) ** (1 / (len(positive) - 1)))
