"""How far two tensors are apart, value by value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.results import Result
from neuraldbg.capture.arrays import NoNumbers, numbers_of

MOST_COMPARED: Final = 2**28
MOST_DENSE: Final = 2**24  # elements of a sparse array that are made for a comparison


@dataclass(frozen=True, eq=False)
class TensorComparison(Result):
    """Over the places where both are finite; None where there is none, or where the shapes differ."""

    tensor1_id: int | None
    tensor2_id: int | None
    mse: float | None
    mae: float | None
    max_diff: float | None
    cosine_similarity: float | None
    correlation: float | None
    shape_match: bool
    dtype_match: bool
    compared_elements: int = 0


@dataclass(frozen=True, slots=True)
class Kept:
    """A copy of values that can be compared later: axes that only repeat have length 1."""

    values: NDArray[Any]
    shape: tuple[int, ...]
    dtype: str


def kept(value: Any) -> Kept:
    """Independent of the tensor, which may change."""
    source = value
    if hasattr(value, "tocoo") and hasattr(value, "nnz"):
        _must_fit(math.prod(value.shape))
        source = value.toarray()
    elif getattr(value, "layout", None) is not None and "sparse" in str(value.layout):
        _must_fit(value.numel())
        source = value.to_dense()
    numbers = numbers_of(source)
    if numbers.sparse:
        raise NoNumbers(f"a {type(value).__name__} is compared as a dense array; tf.convert_to_tensor(x) makes it one")
    if numbers.dtype.startswith("complex"):
        return Kept(np.array(_complex(source)), numbers.shape, numbers.dtype)
    values = numbers.values()
    return Kept(values.copy() if np.shares_memory(values, numbers.compact) else values, numbers.shape, numbers.dtype)


def _must_fit(count: int) -> None:
    if count > MOST_DENSE:
        raise NoNumbers(f"a sparse array of {count} elements is not made dense for a comparison; compare its values")


def _complex(value: Any) -> Any:
    return value.detach().cpu().resolve_conj().resolve_neg().numpy() if hasattr(value, "detach") else value


def compared(one: Kept, other: Kept, ids: tuple[int | None, int | None] = (None, None)) -> TensorComparison:
    same_type = one.dtype == other.dtype
    if one.shape != other.shape:
        return TensorComparison(*ids, None, None, None, None, None, False, same_type)
    a, b = _both_finite(one.values, other.values)
    if not a.size:
        return TensorComparison(*ids, None, None, None, None, None, True, same_type)
    with np.errstate(over="ignore"):
        off = np.abs(a - b)
        mse = float(np.square(off).mean())
    along, correlation = _cosine(a, b), _cosine(*map(_centred, (a, b)))
    numbers = (mse, float(off.mean()), float(off.max()), along, correlation)
    return TensorComparison(*ids, *numbers, True, same_type, a.size)


def _both_finite(one: NDArray[Any], other: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Axes along which both only repeat are compared once: the means over them are the same."""
    shape = np.broadcast_shapes(one.shape, other.shape) if one.size and other.size else (0,)
    if math.prod(shape) > MOST_COMPARED:
        raise NoNumbers(f"{math.prod(shape)} pairs are too many to compare at once; compare a part: x[:n]")
    if not math.prod(shape):
        return np.empty(0), np.empty(0)
    wide = np.complex128 if np.iscomplexobj(one) or np.iscomplexobj(other) else np.float64
    a, b = (np.broadcast_to(each, shape).reshape(-1) for each in (one, other))
    good = np.isfinite(a) & np.isfinite(b)
    return a[good].astype(wide), b[good].astype(wide)


def _centred(values: NDArray[Any]) -> NDArray[Any]:
    """Without its mean; exactly zero where all values are equal."""
    scaled = _scaled(values)
    return scaled - scaled.mean() if (scaled != scaled[0]).any() else np.zeros_like(scaled)


def _scaled(values: NDArray[Any]) -> NDArray[Any]:
    """So that squares neither overflow nor vanish."""
    top = float(np.abs(values).max())
    return values / top if top > 0 else values


def _cosine(a: NDArray[Any], b: NDArray[Any]) -> float | None:
    a, b = _scaled(a), _scaled(b)
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return min(max(float(np.vdot(a, b).real) / length, -1.0), 1.0) if length > 0 else None
