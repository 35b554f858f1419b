"""Targets by themselves: their sort, their scale, how they are spread, whether they can be right."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.loss_terms import (
    NUMERIC,
    OVER_CLASSES,
    LossTerm,
    line_of_loss,
    loss_terms,
    not_recorded,
    output_layer,
    speaks_of_classes,
)
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.idioms import fallback_line
from neuraldbg.records import Finding, Severity

_POOR = ("loss_plateau", "underfitting", "slow_convergence", "no_learning", "constant_output", "insufficient_capacity")
TOLD_APART = 0.6  # probability of the own label among all labels but the common one
EVENLY = 0.3
MANY = 60  # samples
ORDERED = 0.5  # of what tells the inputs of two labels apart: above it the labels are a quantity
LATE = 50  # updates after which a model has had its chance to tell classes apart
Judged = tuple[Severity, float, str, dict[str, float | str]]


@cause(
    "wrong_loss_for_labels",
    group="loss",
    auto="S",
    explains=(*_POOR, "negative_loss", "diverging_loss", "unnormalised_target", "wrong_activation_last_layer"),
)
def wrong_loss_for_labels(evidence: Evidence) -> Iterator[Finding]:
    """The loss does not fit the sort of label.

    Finds: softmax cross entropy against rows of several ones (multi-label) that are not the input itself; binary cross
    entropy against numbers outside 0 to 1 (class ids); squared or absolute error against class ids 0, 1, ..., K-1 in a
    script that classifies.
    Why it matters: cross entropy makes classes compete that may all be true; a binary loss on ids has no lower bound;
    a squared error on ids says that class 3 lies between 2 and 4.
    Decides by: the targets as the loss received them. Whole numbers alone are no proof (ratings, counts), so for a
    regression loss the ids must start at 0, be about equally common, the script must measure itself as a classifier,
    and the inputs must not follow the order of the ids: the mean inputs of a quantity's values lie along a line.
    Usual cures: cross_entropy for one class of several, BCE-with-logits for several labels at once, MSE for quantities.
    """
    if not_recorded(evidence, "wrong_loss_for_labels"):
        return
    for term in loss_terms(evidence):
        found = _several_ones(term) or _outside_unit(term) or _class_ids(evidence, term)
        if found is None:
            continue
        severity, confidence, text, numbers = found
        yield Finding(
            "wrong_loss_for_labels",
            severity,
            text,
            step=term.step,
            layer=output_layer(evidence, term),
            source=line_of_loss(evidence, term),
            evidence={"loss": term.kind, **numbers},
            confidence=confidence,
            inference="what the loss rewards is not what the labels mean",
        )
        return
    yield from _refused(evidence)


def _several_ones(term: LossTerm) -> Judged | None:
    if term.kind != "cross_entropy" or not term.get("soft") or not all(term.all("target_binary") or [False]):
        return None
    if all(term.all("target_is_input") or [False]):
        return None  # the likelihood of draws from one distribution, given some of them: a multinomial autoencoder
    single = term.all("target_rows_sum_to_one")
    if not single or sum(single) / len(single) > 0.9:
        return None
    low, mean, high = term.get("target_row_sums")
    text = f"cross_entropy is given multi-label targets: rows hold {low:g} to {high:g} ones, {mean:.2g} on average"
    numbers: dict[str, float | str] = {
        "ones_per_row": mean,
        "most_ones": high,
        "rows_with_one": sum(single) / len(single),
    }
    return Severity.CRITICAL, 0.95, text, numbers


def _outside_unit(term: LossTerm) -> Judged | None:
    if term.kind not in ("bce", "bce_with_logits"):
        return None
    low, high = min(term.all("target_min"), default=0.0), max(term.all("target_max"), default=1.0)
    if low >= -1e-3 and high <= 1 + 1e-3:
        return None
    whole = all(term.all("target_integer"))
    text = f"{term.kind} needs targets between 0 and 1 and gets {low:g} to {high:g}" + (", class ids" if whole else "")
    return Severity.CRITICAL, 0.95, text, {"smallest_target": low, "largest_target": high}


def _class_ids(evidence: Evidence, term: LossTerm) -> Judged | None:
    """Whole numbers 0..K-1, about equally common, predicted by a single unit."""
    labels = term.labels
    ids = sorted(labels)
    if term.kind not in NUMERIC or not all(term.all("target_integer") or [False]) or not 3 <= len(ids) <= 30:
        return None
    if ids != [float(number) for number in range(len(ids))] or _width(term) != 1:
        return None
    counts = np.array([labels[each] for each in ids], float)
    shares = counts / counts.sum()
    evenness = float(-(shares * np.log(shares)).sum() / math.log(len(ids)))
    word = speaks_of_classes(evidence)
    classifies = any(other.kind in OVER_CLASSES for other in loss_terms(evidence))  # then the word is about that one
    order = (evidence.fact("relation") or {}).get("order")
    if order is not None and order >= ORDERED:
        return None
    sure = evenness > 0.9 and word is not None and order is not None and counts.sum() >= 64 and not classifies
    text = f"{term.kind} on class ids 0 to {len(ids) - 1}: their order and distance mean nothing"
    numbers: dict[str, float | str] = {"classes": len(ids), "evenness": evenness, "script_says": word or "-"}
    numbers["inputs_follow_their_order"] = "not known" if order is None else order
    return (Severity.WARNING, 0.85, text, numbers) if sure else (Severity.INFO, 0.4, text, numbers)


def _width(term: LossTerm) -> int:
    shape = term.get("target_shape") or ()
    return math.prod(shape[1:]) if shape else 0


_REFUSALS = {
    "multi-target not supported": "cross_entropy was given a target of shape (N, 1) or (N, C) of class ids",
    "expected scalar type Long": "a loss over classes was given labels that are no whole numbers",
    "Expected floating point type for target with class probabilities": "cross_entropy was given rows of integers",
}


def _refused(evidence: Evidence) -> Iterator[Finding]:
    error = evidence.run.error or ""
    for words, text in _REFUSALS.items():
        if words in error:
            yield Finding(
                "wrong_loss_for_labels",
                Severity.CRITICAL,
                text,
                step=evidence.last_step if evidence.updates else 0,
                evidence={"error": error[:200]},
                confidence=0.85,
                inference="the loss function refused the labels",
            )
            return


@cause(
    "corrupted_labels",
    group="data",
    auto="N",
    explains=(
        "class_imbalance",
        "loss_plateau",
        "underfitting",
        "no_learning",
        "constant_output",
        "suspiciously_low_loss",
        "unnormalised_target",
        "data_outlier_batch",
        "loss_spike",
        "exploding_gradient",
        "insufficient_capacity",
        "crash",
    ),
)
def corrupted_labels(evidence: Evidence) -> Iterator[Finding]:
    """Labels are wrong, constant or out of range.

    Finds: a classifier whose labels are one and the same all through the run; a label beyond the number of classes; a
    number far outside all other targets that occurs again and again (-999 for "missing"); one label into which the same
    share of every other class has fallen.
    Why it matters: the model learns the mistake.
    Decides by: counts and range of the targets at the loss, the error of the script, and for fallen labels the mean
    probabilities per label at the end of the run: lost to one label, in the same share, by every other class, while
    those classes are told apart from each other. (A common class that merely overlaps with the others takes more from
    some of their samples than from others.)
    Usual cures: look at the rows in question; repair the code table or the parser; drop rows without a label.
    """
    found = _out_of_bounds(evidence)
    terms = loss_terms(evidence)
    for term in terms:
        if found is not None:
            break
        found = _constant(term, terms, evidence) or _sentinel(term) or _fallen(term)
    if found is None:
        return
    severity, confidence, text, numbers = found
    line = next((line_of_loss(evidence, term) for term in terms), None)
    if "share_fallen" in numbers:  # a code table that answers so whenever it knows no better
        line = fallback_line(evidence, float(numbers["label"])) or line
    yield Finding(
        "corrupted_labels",
        severity,
        text,
        step=0,
        source=line,
        evidence=numbers,
        confidence=confidence,
        inference="the labels do not say what they should; no setting of the training can make up for it",
    )


def _out_of_bounds(evidence: Evidence) -> Judged | None:
    error = evidence.run.error or ""
    match = re.search(r"Target (-?\d+) is out of bounds", error)
    if match is None:
        return None
    classes = next((term.get("classes") for term in loss_terms(evidence) if term.kind in OVER_CLASSES), None)
    numbers: dict[str, float | str] = {"label": int(match.group(1)), "error": error[:200]}
    if classes is not None:
        numbers["classes"] = int(classes)
    return Severity.CRITICAL, 0.9, f"label {match.group(1)} lies outside the classes the model has", numbers


def _constant(term: LossTerm, terms: list[LossTerm], evidence: Evidence) -> Judged | None:
    """Also true of a contrastive loss whose positive stands first, and of one side of an adversarial pair: there the
    scores are no layer's output, or another term has the other label."""
    labels = term.labels
    if term.kind != "cross_entropy" or len(labels) != 1 or sum(labels.values()) < 128 or (term.get("classes") or 0) < 2:
        return None
    made_by = (term.get("chain") or ["?"])[0]
    others = [other for other in terms if other is not term and other.kind == term.kind]
    if made_by not in ("Addmm", "Mm", "Convolution") or others or evidence.last_step < 20 or len(term.facts) < 5:
        return None
    (label,) = labels
    text = f"every label is {label:g}: there is nothing to tell apart"
    return Severity.CRITICAL, 0.9, text, {"label": int(label), "labels_counted": sum(labels.values())}


def _sentinel(term: LossTerm) -> Judged | None:
    values = term.all("sentinel")
    if len(values) < 2 or len(set(values)) != 1 or len(values) < 0.3 * len(term.facts):
        return None
    shares = term.all("sentinel_share")
    digits = f"{abs(values[0]):g}".replace(".", "")
    meant = len(digits) > 1 and set(digits) == {"9"}  # -999, 9999: a reward of -100 may well be one
    text = f"{sum(shares) / len(shares):.1%} of the targets are exactly {values[0]:g}, far from all others"
    numbers: dict[str, float | str] = {
        "value": values[0],
        "share": sum(shares) / len(shares),
        "distance": term.get("sentinel_gap"),
    }
    return (Severity.WARNING, 0.85, text, numbers) if meant else (Severity.INFO, 0.4, text, numbers)


def _fallen(term: LossTerm) -> Judged | None:
    """The mean probabilities of the samples of label k: the rest of the probability lies on one other label, for every
    k, and in the same share. Where classes overlap as well: they are told apart from each other, but not from that one,
    and none of their samples more than another. (Classes that overlap with a common one are less even: the spread is
    0.4 and more of sqrt(p (1 - p)) for Gaussians that can be told apart so well.)"""
    matrix = np.array(term.last.get("confusion") or [], float)
    if len(matrix) < 4 or term.kind not in OVER_CLASSES or int(term.last.get("at_step", 0)) < LATE:
        return None
    into = int(term.last.get("label_major", -1))
    rows = term.last.get("confusion_rows") or [0] * len(matrix)
    others = [k for k in range(len(matrix)) if k != into and rows[k] >= 8]
    if len(others) < 3 or into < 0:
        return None
    lost = matrix[others, into]
    kept = np.array([matrix[k, k] for k in others])
    if lost.min() < 0.3 or lost.max() - lost.min() > 0.25 or kept.min() < 0.1:
        return None
    spread = term.last.get("spread_into_major") or 1.0
    apart = float((1 - lost - kept).max()) <= 0.1 and spread <= 0.2
    told = float((kept / np.maximum(1 - lost, 1e-9)).min()) >= TOLD_APART and sum(rows[k] for k in others) >= MANY
    if not apart and not (told and spread <= EVENLY * math.sqrt(lost.mean() * (1 - lost.mean()))):
        return None  # sure of some samples and unsure of others: classes that overlap, not labels that fell
    text = f"the same share of every class ({lost.mean():.0%}) carries label {into}"
    return (
        Severity.WARNING,
        0.7,
        text,
        {"label": int(into), "share_fallen": float(lost.mean()), "classes": len(matrix)},
    )
