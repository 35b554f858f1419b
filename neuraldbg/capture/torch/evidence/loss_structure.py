"""What the graph and the modules say of one term of a loss, without a look at its values."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.torch.evidence.graph_walk import Visit, Walk
from neuraldbg.capture.torch.evidence.leaks import MOST_COLUMNS
from neuraldbg.capture.torch.evidence.loss_terms import (
    LossTerm,
    activation_of,
    chain_of,
    operands_of,
    range_of,
    softmax_axis,
)
from neuraldbg.capture.torch.evidence.loss_values import TARGETS, Values
from neuraldbg.capture.torch.members import modules_of
from neuraldbg.capture.torch.nested import leaves
from neuraldbg.capture.torch.passes import KeptTensor, Pass


def structure_of(term: LossTerm, graph: Walk) -> Values:
    """What the graph says of a term, without a look at values."""
    facts: Values = {
        "kind": term.kind,
        "reduction": term.reduction,
        "sign": term.sign,
        "factor": term.visit.factor,
        "chain": chain_of(term, graph),
        "layer": None if term.fed is None else term.fed.layer,
        "output_layer": None if (made := graph.past_shapes(term.fed)) is None else made.layer,
        "ignore_index": term.ignore_index,
        "weighted": term.weighted,
        "soft": term.soft,
        "in_model": bool(term.visit.inside),
        "prediction_shape": None,
    }
    maker = graph.past_shapes(term.fed)
    facts["maker_site"] = None if maker is None else maker.layer
    found = activation_of(term, graph)
    if found is not None:
        facts |= _activation(*found, graph)
    if term.softmax is not None and softmax_axis(term.softmax) is not None:
        facts["softmax_dim"], shape = softmax_axis(term.softmax) or (0, ())
        facts |= {"softmax_shape": list(shape), "softmax_site": term.softmax.layer}
    operands = operands_of(term, graph)
    if operands is not None:
        facts["prediction_shape"], facts["result_shape"] = list(operands.prediction), list(operands.result)
        facts["target_before"] = None if operands.target is None else list(operands.target)
        facts["reshaped"] = operands.reshaped
    return facts


def _activation(visit: Visit, name: str, graph: Walk) -> Values:
    below = graph.past_shapes(graph.operand(visit))
    facts: Values = {
        "activation": name,
        "activation_site": visit.layer,
        "activation_inside": list(visit.inside),
        "fed_site": None if below is None else below.layer,
    }
    span = range_of(visit, name)
    if span is not None:
        facts["range"] = [span[0], span[1] if math.isfinite(span[1]) else None]
    axis = softmax_axis(visit)
    if axis is not None:
        facts |= {"activation_dim": axis[0], "activation_shape": list(axis[1])}
    return facts


def inputs_of(passes: list[Pass]) -> list[Tensor]:
    found = []
    for one in passes:
        if one.record is not None:
            found += [kept.tensor for kept in leaves((one.record.args, one.record.kwargs), KeptTensor)]
    return found[:16]


def token_ids(inputs: list[Tensor]) -> list[Tensor]:
    whole = (torch.int64, torch.int32)
    return [t for t in inputs if t.dim() == 2 and t.dtype in whole and min(t.shape) > 1 and t.numel() <= TARGETS][:3]


def columns_for(inputs: list[Tensor], target: Tensor | None, kind: str) -> Tensor | None:
    """The first input with one row of numbers per target."""
    if target is None or target.dim() == 0 or kind == "kl_div":
        return None
    rows = target.shape[0]
    for tensor in inputs:
        if tensor.is_floating_point() and 2 <= tensor.dim() <= 3 and tensor.shape[0] == rows == target.numel():
            return tensor if tensor.numel() <= MOST_COLUMNS * rows else None
    return None


def alike(inputs: list[Tensor], target: Tensor | None) -> Tensor | None:
    """The first input with the shape of the target."""
    if target is None or target.dim() < 2 or target.numel() > TARGETS:
        return None
    return next((one for one in inputs if one.shape == target.shape and one.is_floating_point()), None)


def recurrence_of(passes: list[Pass], known: IdentityTable[str]) -> str | None:
    """Whether the model is a recurrent one that reads forwards only. `known`: of models that were asked before."""
    for one in passes:
        root = one.model.ref()
        if root is None:
            continue
        answer = known.get(root)
        if answer is None:
            found = [module for module in modules_of(root) if isinstance(module, nn.RNNBase)]
            both = any(module.bidirectional for module in found)
            answer = known[root] = "no" if not found else "both ways" if both else "forwards"
        if answer != "no":
            return answer
    return None
