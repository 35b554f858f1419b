"""A tensor as something that can be sent and drawn: shape, range, a histogram and the numbers of a part of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from neuraldbg.capture.slices import BINS, MOST_NUMBERS, STATS, number, parse_slice
from neuraldbg.capture.torch.stats import measurable, measure, plain
from neuraldbg.errors import UsageError


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
    return {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "device": str(tensor.device),
        "stats": None if measured is None else {n: number(v) for n, v in zip(STATS, measured[:9], strict=True)},
        "histogram": _histogram(dense),
        "slice": part,
        "slice_shape": list(chosen.shape),
        "values": _numbers(chosen),
        "cut": chosen.numel() > MOST_NUMBERS,
    }


def _numbers(chosen: Tensor) -> list[Any]:
    """Flat, the first so many, in the order of the slice."""
    flat = chosen.reshape(-1)[:MOST_NUMBERS]
    values = torch.view_as_real(flat).tolist() if flat.is_complex() else flat.tolist()
    return [number(value) if isinstance(value, float) else value for value in values]


def _histogram(dense: Tensor) -> dict[str, Any] | None:
    values = plain(dense).reshape(-1).float()
    finite = values[torch.isfinite(values)]
    if not finite.numel():
        return None
    low, high = float(finite.min()), float(finite.max())
    counts = torch.histc(finite, BINS, low, high) if high > low else torch.tensor([float(finite.numel())])
    return {"low": low, "high": high, "counts": [int(count) for count in counts.tolist()]}
