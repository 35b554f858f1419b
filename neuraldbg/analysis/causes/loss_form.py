"""What is put into a loss does not fit it: probabilities for scores, scores for log-probabilities, a bounded output."""

from __future__ import annotations

import math
from collections.abc import Iterator

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.loss_terms import (
    NUMERIC,
    LossTerm,
    line_of_loss,
    loss_terms,
    not_recorded,
    output_layer,
    place_of,
    written,
)
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity

_SLOW = ("loss_plateau", "slow_convergence", "no_learning", "underfitting", "vanishing_gradient")
_NEVER_FITS = (*_SLOW, "constant_output", "zero_gradient", "dead_units", "saturated_units", "insufficient_capacity")


@cause(
    "softmax_before_cross_entropy",
    group="loss",
    auto="R",
    explains=(*_SLOW, "learning_rate_too_low", "insufficient_training", "insufficient_capacity"),
    excludes=("wrong_activation_last_layer",),
)
def softmax_before_cross_entropy(evidence: Evidence) -> Iterator[Finding]:
    """Probabilities are fed to a cross entropy that applies softmax itself.

    Finds: a softmax (module or function) whose result is the input of cross_entropy, whatever lies between them that
    only changes the shape or clamps.
    Why it matters: scores between 0 and 1 can never differ by more than 1, so the loss has a floor of
    log(1 + (C - 1) / e) for C classes and gradients shrink as the model gets surer. It learns, slowly and badly.
    Decides by: the operation that made the loss's input, read from the autograd graph of the loss.
    Usual cures: return the raw scores from the model and apply softmax only where probabilities are shown.
    """
    yield from _left_out(evidence)
    if not_recorded(evidence, "softmax_before_cross_entropy"):
        return
    for term in loss_terms(evidence):
        classes = _units(term)
        if term.kind not in ("cross_entropy", "picked_log_prob") or term.get("activation") != "Softmax" or classes == 1:
            continue
        layer, line = place_of(evidence, term.get("activation_site"), term.get("fed_site"))
        numbers: dict[str, float | str] = {"classes": classes, "made_by": "softmax", "seen_at_steps": len(term.facts)}
        if classes > 1:
            numbers["lowest_possible_loss"] = math.log(1 + (classes - 1) / math.e)
        curve = evidence.curve("loss")
        if curve:
            numbers["lowest_loss_reached"] = float(curve.values.min())
        yield Finding(
            "softmax_before_cross_entropy",
            Severity.WARNING,
            f"{layer or 'the model'} ends in a softmax, and cross_entropy applies log_softmax to its output again",
            step=term.step,
            layer=layer,
            op="softmax",
            source=_own_line(evidence, term, line, r"softmax\s*\(|Softmax\("),
            evidence=numbers,
            confidence=0.97,
            inference="cross_entropy expects raw scores; after a softmax they lie between 0 and 1, which bounds the "
            "loss from below and flattens its gradient",
        )
        return


def _left_out(evidence: Evidence) -> Iterator[Finding]:
    """Of a `.neural` file: the softmax it names was not built, so nothing was harmed."""
    for fact in evidence.facts("left_out"):
        if fact.get("kind") == "softmax_before_cross_entropy":
            yield Finding(
                "softmax_before_cross_entropy",
                Severity.INFO,
                str(fact.get("message")),
                layer=fact.get("layer"),
                op="softmax",
                source=fact.get("source"),
                evidence={"built": "without it"},
                confidence=1.0,
                inference="cross_entropy expects raw scores; the file as it is written would flatten the gradient",
            )


@cause(
    "sigmoid_before_bce_with_logits",
    group="loss",
    auto="R",
    explains=(*_SLOW, "learning_rate_too_low", "insufficient_training", "insufficient_capacity"),
    excludes=("wrong_activation_last_layer",),
)
def sigmoid_before_bce_with_logits(evidence: Evidence) -> Iterator[Finding]:
    """Probabilities are fed to a binary cross entropy that applies sigmoid itself.

    Finds: a sigmoid (or softmax) whose result is the input of binary_cross_entropy_with_logits; also several, one for
    each head, that were joined (cat, stack) or averaged before.
    Why it matters: sigmoid of a value in (0, 1) lies between 0.5 and 0.73: a negative sample can never get less than
    probability 0.5, and the loss stays above 0.31 for positives and 0.69 for negatives.
    Decides by: the operation that made the loss's input, read from the autograd graph of the loss.
    Usual cures: return the raw scores, or use BCELoss on the probabilities (less stable).
    """
    if not_recorded(evidence, "sigmoid_before_bce_with_logits"):
        return
    for term in loss_terms(evidence):
        name = term.get("activation")
        squashed = name in ("Sigmoid", "Hardsigmoid") or (name == "Softmax" and _units(term) > 1)
        if term.kind != "bce_with_logits" or not squashed:
            continue
        layer, line = place_of(evidence, term.get("activation_site"), term.get("fed_site"))
        yield Finding(
            "sigmoid_before_bce_with_logits",
            Severity.WARNING,
            f"{layer or 'the model'} ends in a {name.lower()}, and binary_cross_entropy_with_logits applies sigmoid "
            "to its output again",
            step=term.step,
            layer=layer,
            op=name.lower(),
            source=_own_line(evidence, term, line, r"sigmoid\s*\(|Sigmoid\("),
            evidence={
                "made_by": name.lower(),
                "smallest_input": float(min(term.all("input_min"), default=0.0)),
                "largest_input": float(max(term.all("input_max"), default=1.0)),
                "lowest_possible_loss": 0.3133,
            },
            confidence=0.97,
            inference="the loss expects raw scores; squashed twice, no probability can fall below 0.5",
        )
        return


@cause(
    "missing_log_softmax",
    group="loss",
    auto="R",
    explains=(
        "negative_loss",
        "diverging_loss",
        "exploding_activation",
        "exploding_gradient",
        "no_learning",
        "learning_rate_too_high",
        "nan_loss",
        "inf_loss",
        "missing_gradient_clipping",
        "class_imbalance",
        "constant_output",
    ),
)
def missing_log_softmax(evidence: Evidence) -> Iterator[Finding]:
    """nll_loss is fed scores or probabilities instead of log-probabilities.

    Finds: an nll_loss (or kl_div) whose input rows are not logarithms of probabilities.
    Why it matters: nll_loss only picks the number of the right class and changes its sign. On raw scores it falls
    without bound as all scores grow, and the wrong classes are never pushed down.
    Decides by: the input itself: a logarithm of a probability is never above 0, and the exponentials of a row sum to 1.
    Usual cures: log_softmax before nll_loss, or cross_entropy, which does both.
    """
    if not_recorded(evidence, "missing_log_softmax"):
        return
    for term in loss_terms(evidence):
        found = _not_log_probabilities(term)
        if found is None:
            continue
        name = "kl_div" if term.kind == "kl_div" else "nll_loss"
        what = "probabilities" if found["made_by"] == "softmax" else "raw scores"
        yield Finding(
            "missing_log_softmax",
            Severity.CRITICAL,
            f"{name} is given {what} instead of log-probabilities",
            step=term.step,
            layer=output_layer(evidence, term),
            source=line_of_loss(evidence, term),
            evidence={**found, "seen_at_steps": len(term.facts)},
            confidence=0.97,
            inference="the loss is then no likelihood: it has no lower bound, and its value says nothing",
        )
        return


def _not_log_probabilities(term: LossTerm) -> dict[str, float | str] | None:
    made_by = str(term.get("activation") or (term.get("chain") or ["?"])[0]).lower()
    if term.kind == "nll":
        normalised, positive = term.all("log_normalised"), term.all("positive_scores")
        if normalised and max(normalised) < 0.5 and sum(share > 0.01 for share in positive) > len(positive) / 2:
            return {"made_by": made_by, "rows_normalised": max(normalised), "scores_above_zero": max(positive)}
    if term.kind == "kl_div" and term.get("activation") == "Softmax":
        return {"made_by": made_by, "smallest_input": float(min(term.all("input_min"), default=0.0))}
    return None


@cause(
    "wrong_activation_last_layer",
    group="arch",
    auto="R",
    explains=(
        *_NEVER_FITS,
        "bad_init",
        "learning_rate_too_low",
        "unnormalised_target",
        "class_imbalance",
        "saturating_activation",
        "corrupted_labels",
        "zero_gradient",
    ),
)
def wrong_activation_last_layer(evidence: Evidence) -> Iterator[Finding]:
    """The output activation cannot produce what the target asks for.

    Finds: a ReLU, sigmoid, tanh or softmax right in front of the loss whose range leaves out a part of the targets; a
    softmax over a single unit (always 1); a bounded or one-sided activation in front of a loss that expects scores.
    Why it matters: no setting of the weights can bring the loss down for those targets, and the gradient in the flat
    part of the activation is zero.
    Decides by: the operation that made the loss's input (from the autograd graph) and the range of the targets.
    Usual cures: no activation on a regression output; scores without activation for cross_entropy and
    BCE-with-logits; sigmoid, not softmax, for a single unit.
    """
    if not_recorded(evidence, "wrong_activation_last_layer"):
        return
    for term in loss_terms(evidence):
        found = _one_unit(term) or _out_of_range(term) or _squashed_scores(term)
        if found is None:
            continue
        severity, confidence, text, numbers = found
        layer, line = place_of(evidence, term.get("activation_site"), term.get("fed_site"))
        name = str(term.get("activation") or "softmax").lower()
        yield Finding(
            "wrong_activation_last_layer",
            severity,
            f"{layer or 'the output'}: {text}",
            step=term.step,
            layer=layer,
            op=name,
            source=line or line_of_loss(evidence, term),
            evidence={"activation": name, "loss": term.kind, **numbers},
            confidence=confidence,
            inference="the targets lie where the network cannot put its output",
        )
        return


Judged = tuple[Severity, float, str, dict[str, float | str]]


def _units(term: LossTerm) -> int:
    """Size of the axis a softmax runs over; -1 when unknown."""
    shape, dim = term.get("activation_shape"), term.get("activation_dim")
    return int(shape[dim]) if shape and dim is not None and dim < len(shape) else -1


def _one_unit(term: LossTerm) -> Judged | None:
    soft = term.get("activation") in ("Softmax", "LogSoftmax") and _units(term) == 1
    shape = term.get("activation_shape") or ()
    if soft and math.prod(shape) > 1:
        value = "1" if term.get("activation") == "Softmax" else "0"
        return (
            Severity.CRITICAL,
            0.98,
            f"softmax over a single unit is always {value}, whatever the input",
            {"units": 1},
        )
    if term.kind == "cross_entropy" and term.get("classes") == 1 and not term.get("soft"):
        return (
            Severity.CRITICAL,
            0.95,
            "cross_entropy over a single class is always 0: nothing can be learnt",
            {"units": 1},
        )
    return None


def _out_of_range(term: LossTerm) -> Judged | None:
    shares = term.all("target_outside")
    if term.kind not in NUMERIC or not shares or term.get("activation") is None:
        return None
    share = sum(shares) / len(shares)
    if share < 0.02:
        return None
    low, high = term.get("range")
    span = f"{low:g} and above" if high is None else f"{low:g} to {high:g}"
    targets = (min(term.all("target_min")), max(term.all("target_max")))
    text = f"{term.get('activation').lower()} gives {span}, the targets run from {targets[0]:.3g} to {targets[1]:.3g}"
    numbers: dict[str, float | str] = {
        "share_of_targets_outside": share,
        "smallest_target": targets[0],
        "largest_target": targets[1],
    }
    return Severity.CRITICAL if share > 0.2 else Severity.WARNING, 0.96, text, numbers


def _squashed_scores(term: LossTerm) -> Judged | None:
    """A bounded or one-sided activation where raw scores belong."""
    name = term.get("activation")
    if term.kind == "bce_with_logits" and name in ("Relu", "Softplus"):
        text = f"{name.lower()} in front of BCE-with-logits: no score below 0, so no probability below 0.5"
        return Severity.CRITICAL, 0.95, text, {"smallest_input": float(min(term.all("input_min"), default=0.0))}
    if term.kind not in ("cross_entropy", "bce_with_logits"):
        return None
    if name in ("Tanh", "Hardtanh", "Hardsigmoid") or (name == "Sigmoid" and term.kind == "cross_entropy"):
        text = f"{name.lower()} in front of {term.kind}: scores stay within {_span(term)}, so no class can become sure"
        return Severity.WARNING, 0.93, text, {"classes": float(term.get("classes") or 0)}
    stuck = (term.get("prediction_share") or 0.0) > 0.95 and (term.get("label_share") or 1.0) < 0.8
    if name == "Relu" and term.kind == "cross_entropy":
        text = "relu in front of cross_entropy: scores below 0 are cut off, and a unit at 0 gets no gradient"
        share = float(term.get("prediction_share") or 0.0)
        return Severity.WARNING if stuck else Severity.INFO, 0.85 if stuck else 0.5, text, {"same_prediction": share}
    return None


def _span(term: LossTerm) -> str:
    low, high = term.get("range") or (None, None)
    return f"{low} to {high}"


def _own_line(evidence: Evidence, term: LossTerm, line: str | None, pattern: str) -> str | None:
    """Of a function inside a forward the line that calls it; of a module its own."""
    site = evidence.sites.get(term.get("activation_site") if term.get("activation_site") is not None else -1)
    is_module = site is not None and site.op is not None and site.op.lower() in ("softmax", "sigmoid", "logsoftmax")
    return (line if is_module else written(evidence, pattern) or line) or line_of_loss(evidence, term)
