"""How large the numbers are that go in: features far from unit scale, and a single batch far outside the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.data_reading import assigned, constant_loss, data_set
from neuraldbg.analysis.causes.loss_terms import place_of
from neuraldbg.analysis.evidence import Curve, Evidence
from neuraldbg.records import Call, Finding, Severity, SiteKind

Fact = dict[str, Any]
LARGE = 100.0  # typical size of a feature
QUITE_LARGE = 20.0  # enough where the experiment shows that it is the cause
APART = 1000.0  # ratio of the deviations of two features
BETTER = 0.5  # share of the loss that is left when the inputs are standardised
OUTLIER = 20.0  # times the usual largest value of a batch
SPIKE = 5.0  # times the usual loss
RARE = 0.1  # share of the batches
FEWEST = 16  # batches before one is called unusual
_BLOWN = (
    "exploding_gradient",
    "exploding_activation",
    "diverging_loss",
    "loss_spike",
    "nan_loss",
    "inf_loss",
    "nan_gradient",
    "nan_activation",
    "oscillating_loss",
    "dead_units",
    "saturated_units",
    "constant_output",
    "no_learning",
    "loss_plateau",
    "underfitting",
    "slow_convergence",
    "zero_gradient",
    "vanishing_gradient",
    "parameters_not_updating",
    "update_ratio_too_high",
    "update_ratio_too_low",
    "learning_rate_too_high",
    "missing_gradient_clipping",
)


@cause(
    "unnormalised_input",
    group="data",
    auto="R",
    explains=(
        *_BLOWN,
        "learning_rate_too_low",
        "saturating_activation",
        "missing_normalisation",
        "missing_warmup",
        "insufficient_capacity",
        "insufficient_training",
        "bad_init",
        "momentum_too_high",
        "batch_size_too_small",
        "data_outlier_batch",
        "gradient_clip_misuse",
    ),
)
def unnormalised_input(evidence: Evidence) -> Iterator[Finding]:
    """Input features are huge or of very different scale.

    Finds: a first layer that is fed values in the hundreds or more, or features whose spreads differ by a factor of a
    thousand, where this is what keeps the model from learning.
    Why it matters: the first layer's outputs are as large as its inputs: units saturate or die in the first steps,
    gradients are huge, and small features are drowned by large ones.
    Decides by: mean and deviation of every feature at the first layer, and an experiment at the end of the run: the
    recorded batches are learned twice from the first weights with the run's own settings, as they are and
    standardised. Large inputs that do no harm (a normalisation follows, the optimizer copes) are not reported.
    Usual cures: (x - mean) / std with the statistics of the training set, pixels / 255, logarithms of heavy-tailed
    features; the same transformation in evaluation.
    """
    entry = _entry(evidence)
    fact = evidence.probe("standardised")
    if entry is None and fact is None:
        return
    proof = _by_experiment(evidence, fact) if fact is not None else _by_first_layer(evidence, entry)
    if proof is None or entry is None:
        return
    severity, confidence, numbers = proof
    layer, line = place_of(evidence, entry["site"])
    size = max(entry["largest_rms"], entry["typical_rms"])
    apart = entry["largest_std"] / entry["smallest_std"] if entry["smallest_std"] > 0 else 1.0
    what = f"inputs of {layer or 'the model'} are around {size:.3g} in size"
    what += f", their spreads differ by a factor of {apart:,.0f}" if apart > APART else ""
    data = data_set(evidence)
    yield Finding(
        "unnormalised_input",
        severity,
        what,
        step=0,
        layer=layer,
        source=(assigned(evidence, data["name"]) if data is not None else None) or line,
        evidence={
            "largest_feature_rms": entry["largest_rms"],
            "typical_feature_rms": entry["typical_rms"],
            "largest_std": entry["largest_std"],
            "smallest_std": entry["smallest_std"],
            "first_layer_output_rms": entry.get("out_rms") or 0.0,
            **numbers,
        },
        confidence=confidence,
        inference="with standardised inputs and nothing else changed the same batches are learned"
        if fact is not None
        else "the first layer passes this scale on to everything behind it",
    )


def _entry(evidence: Evidence) -> Fact | None:
    """The first layer whose inputs are furthest out of scale."""
    found = [fact for fact in evidence.facts("entry_layer") if not fact["normalises"] and _out_of_scale(fact)]
    first = [fact for fact in found if fact["look"] == 1] or found
    return max(first, key=lambda fact: float(fact["largest_rms"]), default=None)


def _out_of_scale(fact: Fact) -> bool:
    needed = ("zero_share", "smallest_std", "largest_std", "typical_rms", "largest_rms")
    if any(fact.get(name) is None for name in needed):
        return False
    if fact["constant"] == fact["features"] or fact["zero_share"] > 0.95:
        return False
    apart = fact["smallest_std"] > 0 and fact["largest_std"] / fact["smallest_std"] > APART
    return bool(fact["typical_rms"] > QUITE_LARGE or fact["largest_rms"] > 3 * LARGE or apart)


def _by_experiment(evidence: Evidence, fact: Fact) -> tuple[Severity, float, dict[str, float | str]] | None:
    """The run ended with a loss that standardised inputs leave far behind in a few updates."""
    start, scaled = fact.get("first_standardised"), fact.get("last_standardised")
    if not fact["from_initial"] or start is None or scaled is None or fact["diverged_standardised"] or start <= 0:
        return None
    own = [value for value in (fact.get("last"), fact.get("final")) if value is not None]
    best = min(own, default=np.inf)
    blind = min(constant_loss(evidence) or start, start)  # what can be had without looking at the inputs
    if not (scaled < BETTER * best and scaled < BETTER * blind and best > 0.3 * blind):
        return None
    numbers: dict[str, float | str] = {
        "loss_of_the_run": "not finite" if fact.get("final") is None else fact["final"],
        "loss_in_experiment": "not finite" if fact.get("last") is None else fact["last"],
        "loss_standardised": scaled,
        "experiment_updates": int(fact["updates"]),
    }
    worthless = best > 0.8 * blind
    return (Severity.CRITICAL if worthless else Severity.WARNING), 0.93 if scaled < 0.25 * best else 0.85, numbers


def _by_first_layer(evidence: Evidence, entry: Fact | None) -> tuple[Severity, float, dict[str, float | str]] | None:
    """Without the experiment: huge inputs, huge first outputs, and units that are dead or saturated from the start."""
    if entry is None or entry["typical_rms"] < LARGE or (entry.get("out_rms") or 0.0) < LARGE / 5:
        return None
    flat = [fact for fact in evidence.facts("activation") if fact.get("fed_by") == entry["site"] and fact.get("units")]
    stuck = max(((f.get("dead") or f.get("stuck") or 0) / f["units"] for f in flat), default=0.0)
    numbers: dict[str, float | str] = {"stuck_share": stuck}
    return (Severity.WARNING, 0.6, numbers) if stuck > 0.8 else (Severity.INFO, 0.4, numbers)


@cause("data_outlier_batch", group="data", auto="R", explains=_BLOWN)
def data_outlier_batch(evidence: Evidence) -> Iterator[Finding]:
    """One batch holds values far outside the rest of the data.

    Finds: a batch whose largest input or target is more than twenty times that of the usual batch, at the very update
    at which the loss or the gradient jumps.
    Why it matters: a single such batch can undo the training so far; with momentum or Adam it is felt for many updates.
    Decides by: the largest magnitude of every training batch, and the loss of the same update. Both must stand out.
    Usual cures: look at the rows (units, sentinel values, broken files) and drop or clip them; clip gradients so that
    no single batch can do so much harm.
    """
    for name in _peaks(evidence):
        finding = _outlier(evidence, name)
        if finding is not None:
            yield finding
            return


def _peaks(evidence: Evidence) -> list[str]:
    names = [site.path for site in evidence.of_kind(SiteKind.SERIES)]
    return [name for name in names if name.partition(".")[0] in ("input_peak", "target_peak")]


def _outlier(evidence: Evidence, name: str) -> Finding | None:
    steps, peaks = _largest(evidence.curve(name))
    if len(peaks) < FEWEST:
        return None
    usual = float(np.median(peaks))
    odd = np.flatnonzero(peaks > OUTLIER * usual)
    others = np.delete(peaks, odd)
    if usual <= 0 or not 0 < len(odd) <= max(1, RARE * len(peaks)) or others.max() * 4 > peaks[odd].min():
        return None
    for at in odd.tolist():
        jump = _jump(evidence, int(steps[at]))
        if at < FEWEST // 2 or jump is None:
            continue
        what = "input" if name.startswith("input") else "target"
        text = f"the {what} of update {int(steps[at])} reaches {peaks[at]:.3g}; other batches reach {usual:.3g}"
        numbers: dict[str, float | str] = {
            f"largest_{what}": float(peaks[at]),
            f"usual_largest_{what}": usual,
            "loss_or_gradient_jump": jump,
            "such_batches": len(odd),
            "batches": len(peaks),
        }
        return Finding(
            "data_outlier_batch",
            Severity.CRITICAL,
            text,
            step=int(steps[at]),
            source=evidence.line_of(Call.PASS),
            evidence=numbers,
            confidence=0.93,
            inference="the jump of the loss comes with this batch and no other has such values",
        )
    return None


def _largest(curve: Curve) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The largest value of each update."""
    steps, where = np.unique(curve.steps, return_inverse=True)
    peaks = np.zeros(len(steps))
    np.maximum.at(peaks, where, np.where(np.isnan(curve.values), np.inf, curve.values))
    return steps, peaks


def _jump(evidence: Evidence, step: int) -> float | None:
    """How many times the usual the loss or the gradient is at an update; None when neither stands out."""
    best = 0.0
    for name in ("loss", "grad_norm"):
        curve = evidence.curve(name)
        at = np.flatnonzero(curve.steps == step)
        before = curve.values[(curve.steps < step) & (curve.steps >= step - 64)]
        before = before[np.isfinite(before)]
        if not len(at) or not len(before):
            continue
        value = float(np.max(np.abs(curve.values[at])))
        usual = float(np.median(np.abs(before)))
        best = max(best, 1e9 if not np.isfinite(value) else value / max(usual, 1e-12))
    return best if best > SPIKE else None
