"""Attention as the graph of a loss shows it: over which axis weights sum to one, which keys each query may see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neuraldbg.capture.torch.evidence.graph_walk import SHAPES, Visit, Walk, saved, signed
from neuraldbg.capture.torch.evidence.loss_terms import softmax_axis
from neuraldbg.capture.torch.evidence.sequences import padding_of

Array = NDArray[Any]
Values = dict[str, Any]
_SCALING = ("Mul", "Div", "Add", "Sub", "MaskedFill", "Where", "Clamp", "NativeDropout", "Tanh")
_PRODUCTS = ("Bmm", "Mm", "Baddbmm")
_FUSED = "ScaledDotProduct"
WEIGHTS = 2**15  # attention weights that are looked at
LONGEST = 128  # positions of a sequence that are looked at


@dataclass(slots=True)
class Attention:
    """One softmax or fused attention met in the graph."""

    visit: Visit
    facts: Values
    weights: Tensor | None = None  # (..., queries, keys) or (..., keys); a key that is exactly 0 cannot be seen
    mask: Tensor | None = None  # of a fused one: -inf or False = hidden


def attentions_of(walk: Walk, most: int = 16) -> list[Attention]:
    found = []
    for visit in walk.visits:
        if visit.name in ("Softmax", "SafeSoftmax"):
            found.append(_softmax(visit, walk))
        elif visit.name.startswith(_FUSED):
            found.append(_fused(visit))
        if len(found) == most:
            break
    return [one for one in found if one is not None]


def _softmax(visit: Visit, walk: Walk) -> Attention | None:
    axis = softmax_axis(visit)
    if axis is None:
        return None
    dim, shape = axis
    facts: Values = {"op": "softmax", "dim": dim, "shape": list(shape)}
    used = _contracted_axis(visit, len(shape))
    compared = _compares_two_projections(visit, walk)
    facts["attention"] = compared and used is not None
    facts["summed_dim"] = used
    return Attention(visit, facts, saved(visit.node, "result") if used == dim or used is None else None)


def _contracted_axis(visit: Visit, dims: int) -> int | None:
    """The axis of the weights over which they are summed with the values: of `weights @ values` the last one."""
    order: list[int | None] = list(range(dims))  # which axis of the weights stands where, from the front
    below = visit
    for one in visit.up():
        if one.name in _PRODUCTS:
            return _of_product(one, below.slot, order)
        if one.name == "Sum" and below.name == "Mul":
            return _of_sum(one, order)
        moved = _moved(one, order)
        if moved is None:
            return None
        order, below = moved, one
    return None


def _of_product(product: Visit, slot: int, order: list[int | None]) -> int | None:
    if product.name == "Baddbmm" or slot > 1:
        return None
    place = -1 if slot == 0 else -2
    return order[place] if len(order) >= 2 else None


def _of_sum(total: Visit, order: list[int | None]) -> int | None:
    dims = saved(total.node, "dim")
    if not isinstance(dims, tuple) or len(dims) != 1:
        return None
    place = signed(dims[0], len(order))
    return order[place] if place < len(order) else None


def _moved(one: Visit, order: list[int | None]) -> list[int | None] | None:
    """Where the axes stand after one more operation; None when it does more than move them."""
    shape = one.shape
    if shape is None:
        return None
    if one.name == "Transpose":
        first, second = (signed(saved(one.node, name), len(order)) for name in ("dim0", "dim1"))
        order = list(order)
        order[first], order[second] = order[second], order[first]
        return order
    if one.name == "Permute":
        return [order[signed(place, len(order))] for place in saved(one.node, "dims")]
    if one.name == "T":
        return order[::-1]
    if one.name == "Unsqueeze":
        place = signed(saved(one.node, "dim"), len(shape))
        return [*order[:place], None, *order[place:]]
    if one.name in ("View", "UnsafeView", "ReshapeAlias"):
        return _viewed(one, order, shape)
    if one.name in ("Expand", "Clone", "ToCopy", "Alias", "NativeDropout", "MaskedFill") or one.name == "Mul":
        return [*[None] * (len(shape) - len(order)), *order] if len(shape) >= len(order) else None
    return None


def _viewed(one: Visit, order: list[int | None], shape: tuple[int, ...]) -> list[int | None] | None:
    """Axes that a view leaves alone, counted from the end and from the front; the merged ones are nobody's."""
    before = saved(one.node, "self_sym_sizes")
    if before is None or len(before) != len(order):
        return None
    moved: list[int | None] = [None] * len(shape)
    for place in range(1, min(len(shape), len(before)) + 1):
        if before[-place] != shape[-place]:
            break
        moved[-place] = order[-place]
    for place in range(min(len(shape), len(before))):
        if before[place] != shape[place]:
            break
        moved[place] = order[place]
    return moved


def _compares_two_projections(visit: Visit, walk: Walk) -> bool:
    """Whether the scores are a product of two computed tensors (queries and keys), not of one with a weight."""
    one = walk.operand(visit)
    for _ in range(12):
        if one is None:
            return False
        if one.name in _PRODUCTS:
            factors = [child for child, _ in one.node.next_functions if child is not None][-2:]
            made = [walk.past_shapes(walk.of.get(child)) for child in factors]
            return len(made) == 2 and all(each is not None and each.name != "AccumulateGrad" for each in made)
        if one.name not in SHAPES and one.name not in _SCALING:
            return False
        one = walk.operand(one)
    return False


def _fused(visit: Visit) -> Attention | None:
    query, key = saved(visit.node, "query"), saved(visit.node, "key")
    if not isinstance(query, Tensor) or not isinstance(key, Tensor) or query.dim() != 4:
        return None
    mask = next((m for m in (saved(visit.node, n) for n in ("attn_mask", "attn_bias")) if isinstance(m, Tensor)), None)
    causal = saved(visit.node, "is_causal")
    shape = [*query.shape[:3], key.shape[2]]
    facts: Values = {"op": "scaled_dot_product_attention", "dim": 3, "shape": shape, "attention": True, "summed_dim": 3}
    facts |= {"is_causal": bool(causal), "masked": mask is not None}
    return Attention(visit, facts, None, mask)


@torch.no_grad()
def seen_keys(one: Attention, batch: int) -> tuple[Tensor, int, int] | None:
    """True where a query may see a key, as (samples times heads, queries, keys); of how many samples; and every which
    key was taken of long sequences."""
    seen = _visible(one)
    if seen is None or seen.dim() < 3:
        return None
    per_sample = seen.shape[0] // batch if batch and seen.shape[0] % batch == 0 else 1
    stride = -(-seen.shape[2] // LONGEST)
    samples = max(WEIGHTS // max(per_sample * min(seen.shape[1], LONGEST) * min(seen.shape[2], LONGEST), 1), 2)
    return seen[: samples * per_sample, ::stride, ::stride].clone(), samples, stride


def _visible(one: Attention) -> Tensor | None:
    if one.mask is not None:
        seen = one.mask if one.mask.dtype == torch.bool else one.mask > -1e4
        return seen.reshape(-1, *seen.shape[-2:]) if seen.dim() >= 2 else None
    weights = one.weights
    if weights is None or weights.dim() < 2:
        return None
    if one.facts["dim"] != weights.dim() - 1:
        if weights.shape[-1] != 1 or one.facts["dim"] != weights.dim() - 2:
            return None
        weights = weights.squeeze(-1)
    seen = weights > 0
    if seen.dim() == 2:
        seen = seen.unsqueeze(1)
    return seen.reshape(-1, *seen.shape[-2:])


def of_seen(seen: Array, ids: Array | None) -> Values:
    """What a mask lets through: the past only? padding only?"""
    rows, queries, keys = seen.shape
    facts: Values = {"seen_share": float(seen.mean())}
    if queries == keys and queries > 2:
        facts["future_share"] = float(seen[:, np.triu(np.ones((queries, keys), bool), 1)].mean())
        facts["past_share"] = float(seen[:, np.tril(np.ones((queries, keys), bool))].mean())
    if ids is None or ids.shape[1] != keys or rows % len(ids):
        return facts
    padding = padding_of(ids)
    if padding is None:
        return facts
    visible = np.asarray(seen.reshape(len(ids), -1, keys).any(1))
    is_pad = np.asarray(ids == padding["token"])
    mixed = is_pad.any(1) & ~is_pad.all(1)
    if mixed.sum() >= 2:
        facts["pad_token"] = padding["token"]
        facts["pad_share"] = float(is_pad.mean())
        facts["real_seen"] = float(visible[mixed][~is_pad[mixed]].mean())
        facts["pad_seen"] = float(visible[mixed][is_pad[mixed]].mean())
    return facts
