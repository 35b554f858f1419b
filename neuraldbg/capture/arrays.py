"""Arrays of any framework as numbers in host memory: NumPy, torch, JAX, TensorFlow, scipy.sparse, lists.

Nothing here imports a framework: torch is asked for only where it is already loaded, the others answer to DLPack or
`__array__`. What is repeated in memory (broadcast, expanded) is read once, and what a sparse array leaves out is
counted, not made.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuraldbg.capture.kernels import twin
from neuraldbg.capture.kernels.elements import Element
from neuraldbg.errors import UsageError

MOST_COPIED_BYTES: Final = 4 * 2**30  # of values that do not lie in one piece
_STORED_AS: Final = {"bfloat16": np.uint16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8}
_NAMES: Final = frozenset(element.name for element in Element)


class NoNumbers(UsageError, TypeError):
    """Something that statistics cannot be taken of."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The values of one array. `compact` has the array's axes; those along which memory only repeats have length 1."""

    compact: NDArray[Any]
    element: Element
    shape: tuple[int, ...]
    dtype: str
    memory_bytes: int
    left_out: int = 0  # zeros that a sparse array does not store
    sparse: bool = False

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def repeats(self) -> int:
        """How often every stored value stands in the array."""
        return (self.count - self.left_out) // self.compact.size if self.compact.size else 1

    def flat(self) -> NDArray[Any]:
        """The stored elements in one piece, in the order of memory."""
        flat = self.compact.ravel(order="K")
        return flat if flat.flags.c_contiguous else np.ascontiguousarray(flat)

    def values(self) -> NDArray[Any]:
        """Floats of 32 or 64 bits, with the axes of `compact`."""
        raw = np.ascontiguousarray(self.compact)
        return twin.decoded(raw.reshape(-1).view(np.uint8), self.element).reshape(self.compact.shape)


def numbers_of(value: Any) -> Numbers:
    """The numbers of an array, tensor, list or scalar; NoNumbers says what cannot be read and what to do."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_torch(value, torch)
    if hasattr(value, "tocoo") and hasattr(value, "nnz"):
        return _of_scipy(value)
    if hasattr(value, "dense_shape") and hasattr(value, "indices") and hasattr(value, "values"):
        return _of_slices(value)
    if isinstance(value, np.ma.MaskedArray):
        return of_array(value.compressed())
    return of_array(_as_array(value))


def _as_array(value: Any) -> NDArray[Any]:
    if isinstance(value, np.ndarray):
        return value if type(value) is np.ndarray else np.asarray(value)  # np.matrix stays two-dimensional
    ways: list[Callable[[], Any]] = []
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        ways.append(lambda: np.from_dlpack(value))
    ways.append(lambda: np.asarray(value))
    why = ""
    for way in ways:
        try:
            return np.asarray(way())
        except (TypeError, ValueError, RuntimeError, BufferError, OverflowError) as error:
            why = str(error).partition("\n")[0]
    raise NoNumbers(f"cannot read the values of a {type(value).__name__}: {why}; hand over a NumPy array of them")


@lru_cache(maxsize=64)
def _plain(dtype: np.dtype[Any]) -> Element | None:
    """The element of a type that is read as it is."""
    known = dtype.kind in "biuf" and dtype.isnative and dtype.name in _NAMES
    return Element[dtype.name] if known else None


def of_array(array: NDArray[Any]) -> Numbers:
    element = _plain(array.dtype)
    if element is not None and array.flags.c_contiguous and array.size:
        return Numbers(array, element, array.shape, element.name, array.nbytes)
    name = array.dtype.name
    shape, compact = array.shape, _once(array)
    held = compact.size * compact.dtype.itemsize
    _must_be_readable(compact, held)
    if array.dtype.kind == "c":
        compact = _magnitudes(compact)
    elif name in _STORED_AS:
        compact = compact.view(_STORED_AS[name])
    elif array.dtype.kind in "biuf" and name in _NAMES:
        compact = compact if array.dtype.isnative else compact.astype(array.dtype.newbyteorder("="))
    else:
        compact = _as_float64(compact)
    stored = name if name in _STORED_AS else compact.dtype.name
    return Numbers(compact, Element[stored], shape, name, held)


def _once(array: NDArray[Any]) -> NDArray[Any]:
    """Without the repetitions of axes that do not move in memory."""
    if not array.size:
        return array.reshape(-1)[:0]
    repeated = [stride == 0 and size > 1 for stride, size in zip(array.strides, array.shape, strict=True)]
    return array[tuple(slice(0, 1) if again else slice(None) for again in repeated)] if any(repeated) else array


def _must_be_readable(compact: NDArray[Any], held: int) -> None:
    if held > MOST_COPIED_BYTES and not _fills_memory(compact):
        raise NoNumbers(
            f"{held / 2**30:.0f} GB of values do not lie in one piece and would be copied; inspect a part: x[:n]"
        )


def _fills_memory(array: NDArray[Any]) -> bool:
    expected = array.dtype.itemsize
    for stride, size in sorted(zip(array.strides, array.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _magnitudes(compact: NDArray[Any]) -> NDArray[Any]:
    """Of complex numbers; NaN where either part is."""
    with np.errstate(all="ignore"):
        size = np.abs(compact)
    size = np.where(np.isnan(compact), np.nan, size).astype(size.dtype, copy=False)
    return size if size.dtype.itemsize <= 8 else _as_float64(size)


def _as_float64(compact: NDArray[Any]) -> NDArray[Any]:
    kind = compact.dtype.kind
    if kind not in "fV" or compact.dtype.names is not None:
        what = {"O": "objects", "U": "text", "S": "bytes", "M": "dates", "m": "durations"}.get(kind, str(compact.dtype))
        raise NoNumbers(f"an array of {what} has no statistics; hand over numbers, such as x.astype(float)")
    try:
        with np.errstate(all="ignore"):
            wide = compact.astype(np.float64)
            lost = np.isfinite(compact) & ~np.isfinite(wide) if kind == "f" else False
    except (TypeError, ValueError) as error:
        raise NoNumbers(f"cannot read {compact.dtype} as numbers: {error}") from None
    if np.any(lost):
        raise NoNumbers(f"values of {compact.dtype.name} are too large for float64; scale them down first")
    return wide


# -- sparse and torch --------------------------------------------------------------------------------------------------


def _of_scipy(value: Any) -> Numbers:
    stored = value.tocoo(copy=True)
    stored.sum_duplicates()
    indices = sum(each.nbytes for each in getattr(stored, "coords", (stored.row, stored.col)))
    return _sparse(np.asarray(stored.data), tuple(map(int, value.shape)), str(value.dtype), indices)


def _of_slices(value: Any) -> Numbers:
    """TensorFlow's IndexedSlices (the gradient of an embedding) and SparseTensor: what stands twice is added up. Slices
    that do not know what they are of have the shape of those that are there."""
    stored, places = _as_array(value.values), _as_array(value.indices)
    dtype = stored.dtype.name
    different, at = np.unique(places, axis=0, return_inverse=True)
    if len(different) < len(stored):
        wide = stored if stored.dtype.kind in "biufc" else stored.astype(np.float32)
        stored = np.zeros((len(different), *wide.shape[1:]), wide.dtype)
        np.add.at(stored, at.reshape(-1), wide)
    whole = stored.shape if value.dense_shape is None else tuple(map(int, _as_array(value.dense_shape)))
    return _sparse(stored, whole, dtype, places.nbytes)


def _sparse(stored: NDArray[Any], shape: tuple[int, ...], dtype: str, index_bytes: int) -> Numbers:
    inside = of_array(stored.reshape(-1))
    left_out = math.prod(shape) - inside.compact.size
    held = inside.memory_bytes + index_bytes
    return Numbers(inside.compact, inside.element, shape, dtype, held, left_out, sparse=True)


def _of_torch(tensor: Any, torch: Any) -> Numbers:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.dtype in _read_as_they_are(torch)
    if plain and tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_neg():
        with suppress(RuntimeError):  # wrapped by a transform of torch.func
            return of_array(tensor.detach().numpy())
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    _must_hold_values(tensor, torch)
    values = tensor.detach()
    if values.is_quantized:
        values = values.dequantize()
    if values.layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
        coo = values.to_sparse_coo().coalesce() if values.layout is not torch.sparse_coo else values.coalesce()
        stored, index = _torch_array(coo.values(), torch), coo.indices()
        if coo.dense_dim() == 0:
            return _sparse(stored, shape, dtype, index.numel() * index.element_size())
        values = coo.to_dense()
    elif values.layout is not torch.strided:
        values = values.to_dense()
    found = of_array(_torch_array(values, torch))
    element = Element[dtype] if dtype in _STORED_AS else found.element
    held = tensor.numel() * tensor.element_size() if tensor.is_quantized else found.memory_bytes
    return Numbers(found.compact, element, shape, dtype, held)


@cache
def _read_as_they_are(torch: Any) -> frozenset[Any]:
    """Types of torch that NumPy has under the same name."""
    names = _NAMES - _STORED_AS.keys()
    return frozenset(getattr(torch, name) for name in names if hasattr(torch, name))


def _must_hold_values(tensor: Any, torch: Any) -> None:
    hollow = tensor.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    if hollow or (type(tensor) not in (torch.Tensor, torch.nn.Parameter) and hasattr(tensor, "__tensor_flatten__")):
        raise NoNumbers(
            f"this {type(tensor).__name__} ({tensor.device.type}) holds no values here; inspect its local part"
        )
    if tensor.is_nested:
        raise NoNumbers("a nested tensor has no one shape; inspect its parts: tensor.unbind()")


def _torch_array(values: Any, torch: Any) -> NDArray[Any]:
    """A NumPy view where there can be one: what is repeated stays so."""
    values = values.resolve_conj().resolve_neg()
    if values.device.type != "cpu":
        values = _torch_once(values).cpu().expand(values.shape)
    dtype = str(values.dtype).removeprefix("torch.")
    if dtype in _STORED_AS:
        values = values.view(torch.uint8 if _STORED_AS[dtype] is np.uint8 else torch.uint16)
    try:
        return np.asarray(values.numpy())
    except (TypeError, RuntimeError) as error:
        raise NoNumbers(f"cannot read a tensor of {dtype}: {error}; convert it: tensor.float()") from None


def _torch_once(values: Any) -> Any:
    for axis, (stride, size) in enumerate(zip(values.stride(), values.shape, strict=True)):
        if stride == 0 and size > 1:
            values = values.narrow(axis, 0, 1)
    return values
