"""A tensor as something that can be sent and drawn: shape, range, a histogram and the numbers of a part of it."""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import Tensor

from neuraldbg.capture.torch.stats import measurable, measure, plain
from neuraldbg.errors import UsageError

MOST_NUMBERS = 4096
BINS = 32
FURTHEST = 2**48  # no tensor goes so far
_PART = re.compile(r"\s*(?:(-?\d+)|(-?\d+)?\s*:\s*(-?\d+)?(?:\s*:\s*(\d+))?|(\.\.\.))\s*")


@torch.no_grad()
def shown_tensor(tensor: Tensor, part: str | None = None) -> dict[str, Any]:
    """Waits for the device. `part` is a slice as people write it: `0, :8`."""
    if not measurable(tensor):
        raise UsageError(f"a {type(tensor).__name__} ({tensor.layout}) has no values that can be shown")
    index = parse_slice(part)
    host = tensor.detach().to("cpu")
    dense = host.to_dense() if host.layout != torch.strided else host
    measured = measure(dense)
    try:
        chosen = dense[index] if index else dense
    except (IndexError, ValueError, RuntimeError) as error:
        raise UsageError(f"slice {part!r} does not fit the shape {list(dense.shape)}: {error}") from None
    names = ("count", "mean", "std", "min", "max", "l2", "zero_count", "nan_count", "inf_count")
    return {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "device": str(tensor.device),
        "stats": None if measured is None else {n: _number(v) for n, v in zip(names, measured[:9], strict=True)},
        "histogram": _histogram(dense),
        "slice": part,
        "slice_shape": list(chosen.shape),
        "values": _numbers(chosen),
        "cut": chosen.numel() > MOST_NUMBERS,
    }


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


def _numbers(chosen: Tensor) -> list[Any]:
    """Flat, the first so many, in the order of the slice."""
    flat = chosen.reshape(-1)[:MOST_NUMBERS]
    values = torch.view_as_real(flat).tolist() if flat.is_complex() else flat.tolist()
    return [_number(value) if isinstance(value, float) else value for value in values]


def _histogram(dense: Tensor) -> dict[str, Any] | None:
    values = plain(dense).reshape(-1).float()
    finite = values[torch.isfinite(values)]
    if not finite.numel():
        return None
    low, high = float(finite.min()), float(finite.max())
    counts = torch.histc(finite, BINS, low, high) if high > low else torch.tensor([float(finite.numel())])
    return {"low": low, "high": high, "counts": [int(count) for count in counts.tolist()]}


def _number(value: float) -> float | str:
    """Strict JSON knows no NaN."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
