"""The sign and the size of a loss: terms that are made larger, sums where means were meant."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.loss_score import lowers_its_reward
from neuraldbg.analysis.causes.loss_terms import (
    BOUNDED_BELOW,
    Fact,
    LossTerm,
    line_of_loss,
    loss_terms,
    not_recorded,
    written,
)
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Kind, Severity, SiteKind

_RUNAWAY = (
    "negative_loss",
    "diverging_loss",
    "exploding_activation",
    "exploding_gradient",
    "nan_loss",
    "inf_loss",
    "nan_gradient",
    "nan_activation",
    "no_learning",
    "loss_spike",
    "oscillating_loss",
    "update_ratio_too_high",
    "learning_rate_too_high",
    "missing_gradient_clipping",
    "missing_warmup",
    "exp_overflow",
)
SCALE_FREE = (
    "Adam",
    "AdamW",
    "NAdam",
    "RAdam",
    "Adamax",
    "RMSprop",
    "Adagrad",
    "Adadelta",
    "Rprop",
    "Lion",
    "Adafactor",
)
EARLY = 12  # backwards within which steps that are far too large blow a run up
LARGEST_FOR_A_MEAN = 1.0  # a learning rate of SGD above it is too high by itself


@cause(
    "loss_sign_flipped",
    group="loss",
    auto="R",
    explains=(*_RUNAWAY, "constant_output", "saturated_units", "overfitting"),
)
def loss_sign_flipped(evidence: Evidence) -> Iterator[Finding]:
    """A term of the loss is maximised instead of minimised.

    Finds: a loss function with a lowest value (squared error, cross entropy, KL divergence, ...) that enters the loss
    with a minus sign, with no term of the same kind and model that enters with a plus; and the log-probability of an
    action times its reward or advantage with a plus sign.
    Why it matters: every step makes that term worse. It has no upper bound, so the loss falls below zero for ever
    while the model forgets what it should learn.
    Decides by: the signs on the way from the loss down to the term in its autograd graph. Adversarial training, where
    the same kind of term is also minimised, is left alone. A policy gradient: also which variables of the script the
    weight rises with; where it rises with a cost, the plus sign is right.
    Usual cures: turn the sign; a likelihood is maximised by minimising minus its logarithm.
    """
    if _trains_a_model(evidence):
        yield from lowers_its_reward(evidence)
    if not_recorded(evidence, "loss_sign_flipped"):
        return
    terms = loss_terms(evidence)
    for term in terms:
        if not _maximised(term) or any(_opponent(term, other) for other in terms) or not _trains_a_model(evidence):
            continue
        divergence = term.kind == "gaussian_divergence"
        what = "the KL divergence of the latent code" if divergence else f"the {term.kind} term"
        lowest = evidence.curve("loss").values
        below = bool(len(lowest)) and float(np.nanmin(lowest)) < 0
        yield Finding(
            "loss_sign_flipped",
            Severity.CRITICAL if below or not divergence else Severity.WARNING,
            f"{what} enters the loss with a minus sign: training makes it larger",
            step=term.step,
            source=(_kl_line(evidence) if divergence else None) or line_of_loss(evidence, term),
            evidence={
                "sign": -1.0,
                "factor": float(term.get("factor") or -1.0),
                "seen_at_steps": len(term.facts),
                **({"lowest_loss": float(np.nanmin(lowest))} if len(lowest) else {}),
            },
            confidence=0.95,
            inference="the term has a lowest value and no highest one: minimising its negative has no end",
        )
        return


def _maximised(term: LossTerm) -> bool:
    signs = [fact.get("sign") for fact in term.facts]
    return term.kind in (*BOUNDED_BELOW, "gaussian_divergence") and bool(signs) and all(sign == -1.0 for sign in signs)


def _opponent(term: LossTerm, other: LossTerm) -> bool:
    """The same kind of loss, minimised elsewhere: two players, or two data sets with opposite aims."""
    return other is not term and other.kind == term.kind and 1.0 in [fact.get("sign") for fact in other.facts]


def _trains_a_model(evidence: Evidence) -> bool:
    """An optimizer moves weights of a model: the ascent on an input (an adversarial example) is no mistake."""
    weights = {site.id for site in evidence.of_kind(SiteKind.PARAMETER) if site.model is not None}
    moving = [fact for fact in evidence.facts("optimizer") if not _climbs(fact)]
    return bool(weights & {site for fact in moving for site in fact.get("parameter_sites") or ()})


def _climbs(optimizer: Fact) -> bool:
    """maximize=True: there a minus sign in the loss is right."""
    return any(group.get("maximize") for group in optimizer.get("groups") or ())


def _kl_line(evidence: Evidence) -> str | None:
    return written(evidence, r"(1 ?\+|pow\(2\)|\*\* ?2|square).*exp|exp.*(- ?1|pow\(2\)|\*\* ?2|square)")


@cause(
    "loss_reduction_scale",
    group="loss",
    auto="R",
    explains=(
        *_RUNAWAY,
        "dead_units",
        "constant_output",
        "loss_plateau",
        "saturated_units",
        "bad_init",
        "unnormalised_target",
        "momentum_too_high",
    ),
)
def loss_reduction_scale(evidence: Evidence) -> Iterator[Finding]:
    """A loss summed over the batch with a step size meant for the mean.

    Finds: a loss with reduction="sum" (or .sum()) whose gradients, batch-size times those of the mean, move most weight
    matrices by more than half their size, or blow the run up, under an optimizer that does not rescale gradients.
    Why it matters: the step is as many times too large as there are elements in a batch, and changes with its size.
    Decides by: the reduction in the graph of the loss, the elements it sums, the measured updates. A summed loss with
    a small step, or under Adam, is no fault and is not reported.
    Usual cures: reduction="mean"; or divide the learning rate by the number of elements that are summed.
    """
    if not_recorded(evidence, "loss_reduction_scale"):
        return
    for term in loss_terms(evidence):
        elements = _summed_elements(term)
        if elements < 8 or _rescaled(evidence) or _largest_rate(evidence) > LARGEST_FOR_A_MEAN:
            continue
        harm = _harm(evidence)
        if harm is None:
            continue
        yield Finding(
            "loss_reduction_scale",
            Severity.CRITICAL,
            f"the {term.kind} loss is summed over {elements} elements, but the learning rate "
            f"{_largest_rate(evidence):g} is one for their mean: {harm[0]}",
            step=term.step,
            source=written(evidence, r"reduction ?= ?['\"]sum|size_average ?= ?False|\.sum\(\)")
            or line_of_loss(evidence, term),
            evidence={"reduction": "sum", "elements": elements, "learning_rate": _largest_rate(evidence), **harm[1]},
            confidence=0.9,
            inference=f"gradients are {elements} times those of the mean, and so is every step",
        )
        return


def _summed_elements(term: LossTerm) -> int:
    """How many times larger the loss is than its mean over elements; 0 where it is no sum."""
    factor, shape = term.get("factor"), term.get("target_shape") or term.get("result_shape") or ()
    if factor is None or term.get("soft") or not shape:
        return 0
    count = math.prod(shape)
    by_hand = term.get("result_shape") is not None and not term.get("target_before")
    if by_hand and term.kind in ("mse", "l1"):
        return int(abs(factor) * math.prod(term.get("result_shape")) + 0.5)
    return int(abs(factor) * count + 0.5) if term.get("reduction") == "sum" else 0


def _rescaled(evidence: Evidence) -> bool:
    """Whether every optimizer divides gradients by their own size, or something clips them."""
    classes = [fact.get("class") for fact in evidence.facts("optimizer")]
    return bool(classes) and all(name in SCALE_FREE for name in classes)


def _largest_rate(evidence: Evidence) -> float:
    rates = [group.get("lr") for fact in evidence.facts("optimizer") for group in fact.get("groups") or ()]
    return max((float(rate) for rate in rates if isinstance(rate, int | float)), default=0.0)


def _harm(evidence: Evidence) -> tuple[str, dict[str, float | str]] | None:
    """What the size of the steps did, measured: a number that is not finite, or weights thrown about."""
    loss = evidence.curve("loss").values
    moved = _updates_over_weights(evidence)
    if len(loss) and not np.isfinite(loss).all():
        first = int(np.flatnonzero(~np.isfinite(loss))[0])
        if first <= EARLY or (moved is not None and moved >= 0.1):
            return f"the loss is no longer finite from backward {first} on", {"first_not_finite": float(first)}
    if moved is None:
        return None
    if moved >= 0.5:
        return f"an update moved the typical weight matrix by {moved:.0%} of its size", {"update_over_weight": moved}
    return None


def _updates_over_weights(evidence: Evidence) -> float | None:
    """The median over weight matrices of the second-largest relative update of the first measured steps."""
    weights = {
        site.id for site in evidence.of_kind(SiteKind.PARAMETER) if site.shape is not None and len(site.shape) > 1
    }
    updates, values = evidence.stats(Kind.UPDATE), evidence.stats(Kind.PARAMETER)
    size = {
        (int(s), int(step)): float(l2) for s, step, l2 in zip(values["site"], values["step"], values["l2"], strict=True)
    }
    ratios: dict[int, list[float]] = {}
    for site, step, l2 in zip(updates["site"].tolist(), updates["step"].tolist(), updates["l2"].tolist(), strict=True):
        before = size.get((site, step))
        if site in weights and before and math.isfinite(l2) and math.isfinite(before):
            ratios.setdefault(site, []).append(l2 / before)
    seconds = [sorted(found)[-2] for found in ratios.values() if len(found) > 1]
    return float(np.median(seconds)) if seconds else None
