"""Targets whose scale or counts make the easy answer a wrong one: far from zero, or nearly all alike."""

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
)
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity

_THRESHOLDED = re.compile(r"> ?0?\.5|>= ?0?\.5|round\(|recall|\bf1\b|balanced|argmax|accuracy|\bacc\b", re.IGNORECASE)
LATE = 50  # updates after which a model has had its chance to tell classes apart
Judged = tuple[Severity, float, str, dict[str, float | str]]


@cause(
    "unnormalised_target",
    group="data",
    auto="S",
    explains=(
        "slow_convergence",
        "no_learning",
        "loss_plateau",
        "exploding_gradient",
        "diverging_loss",
        "nan_loss",
        "inf_loss",
        "learning_rate_too_high",
        "learning_rate_too_low",
        "insufficient_training",
        "underfitting",
        "missing_gradient_clipping",
        "update_ratio_too_high",
        "insufficient_capacity",
        "nan_gradient",
        "nan_activation",
        "exploding_activation",
        "dead_units",
        "constant_output",
        "loss_spike",
        "gradient_clip_misuse",
    ),
)
def unnormalised_target(evidence: Evidence) -> Iterator[Finding]:
    """Regression targets lie far from the scale a network puts out.

    Finds: targets of a squared or absolute error whose size is more than 50 times that of the first outputs, and a
    model that at the end is still no better than saying their mean, or whose loss has become infinite.
    Why it matters: outputs start near 0 and move by about the learning rate per step, so the bias alone has to travel
    for thousands of steps; with plain SGD the gradients are so large that the run blows up.
    Decides by: mean and spread of targets and outputs at the loss, at the beginning and at the end of the run.
    Usual cures: subtract the mean and divide by the standard deviation of the training targets.
    """
    if not_recorded(evidence, "unnormalised_target"):
        return
    for term in loss_terms(evidence):
        if term.kind not in NUMERIC or term.first.get("target_mean") is None or term.first.get("input_std") is None:
            continue
        first = term.first
        size = max(abs(first["target_mean"]), first.get("target_std") or 0.0)
        scale = max(abs(first.get("input_mean") or 0.0), first["input_std"], 0.05)
        if size < 50 * scale or size < 20:
            continue
        severity, confidence, text, numbers = _still_far(evidence, term)
        yield Finding(
            "unnormalised_target",
            severity,
            f"targets are around {first['target_mean']:.3g} (spread {first['target_std']:.2g}) and the outputs start "
            f"around {first.get('input_mean', 0.0):.2g}: {text}",
            step=term.step,
            layer=output_layer(evidence, term),
            source=line_of_loss(evidence, term),
            evidence={
                "target_mean": first["target_mean"],
                "target_std": first["target_std"],
                "first_output_mean": first.get("input_mean", 0.0),
                "first_output_std": first["input_std"],
                **numbers,
            },
            confidence=confidence,
            inference="the output layer must first grow by orders of magnitude before anything else can be learnt",
        )
        return


def _drifts(term: LossTerm) -> bool:
    """Targets that a policy or another network makes change with it; those of a data set do not."""
    means, spread = term.all("target_mean"), max(term.all("target_std"), default=0.0)
    return bool(max(abs(mean - means[0]) for mean in means) > 0.5 * spread + 0.1 * abs(means[0]))


def _still_far(evidence: Evidence, term: LossTerm) -> Judged:
    if _drifts(term):
        return Severity.INFO, 0.4, "they change over the run, as those of a policy do", {}
    loss = evidence.curve("loss").values
    if len(loss) and not np.isfinite(loss[-1]):
        return Severity.CRITICAL, 0.85, "the gradients of such errors blew the run up", {}
    error, spread = _last_error(evidence, term), term.get("target_std") or 0.0
    if error is None:
        return Severity.INFO, 0.4, "whether it got there was not recorded", {}
    numbers: dict[str, float | str] = {"last_error": error}
    if error > 0.9 * spread:
        return (
            Severity.WARNING,
            0.88,
            f"at the end the error ({error:.3g}) is not below the spread of the targets",
            numbers,
        )
    return Severity.INFO, 0.4, "it got there all the same", numbers


def _last_error(evidence: Evidence, term: LossTerm) -> float | None:
    if term.last.get("error_rms") is not None:
        return float(term.last["error_rms"])
    loss = evidence.curve("loss").values
    if term.kind == "mse" and term.get("reduction") == "mean" and len(loss):
        return float(np.sqrt(max(np.median(loss[-10:]), 0.0)))
    return None


@cause(
    "class_imbalance",
    group="data",
    auto="D",
    explains=("constant_output", "loss_plateau", "no_learning", "underfitting", "suspiciously_low_loss"),
)
def class_imbalance(evidence: Evidence) -> Iterator[Finding]:
    """One class dominates and the model predicts it alone.

    Finds: a loss without class weights whose labels are one class for 9 in 10 samples or more, and a model that in the
    later part of the run still finds almost none of the others.
    Why it matters: accuracy looks excellent (it is the share of the common class), and the class one cares about is
    never found.
    Decides by: label counts over the run, and predictions for the rare labels over the last looks, at the loss.
    Usual cures: class weights in the loss, a balanced sampler, a threshold chosen on recall, more rare samples.
    """
    if not_recorded(evidence, "class_imbalance"):
        return
    for term in loss_terms(evidence):
        labels = term.labels
        total = sum(labels.values())
        common = max(labels, key=lambda label: labels[label], default=None)
        if total < 64 or common is None or len(labels) < 2 or labels[common] < 0.9 * total or term.get("weighted"):
            continue
        found = _finds_none(term) if term.kind in OVER_CLASSES else _never_positive(evidence, term)
        if found is None or int(term.last.get("at_step", 0)) < LATE or max(term.all("pad_share"), default=0.0) > 0.2:
            continue
        share = labels[common] / total
        yield Finding(
            "class_imbalance",
            Severity.WARNING,
            f"{share:.0%} of the labels are class {common:g}, and the model hardly ever predicts anything else",
            step=term.step,
            source=line_of_loss(evidence, term),
            evidence={"share_of_common_class": share, "labels_counted": int(total), **found},
            confidence=0.75,
            inference="always answering the common class is a low loss that is easy to reach",
        )
        return


def _finds_none(term: LossTerm) -> dict[str, float] | None:
    seen, found = term.get("rare_seen") or 0, term.get("rare_found") or 0
    if seen < 8 or found > 0.25 * seen:
        return None
    return {"rare_samples_looked_at": float(seen), "rare_samples_found": float(found)}


def _never_positive(evidence: Evidence, term: LossTerm) -> dict[str, float] | None:
    """A probability that never passes one half is no fault by itself (a click rate is like that): the script must cut
    it there."""
    late = [fact for fact in term.facts if int(fact.get("at_step", 0)) >= LATE and fact.get("input_max") is not None]
    cut = 0.0 if term.kind == "bce_with_logits" else 0.5
    texts = " ".join(fact["text"] for fact in evidence.facts("source_file"))
    if (
        term.kind not in ("bce", "bce_with_logits")
        or len(late) < 2
        or not _THRESHOLDED.search(texts)
        or math.prod((term.get("target_shape") or [0, 0])[1:]) != 1
    ):
        return None
    if any(fact["input_max"] > cut for fact in late):
        return None
    return {"largest_score_late": float(max(fact["input_max"] for fact in late)), "cut": cut}
