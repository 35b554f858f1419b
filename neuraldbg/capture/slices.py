"""Parts of tensors as people write them, and their numbers as JSON takes them."""

from __future__ import annotations

import math
import re
from typing import Any

from neuraldbg.errors import UsageError

MOST_NUMBERS = 4096
BINS = 32
STATS = ("count", "mean", "std", "min", "max", "l2", "zero_count", "nan_count", "inf_count")
FURTHEST = 2**48  # no tensor goes so far
_PART = re.compile(r"\s*(?:(-?\d+)|(-?\d+)?\s*:\s*(-?\d+)?(?:\s*:\s*(\d+))?|(\.\.\.))\s*")


def parse_slice(part: str | None) -> tuple[Any, ...]:
    """Numbers, ranges and `...`, separated by commas; nothing else is looked at."""
    if part is None or not part.strip():
        return ()
    if len(part) > 200:
        raise UsageError("that is too long for a slice")
    found: list[Any] = []
    for piece in part.strip().removeprefix("[").removesuffix("]").split(","):
        match = _PART.fullmatch(piece)
        if match is None:
            raise UsageError(f"{piece.strip()!r} is no part of a slice: write 0, :8 or ... as in 0, :8")
        at, start, stop, stride, rest = match.groups()
        for number in (at, start, stop, stride):
            if number is not None and abs(int(number)) > FURTHEST:
                raise UsageError(f"{number} in a slice is further than any tensor goes")
        if rest:
            found.append(Ellipsis)
        elif at is not None:
            found.append(int(at))
        else:
            step = None if stride is None else int(stride)
            if step == 0:
                raise UsageError("a slice cannot go on by 0")
            found.append(slice(None if start is None else int(start), None if stop is None else int(stop), step))
    if found.count(Ellipsis) > 1:
        raise UsageError("a slice has one ... at most")
    return tuple(found)


def number(value: float) -> float | str:
    """Strict JSON knows no NaN."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
