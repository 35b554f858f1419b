"""The numbers in what a user hands over as the metrics of a layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from neuraldbg.analysis.anomalies.window import LARGEST, SMALLEST

RESERVED = frozenset({"iqr_based", "isolation_forest", "custom"})  # names of scores, so never of metrics


def numbers_of(metrics: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    """The metrics that are finite numbers, and those that are numbers but not finite; both sorted by name."""
    finite: dict[str, float] = {}
    broken: dict[str, float] = {}
    for name in sorted(name for name in metrics if isinstance(name, str) and name not in RESERVED):
        value = as_number(metrics[name])
        if value is not None:
            (finite if math.isfinite(value) else broken)[name] = value
    return finite, broken


def as_number(value: Any) -> float | None:
    """A number, a scalar of numpy or a framework; None for anything else: text, flags, whole tensors.

    What is too large to be squared and summed counts as infinite, what is too small as zero.
    """
    if hasattr(value, "item"):
        try:
            value = value.item()
        except (TypeError, ValueError, RuntimeError):  # more than one element
            return None
    if isinstance(value, bool) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer of more than 308 digits
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError, RuntimeError):
        return None
    if abs(number) > LARGEST:
        return math.copysign(math.inf, number)
    return 0.0 if abs(number) < SMALLEST else number
