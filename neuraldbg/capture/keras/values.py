"""Tensors of TensorFlow and JAX as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.capture.kernels.twin import row_of
from neuraldbg.capture.slices import BINS, MOST_NUMBERS, STATS, number, parse_slice
from neuraldbg.errors import UsageError

OF_OUTPUT = ("mean_activation", "std_activation", "min_activation", "max_activation", "norm_activation")
OF_GRADIENT = ("grad_mean", "grad_std", "grad_min", "grad_max", "grad_norm")
MB = 1e6


def concrete(value: Any) -> Any:
    """A tensor with values; None while a function is only being traced. JAX traces its gradients over values that are
    there."""
    while hasattr(value, "primal"):
        value = value.primal
    if not hasattr(value, "shape") or not hasattr(value, "dtype") or "Tracer" in type(value).__name__:
        return None
    symbolic = type(value).__module__.startswith("tensorflow") and not hasattr(value, "numpy")
    return None if symbolic or type(value).__name__ == "KerasTensor" else value


def first_of(value: Any) -> Any:
    """The first tensor with values in what a layer takes or gives."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return next((found for each in value if (found := first_of(each)) is not None), None)
    return concrete(value)


def dense(gradient: Any) -> Any:
    """Of an embedding TensorFlow gives the rows that were looked up."""
    if type(gradient).__name__ != "IndexedSlices":
        return gradient
    import tensorflow as tf

    return tf.convert_to_tensor(gradient)


def value_of(variable: Any) -> Any:
    """Of Keras an attribute, of TensorFlow a method."""
    value = variable.value
    return value() if callable(value) else value


def measured(value: Any) -> Any:
    """The numbers of a tensor; None of what has none."""
    if value is None:
        return None
    flat = _plain(value).ravel()
    if flat.dtype.kind not in "fiub" or not flat.size:
        return None
    return row_of(flat if flat.dtype in (np.float32, np.float64) else flat.astype(np.float32))


def _plain(value: Any) -> NDArray[Any]:
    """In a type that NumPy calculates with: bfloat16 and its like are none."""
    array = np.asarray(value)
    return np.asarray(value, dtype=np.float32) if array.size and array.dtype.kind == "V" else array


def fill_output(known: dict[str, Any], output: Any) -> None:
    """What conditions may ask of a layer that has run."""
    if "mean_activation" in known:
        return
    known["memory"] = np.asarray(output).nbytes / MB
    row = measured(output)
    if row is not None:
        known.update(zip(OF_OUTPUT, row[1:6], strict=True))
        known["zero_ratio"] = known["dead_ratio"] = row[6] / row[0] if row[0] else None
        known["nan_count"], known["inf_count"] = row[7], row[8]


def fill_gradient(known: dict[str, Any], gradient: Any) -> None:
    row = measured(gradient) if "grad_norm" not in known else None
    if row is not None:
        known.update(zip(OF_GRADIENT, row[1:6], strict=True))
        known["grad_nan_count"], known["grad_inf_count"] = row[7], row[8]


def shown(value: Any, part: str | None) -> dict[str, Any]:
    """As something that can be sent and drawn; `part` is a slice as people write it: `0, :8`."""
    index, array = parse_slice(part), _plain(value)
    try:
        chosen = array[index] if index else array
    except (IndexError, ValueError) as error:
        raise UsageError(f"slice {part!r} does not fit the shape {list(array.shape)}: {error}") from None
    row, flat = measured(array), np.asarray(chosen).reshape(-1)[:MOST_NUMBERS].tolist()
    return {
        "shape": list(array.shape),
        "dtype": _type_name(getattr(value, "dtype", array.dtype)),
        "device": str(getattr(value, "device", "cpu")).rpartition("device:")[2].lower(),  # of TensorFlow its last part
        "stats": None if row is None else {name: number(each) for name, each in zip(STATS, row[:9], strict=True)},
        "histogram": _histogram(array),
        "slice": part,
        "slice_shape": list(np.asarray(chosen).shape),
        "values": [number(each) for each in flat],
        "cut": np.asarray(chosen).size > MOST_NUMBERS,
    }


def _type_name(dtype: Any) -> str:
    """TensorFlow writes <dtype: 'float32'>."""
    text = str(dtype)
    return text.split("'")[1] if "'" in text else text


def _histogram(array: NDArray[Any]) -> dict[str, Any] | None:
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    if not finite.size or finite.dtype.kind not in "fiub":
        return None
    low, high = float(finite.min()), float(finite.max())
    counts = np.histogram(finite, BINS, (low, high))[0] if high > low else np.array([finite.size])
    return {"low": low, "high": high, "counts": [int(count) for count in counts]}
