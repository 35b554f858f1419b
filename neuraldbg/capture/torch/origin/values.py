"""What a NaN hunt wants to know of a tensor: not its mean, but its zeros, its infinities and how large it is."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from neuraldbg.capture.torch.stats import measurable, plain

EXP_LIMIT = 88.0  # exp of more overflows float32
HALF_LIMIT = 65504.0
_LARGEST = 2**24  # elements that are described exactly; of larger tensors the beginning


def readable(tensor: Any) -> bool:
    """Whether a tensor can hold NaN and its values can be read here."""
    return (
        isinstance(tensor, Tensor)
        and (tensor.is_floating_point() or tensor.is_complex())
        and tensor.numel() > 0
        and measurable(tensor)
    )


def not_finite(tensor: Any) -> bool:
    """Whether a tensor holds a NaN or an infinity. The sum tells quickly; only one that is not finite is looked at
    closely, since huge finite values overflow it too. Waits for the device."""
    if not readable(tensor):
        return False
    values = plain(tensor, widen=False)
    if values.dtype in (torch.float16, torch.bfloat16):
        total = float(values.sum(dtype=torch.float32))
    else:
        total = float(values.sum()) if values.element_size() > 1 else float(values.float().sum())
    return not math.isfinite(total) and not bool(torch.isfinite(values).all())


def has_nan(tensor: Any) -> bool:
    return readable(tensor) and bool(torch.isnan(plain(tensor)).any())


def only_masks(tensor: Tensor) -> bool:
    """Infinities of one sign and no NaN: what a mask looks like."""
    values = plain(tensor)
    return not bool(torch.isnan(values).any()) and not bool((values == math.inf).any())


@torch.no_grad()
def describe(tensor: Any) -> dict[str, Any]:
    """Shape, type, and the counts that tell why an operation failed on it. Only finite numbers: ready for JSON."""
    if not isinstance(tensor, Tensor):
        return {}
    about: dict[str, Any] = {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
    if not measurable(tensor) or tensor.numel() == 0:
        return about
    values = plain(tensor.reshape(-1)[:_LARGEST] if tensor.numel() > _LARGEST else tensor)
    finite = torch.isfinite(values)
    kept = values[finite]
    about |= {"nan": int(torch.isnan(values).sum()), "inf": int(torch.isinf(values).sum())}
    about |= {"zeros": int((values == 0).sum()), "negative": int((values < 0).sum())}
    if kept.numel():
        about |= {"min": float(kept.min()), "max": float(kept.max())}
        about["over_88"] = int((kept > EXP_LIMIT).sum())
        about["over_65504"] = int((kept.abs() > HALF_LIMIT).sum())
    if about["inf"] and values.dim():
        about["neg_inf_rows"] = int((values == -math.inf).all(dim=-1).sum())
    return about


def bad_rows(tensor: Tensor) -> int:
    """How many entries along the first dimension hold a NaN or an infinity."""
    values = plain(tensor)
    bad = ~torch.isfinite(values)
    return int(bad.reshape(bad.shape[0], -1).any(dim=1).sum()) if bad.dim() else int(bad)


def largest(described: list[dict[str, Any]]) -> float | None:
    """The largest finite magnitude among some described tensors."""
    ends = [abs(one[end]) for one in described for end in ("min", "max") if end in one]
    return max(ends) if ends else None
