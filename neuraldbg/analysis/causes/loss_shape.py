"""Axes of a loss or a softmax confused: all pairs instead of one by one, shares taken over the wrong axis."""

from __future__ import annotations

import math
from collections.abc import Iterator

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.loss_terms import (
    Fact,
    LossTerm,
    line_of_loss,
    loss_terms,
    not_recorded,
    place_of,
    written,
)
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity

_STUCK = ("constant_output", "loss_plateau", "no_learning", "underfitting", "slow_convergence", "insufficient_capacity")
Shape = tuple[int, ...]


@cause(
    "broadcast_shape_bug",
    group="loss",
    auto="R",
    explains=(*_STUCK, "learning_rate_too_low", "label_shuffle_mismatch", "dead_units", "unnormalised_target"),
)
def broadcast_shape_bug(evidence: Evidence) -> Iterator[Finding]:
    """Predictions and targets broadcast against each other: every prediction meets every target.

    Finds: an element-wise loss whose result has more elements than either side, because the batch axes of the two do
    not stand in the same place: (N, 1) with (N,) gives N x N. Also any other sum, difference, product or quotient of
    predictions and a tensor without gradient in the loss code: a pinball loss, log probabilities times advantages.
    Why it matters: the best answer to all targets at once is their mean, so that is what the network learns to say.
    Decides by: the shapes on both sides before broadcasting, from the graph of the loss; where it does not keep the
    target's shape, the difference itself: row i minus row 0 is one number all along when all pairs were taken.
    Usual cures: squeeze the prediction or unsqueeze the target; compare shapes before the loss.
    """
    if not_recorded(evidence, "broadcast_shape_bug"):
        return
    for term in loss_terms(evidence):
        found = next((fact for fact in term.facts if _pairs_samples(fact)), None)
        if found is None:
            continue
        prediction, result = tuple(found["prediction_shape"]), tuple(found["result_shape"])
        target = tuple(found.get("target_before") or result[1:])
        proven = bool(found.get("target_before")) or found.get("all_pairs") is True
        yield Finding(
            "broadcast_shape_bug",
            Severity.CRITICAL,
            f"predictions {_shown(prediction)} and targets {_shown(target)} broadcast to {_shown(result)}: "
            "every prediction is compared with every target of the batch",
            step=int(found.get("at_step", 0)),
            source=line_of_loss(evidence, term),
            evidence={
                "prediction_shape": _shown(prediction),
                "target_shape": _shown(target),
                "result_shape": _shown(result),
                "pairs_per_sample": math.prod(result) / max(math.prod(prediction), 1),
            },
            confidence=0.98 if proven else 0.85,
            inference="the loss is lowest when all predictions equal the mean of the targets",
        )
        return


def _pairs_samples(fact: Fact) -> bool:
    """Whether the batch axis of one side lies across an axis that the other side does not have."""
    if not fact.get("prediction_shape") or not fact.get("result_shape") or fact.get("reshaped"):
        return False
    prediction, result = tuple(fact["prediction_shape"]), tuple(fact["result_shape"])
    if math.prod(result) <= math.prod(prediction) or prediction[0] < 2:
        return False
    target = fact.get("target_before")
    if target is None:
        square = len(result) >= 2 and result[0] == result[1] == prediction[0]
        return square and math.prod(result) == result[0] * math.prod(prediction) and fact.get("all_pairs") is not False
    wanted = tuple(target)
    if math.prod(result) <= math.prod(wanted) or not wanted or wanted[0] < 2:
        return False
    return _missing_there(prediction, wanted, result) or _missing_there(wanted, prediction, result)


def _missing_there(one: Shape, other: Shape, result: Shape) -> bool:
    """Whether `other` has nothing where the batch of `one` stands in the result."""
    place = len(result) - len(one)
    padded = (1,) * (len(result) - len(other)) + other
    return padded[place] == 1 and one[0] > 1


def _shown(shape: Shape) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


@cause(
    "wrong_softmax_dim",
    group="loss",
    auto="R",
    explains=(
        *_STUCK,
        "zero_gradient",
        "vanishing_gradient",
        "parameters_not_updating",
        "wrong_tensor_layout",
        "train_eval_mismatch",
        "softmax_before_cross_entropy",
        "missing_log_softmax",
        "negative_loss",
    ),
)
def wrong_softmax_dim(evidence: Evidence) -> Iterator[Finding]:
    """A softmax runs over the batch, the heads or the queries instead of the classes or keys.

    Finds: a log_softmax over another axis than the classes in front of the loss; a softmax over the batch axis; the
    weights of an attention that sum to one over another axis than the one they are summed over with the values.
    Why it matters: shares that should add up to one for each sample add up to one over other samples: outputs depend
    on who else is in the batch, and a batch of one always gives the same answer.
    Decides by: the axis of the softmax and its shape, from the autograd graph, and the axis that the product behind it
    sums over; a cross-sample probe confirms it where it ran.
    Usual cures: dim=-1 for scores that end in the class or key axis.
    """
    if not_recorded(evidence, "wrong_softmax_dim"):
        return
    for term in loss_terms(evidence):
        found = _over_wrong_axis(term)
        if found is not None:
            name, site, other, dim, shape = found
            yield _finding(
                evidence,
                (name, site, other),
                (dim, shape),
                f"runs over axis {dim} of {_shown(shape)}, not over the classes",
                term.step,
            )
            return
    for fact in evidence.facts("attention"):
        text = _attends_wrongly(fact, evidence)
        if text is not None:
            shape = tuple(fact["shape"])
            yield _finding(
                evidence, ("softmax", fact.get("site"), None), (fact["dim"], shape), text, int(fact.get("at_step", 0))
            )
            return


def _finding(
    evidence: Evidence, where: tuple[str, int | None, int | None], axis: tuple[int, Shape], text: str, step: int
) -> Finding:
    name, site, other = where
    dim, shape = axis
    layer, line = place_of(evidence, site, other)
    mixes = _mixing_probe(evidence)
    module = evidence.sites.get(-1 if site is None else site)
    own = module is not None and (module.op or "").lower() in ("softmax", "logsoftmax")
    return Finding(
        "wrong_softmax_dim",
        Severity.CRITICAL if dim == 0 else Severity.WARNING,
        f"the {name} of {layer or 'the output'} {text}",
        step=step,
        layer=layer,
        op=name,
        source=(module.defined or line if own and module else None) or written(evidence, r"[sS]oftmax\s*\(") or line,
        evidence={
            "dim": dim,
            "shape": _shown(shape),
            "sums_to_one_over": shape[dim],
            **({"other_samples_matter": mixes} if mixes is not None else {}),
        },
        confidence=0.95,
        inference="the numbers that are read together do not add up to one; what one sample gets depends on the others",
    )


def _over_wrong_axis(term: LossTerm) -> tuple[str, int | None, int | None, int, Shape] | None:
    """A log_softmax in front of nll_loss, or a softmax in front of any loss, over an axis that is not the classes."""
    normalised = term.all("log_normalised")
    dim, shape = term.get("softmax_dim"), tuple(term.get("softmax_shape") or ())
    wrong = bool(normalised) and max(normalised) < 0.5 and len(shape) > 1 and (term.get("rows") or 0) > 1
    wrong = wrong and not (len(shape) == 2 and dim == 1)  # a part of the classes was cut out afterwards
    if term.kind in ("cross_entropy", "picked_log_prob") and dim is not None and wrong and shape[dim] > 1:
        return "log_softmax", term.get("softmax_site"), term.get("layer"), dim, shape
    dim, shape = term.get("activation_dim"), tuple(term.get("activation_shape") or ())
    batch = (term.get("target_shape") or [0])[0]
    over_batch = dim == 0 and len(shape) > 1 and shape[0] == batch and shape[0] not in shape[1:]
    if term.get("activation") in ("Softmax", "LogSoftmax") and over_batch and shape[0] > 1:
        return "softmax", term.get("activation_site"), term.get("fed_site"), 0, shape
    return None


def _attends_wrongly(fact: Fact, evidence: Evidence) -> str | None:
    dim, summed, shape = fact.get("dim"), fact.get("summed_dim"), tuple(fact.get("shape") or ())
    if fact.get("op") != "softmax" or dim is None or not shape:
        return None
    if summed is not None and summed != dim:
        if fact.get("attention"):
            return f"runs over axis {dim} of {_shown(shape)}, but the values are summed over axis {summed}"
        if shape[dim] == 1 and shape[summed] > 1:
            return f"runs over axis {dim} of {_shown(shape)}, which has one entry: every weight is 1"
    batches = fact.get("batch") or []
    rows = {(term.get("target_shape") or [0])[0] for term in loss_terms(evidence)}
    samples = dim == 0 and len(shape) > 1 and shape[0] > 1 and shape[0] not in shape[1:]
    if samples and summed != 0 and shape[0] in batches and shape[0] in rows and _mixing_probe(evidence) != 0.0:
        return f"runs over axis 0 of {_shown(shape)}, the samples of the batch"
    return None


def _mixing_probe(evidence: Evidence) -> float | None:
    """By how much other samples changed an output, where that was tried; 0 = not at all."""
    tried = evidence.probe("cross_sample")
    if tried is None:
        return None
    return float(tried.get("leak") or 0.0) if tried.get("leaks") else 0.0
