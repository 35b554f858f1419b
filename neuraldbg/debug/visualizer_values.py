"""What somebody hands over to be drawn, as plain arrays: lists, NumPy, torch, JAX and TensorFlow alike."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.errors import UsageError
from neuraldbg.surfaces.terminal.figures import figure

Floats = NDArray[np.float64]
Numbers = NDArray[Any]
PIECE = 1 << 20  # values that are looked at together: a tensor of any size is never copied as a whole


def as_numbers(values: Any, what: str) -> Numbers:
    """The values as they are, in the host's memory; None is NaN. No framework is imported for it."""
    try:
        found = np.asarray(_on_host(values))
        return found if found.dtype.kind in "biuf" else found.astype(np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{what} must be real numbers, not {type(values).__name__}: {error}") from None


def _on_host(values: Any) -> Any:
    if hasattr(values, "detach") and hasattr(values, "cpu"):  # torch, whose bfloat16 and sparse tensors NumPy refuses
        values = values.detach().cpu().resolve_conj().resolve_neg()
        values = values if str(values.layout) == "torch.strided" else values.to_dense()
        values = values.numpy() if _numpy_knows(values) else values.float().numpy()
    values = np.array(values, dtype=np.float64) if isinstance(values, list | tuple) else np.asarray(values)
    if values.dtype.kind == "c":
        raise TypeError("complex numbers have no order; draw abs(values)")
    return values


def _numpy_knows(tensor: Any) -> bool:
    return hasattr(np, str(tensor.dtype).removeprefix("torch."))


def flat(values: Any, what: str) -> Floats:
    return as_numbers(values, what).ravel().astype(np.float64, copy=False)


def grid(values: Any, what: str) -> Numbers:
    """As rows and columns: one row of a vector, the leading axes of more than two taken together."""
    found = as_numbers(values, what)
    if found.ndim <= 1:
        return found.reshape(1, -1)
    return found.reshape(math.prod(found.shape[:-1]), found.shape[-1])


def points(x: Any, y: Any, what: str) -> tuple[Floats, Floats]:
    """Two columns of one length."""
    across, up = flat(x, f"the steps of {what}"), flat(y, f"the values of {what}")
    if len(across) != len(up):
        raise UsageError(f"{what} has {len(across)} steps and {len(up)} values; each value needs its step")
    return across, up


@dataclass(frozen=True, slots=True)
class Counted:
    """A histogram of the finite values, and how many were not."""

    edges: Floats
    counts: NDArray[np.int64]
    total: int
    nan: int
    plus_inf: int
    minus_inf: int

    @property
    def finite(self) -> int:
        return self.total - self.nan - self.plus_inf - self.minus_inf

    @property
    def told(self) -> str:
        """How many values, and how many of them are in no bin."""
        odd = [(self.nan, "NaN"), (self.plus_inf, "+Inf"), (self.minus_inf, "-Inf")]
        return ", ".join([f"{self.total:,} values", *(f"{count:,} {word}" for count, word in odd if count)])


def counted(values: Numbers, bins: int) -> Counted:
    """In `bins` equal bins from the smallest finite value to the largest; one bin where they are the same."""
    if bins < 1:
        raise UsageError(f"a histogram has at least one bin, not {bins}")
    low, high, odd = math.inf, -math.inf, [0, 0, 0]
    for piece in _pieces(values):
        finite = piece[np.isfinite(piece)]
        low, high = float(finite.min(initial=low)), float(finite.max(initial=high))
        if len(finite) < len(piece):
            found = (np.isnan(piece), np.isposinf(piece), np.isneginf(piece))
            odd = [count + int(each.sum()) for count, each in zip(odd, found, strict=True)]
    if low > high:
        return Counted(np.empty(0), np.empty(0, np.int64), values.size, *odd)
    if low == high:
        return Counted(np.array([low, high]), np.array([values.size - sum(odd)]), values.size, *odd)
    scale = _scale(low, high)
    edges = np.linspace(low / scale, high / scale, bins + 1) * scale
    edges[0], edges[-1] = low, high
    counts = sum((_bins(piece, edges, scale) for piece in _pieces(values)), np.zeros(bins, np.int64))
    return Counted(edges, counts, values.size, *odd)


def _pieces(values: Numbers) -> Iterator[Floats]:
    whole = values.reshape(-1) if values.flags.c_contiguous else values.flat
    for start in range(0, values.size, PIECE):
        yield np.asarray(whole[start : start + PIECE], np.float64)


def _bins(piece: Floats, edges: Floats, scale: float) -> NDArray[np.int64]:
    finite, bins = piece[np.isfinite(piece)], len(edges) - 1
    low, high = edges[0] / scale, edges[-1] / scale
    at = np.minimum(((finite / scale - low) / (high - low) * bins).astype(np.int64), bins - 1)
    at -= (finite < edges[at]) & (at > 0)  # a value on an edge belongs to the bin that begins there
    at += (finite >= edges[np.minimum(at + 1, bins)]) & (at < bins - 1)
    return np.bincount(at, minlength=bins)


def step_text(value: float) -> str:
    """A step as people count them; what is none as any other number."""
    return f"{value:.0f}" if abs(value) < 1e9 and value == round(value) else figure(value)


def pooled(table: Numbers, most_rows: int, most_columns: int) -> Floats:
    """The value of the largest magnitude of every block, so that at most so many blocks are left; a NaN stays one."""
    rows, columns = table.shape
    if not table.size:
        return np.empty((min(rows, most_rows), min(columns, most_columns)))
    tops, lefts = _starts(rows, most_rows), _starts(columns, most_columns)
    blocks = [table[top:below] for top, below in pairwise([*tops.tolist(), rows])]
    one = np.zeros(1, np.int64)
    return np.concatenate([_largest(_largest(block.astype(np.float64), lefts, 1), one, 0) for block in blocks])


def _starts(length: int, most: int) -> NDArray[np.int64]:
    return np.linspace(0, length, min(length, most), endpoint=False).astype(np.int64)


def _largest(cells: Floats, starts: NDArray[np.int64], axis: int) -> Floats:
    if len(starts) == cells.shape[axis]:
        return cells
    low, high = (f.reduceat(cells, starts, axis=axis) for f in (np.minimum, np.maximum))
    return np.where(np.isnan(high), np.nan, np.where(np.abs(high) >= np.abs(low), high, low))


def span(values: Floats) -> tuple[float, float] | None:
    """The smallest and largest finite value; None where there is none."""
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if len(finite) else None


def share_of(values: Floats, low: float, high: float) -> Floats:
    """Where each value lies from `low` (0) to `high` (1); NaN and infinities stay what they are. A half where both ends
    are the same."""
    if low == high:
        return np.where(np.isfinite(values), 0.5, values)
    scale = _scale(low, high)
    return (values / scale - low / scale) / (high / scale - low / scale)


def _scale(low: float, high: float) -> float:
    """What to divide by first: the difference of two numbers can be infinite."""
    return 4.0 if high / 4 - low / 4 > 4e307 else 1.0
