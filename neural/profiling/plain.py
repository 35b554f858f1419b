"""What users hand in, made fit for the profilers and for JSON: numbers that can be, values that can be written."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from neuraldbg.errors import UsageError

MOST_VALUES: Final = 1_000  # of an array that are written down


class BadMeasurement(UsageError, ValueError):
    """A number that cannot be one, or nothing of the kind that was asked for."""


def number(value: Any, what: str) -> float:
    """`value` as a float from 0 on; anything else is refused by the name of `what` it was to be."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        found = math.nan
    if isinstance(value, str | bytes) or not (math.isfinite(found) and found >= 0):
        raise BadMeasurement(f"{what} is a number from 0 on, not {value!r:.100}")
    return found


def number_or_none(value: Any) -> float | None:
    try:
        return number(value, "it")
    except BadMeasurement:
        return None


def mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadMeasurement(f"{what} is a dict, not {type(value).__name__}")
    return value


def plain_json(value: Any) -> Any:
    """The same as JSON has words for: numbers of numpy and torch as Python's own, what is not finite as "nan", "inf" or
    "-inf", small arrays as lists, anything else as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): plain_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [plain_json(each) for each in value]
    return _of_a_framework(value)


def _of_a_framework(value: Any) -> Any:
    """A scalar or an array, of whatever library; text where it is neither."""
    for ask in ("item", "tolist"):
        read = getattr(value, ask, None)
        if not callable(read) or (ask == "tolist" and _count(value) > MOST_VALUES):
            continue
        try:
            found = read()
        except (TypeError, ValueError, RuntimeError, NotImplementedError):  # more than one element, or on no device
            continue
        if found is not value and isinstance(found, bool | int | float | str | list):
            return plain_json(found)
    return f"{value!s:.500}"


def _count(value: Any) -> int:
    shape = getattr(value, "shape", ())
    return math.prod(int(each) for each in shape) if isinstance(shape, Iterable) else 0
