"""What is learned helps on the training samples only: too few of them, nothing that restrains the model, or labels
that belong to other samples."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.data_reading import (
    assigned,
    constant_loss,
    data_set,
    rows_of_data,
    times_seen,
    training_loader,
)
from neuraldbg.analysis.causes.optim_arms import optimizer_line
from neuraldbg.analysis.detectors.loss_curve import finite, main_loss
from neuraldbg.analysis.evidence import Curve, Evidence
from neuraldbg.analysis.idioms import keeps_best
from neuraldbg.records import Call, Finding, Severity, SiteKind

RISEN = 1.25  # times the lowest evaluation loss
GAP = 0.5  # of the evaluation loss: the training loss at the end
FEWEST_EVALUATIONS = 4
LOWEST_BY = 0.6  # of the evaluations: the lowest one came before
TINY = 100  # samples
UNRELATED = 3.0  # deviations from shuffled labels
PAIRS = 150
BELOW_FLOOR = 0.9
# a variable put into another order; `for rows in torch.randperm(n).split(32)` draws batches and is none
_ORDERING = re.compile(
    r"\b(\w+)\s*=\s*\1\s*\[[^\]:]+\]|\[\s*[\w.]*(?:randperm|permutation)\(|shuffle\(|argsort|\bsort\(|sorted\("
    r"|sort_values|\.sample\(|\.roll\(|\[::-1\]|\.flip\("
)
_OVERFITS = ("overfitting", "suspiciously_low_loss")


@dataclass(frozen=True, slots=True)
class Overfit:
    """A loss on other data that rose while the training loss went on falling."""

    step: int  # of the lowest evaluation
    lowest: float
    last: float
    train: float  # training loss at the end
    evaluations: int
    loud: bool


def overfit_on_other_data(evidence: Evidence) -> Overfit | None:
    return evidence.once("overfit on other data", lambda: _overfit(evidence))


def _overfit(evidence: Evidence) -> Overfit | None:
    held, train = evaluations(evidence), main_loss(evidence)
    values, losses = held.values, finite(train.values)
    if len(values) < FEWEST_EVALUATIONS or len(losses) < 20 or not np.isfinite(values).all():
        return None
    at = int(values.argmin())
    lowest, last = float(values[at]), float(np.median(values[-3:]))
    after = train.values[train.steps >= held.steps[at]]
    around = train.values[(train.steps >= held.steps[at] - 0.05 * len(losses)) & (train.steps <= held.steps[at])]
    end = float(np.mean(losses[-max(5, len(losses) // 20) :]))
    if lowest <= 0 or at > LOWEST_BY * len(values) or len(values) - at < 3 or len(after) < 10:
        return None
    then = float(np.mean(finite(around))) if len(finite(around)) else float(losses[0])
    if last < RISEN * lowest or end > GAP * last or end > 0.8 * then:
        return None
    restored = bool((evidence.of_call(Call.LOAD_STATE)["step"] > held.steps[at]).any())
    return Overfit(int(held.steps[at]), lowest, last, end, len(values), not (restored or keeps_best(evidence)))


def evaluations(evidence: Evidence) -> Curve:
    """The loss on other data: of the line that evaluates most often."""
    names = [s.path for s in evidence.of_kind(SiteKind.SERIES) if s.path.startswith("eval_loss")]
    curves = [evidence.curve(name) for name in names if name != "eval_loss.seen"]
    return max(curves, key=len, default=Curve(np.empty(0, np.int64), np.empty(0)))


def regularisers(evidence: Evidence) -> list[str]:
    """What restrains the model, in words."""
    found = []
    said = any("weight_decay" in fact["text"] for fact in evidence.facts("source_file"))
    for fact in evidence.facts("optimizer"):
        decays = [float(group.get("weight_decay") or 0.0) for group in fact["groups"]]
        by_default = fact["class"] == "AdamW" and not said
        if max(decays, default=0.0) > 0 and not by_default:
            found.append(f"weight_decay={max(decays):g}")
    drops = [site for site in evidence.of_kind(SiteKind.MODULE) if (site.op or "").endswith("Dropout")]
    noise = (evidence.probe("train_eval") or {}).get("train_noise") or 0.0
    if drops or noise > 1e-3:
        found.append("dropout")
    seen = evidence.fact("data_set")
    epochs = times_seen_by_loader(evidence)
    if seen is not None and seen["rows_seen"] and seen["repeated"] < 0.1 * seen["rows_seen"] and epochs > 2:
        found.append("augmentation")
    return list(dict.fromkeys(found))


def times_seen_by_loader(evidence: Evidence) -> float:
    loader = training_loader(evidence)
    if loader is None:
        return 0.0
    used = [fact for fact in evidence.facts("loader_rows") if fact["site"] == loader[0].id]
    return float(used[-1]["iterators"]) if used else 0.0


def _few(evidence: Evidence) -> tuple[bool, int | None]:
    """Whether there are so few samples that no restraint could make up for it: under a hundred, or fewer than the
    features of one."""
    rows = rows_of_data(evidence)
    features = max((fact["features"] for fact in evidence.facts("entry_layer")), default=0)
    return rows is not None and (rows < TINY or rows < features), rows


@cause("insufficient_data", group="data", auto="D", explains=_OVERFITS, excludes=("missing_regularisation",))
def insufficient_data(evidence: Evidence) -> Iterator[Finding]:
    """There are too few samples for the model.

    Finds: a loss on other data that rises while the training loss goes to nothing, although the model is restrained
    (weight decay, dropout, augmentation) or because the training set is tiny.
    Why it matters: the samples are memorised one by one; longer training makes the model worse.
    Decides by: the loss the script itself evaluates on rows that were not trained on, the training loss, and how many
    different rows were trained on how often. With a regulariser present, or with fewer than 100 samples (or fewer than
    features), this is the cause; otherwise missing_regularisation is.
    Usual cures: more data, augmentation, a smaller or pre-trained model, stop at the lowest evaluation loss.
    """
    found = overfit_on_other_data(evidence)
    few, rows = _few(evidence)
    restrained = regularisers(evidence)
    if found is None or not (few or restrained):
        return
    much = f"{rows} samples" if rows is not None else "the training samples"
    numbers = _numbers(evidence, found) | {"samples": "unknown" if rows is None else float(rows)}
    yield Finding(
        "insufficient_data",
        Severity.WARNING if found.loud else Severity.INFO,
        f"{much} are memorised: loss on other data rises from {found.lowest:.3g} to {found.last:.3g}, "
        f"training loss falls to {found.train:.2g}",
        step=found.step,
        source=_line_of_data(evidence),
        evidence=numbers | {"restrained_by": ", ".join(restrained) or "nothing"},
        confidence=0.82 if found.loud else 0.5,
        inference="the model knows its training samples and little more",
    )


@cause("missing_regularisation", group="data", auto="D", explains=_OVERFITS, excludes=("insufficient_data",))
def missing_regularisation(evidence: Evidence) -> Iterator[Finding]:
    """The model overfits and nothing restrains it.

    Finds: a loss on other data that rises while the training loss goes on falling, in a run without weight decay,
    dropout or augmentation.
    Why it matters: the model fits the noise of the training samples; its best state was reached long before the end.
    Decides by: the loss the script itself evaluates on rows that were not trained on, the training loss, the
    optimizer's settings, the modules, and whether the same rows came back unchanged in later epochs. A tiny training
    set (under 100 samples, or fewer than features) is insufficient_data instead.
    Usual cures: weight_decay, dropout, augmentation, a smaller model, stop at the lowest evaluation loss.
    """
    found = overfit_on_other_data(evidence)
    few, rows = _few(evidence)
    if found is None or few or regularisers(evidence):
        return
    if not evidence.of_kind(SiteKind.OPTIMIZER):
        evidence.cannot("missing_regularisation", "the losses were told by hand: what restrains the model is not known")
        return
    yield Finding(
        "missing_regularisation",
        Severity.WARNING if found.loud else Severity.INFO,
        f"loss on other data rises from {found.lowest:.3g} to {found.last:.3g} while the training loss falls to "
        f"{found.train:.2g}; there is no weight decay, dropout or augmentation",
        step=found.step,
        layer=_largest(evidence),
        source=optimizer_line(evidence),
        evidence=_numbers(evidence, found) | {"samples": "unknown" if rows is None else float(rows)},
        confidence=0.82 if found.loud else 0.5,
        inference="after this step the model learns what is particular to its training samples",
    )


def _largest(evidence: Evidence) -> str | None:
    """The layer with the most weights, where a restraint tells most."""
    known = [site for site in evidence.of_kind(SiteKind.PARAMETER) if site.shape]
    largest = max(known, key=lambda site: math.prod(site.shape or ()), default=None)
    return None if largest is None else evidence.layer_of(largest)


def _numbers(evidence: Evidence, found: Overfit) -> dict[str, float | str]:
    often = times_seen(evidence)
    return {
        "lowest_eval_loss": found.lowest,
        "last_eval_loss": found.last,
        "last_train_loss": found.train,
        "evaluations": int(found.evaluations),
        "times_each_sample_was_seen": "unknown" if often is None else often,
    }


def _line_of_data(evidence: Evidence) -> str | None:
    fact = data_set(evidence)
    return assigned(evidence, fact["name"]) if fact is not None else None


@cause(
    "label_shuffle_mismatch",
    group="data",
    auto="N",
    explains=(
        "no_learning",
        "loss_plateau",
        "underfitting",
        "overfitting",
        "slow_convergence",
        "constant_output",
        "insufficient_capacity",
        "insufficient_training",
        "insufficient_data",
        "missing_regularisation",
        "learning_rate_too_low",
        "batch_size_too_small",
        "corrupted_labels",
        "suspiciously_low_loss",
    ),
)
def label_shuffle_mismatch(evidence: Evidence) -> Iterator[Finding]:
    """Inputs and labels do not belong together.

    Finds: labels that have nothing to do with the inputs they are trained with: both were shuffled or sorted, each in
    its own way, or one of them is off by some rows.
    Why it matters: there is nothing to learn; the loss stays at the entropy of the labels, or falls by memorising.
    Decides by: three plain predictors (linear, products of two features, nearest neighbours) fitted to one half of the
    recorded pairs and asked about the other, an experiment that trains the model itself on some batches and asks about
    others, and the rows of input and target variables where both are known. All must say: no better than chance.
    Usual cures: one permutation for both (`order = torch.randperm(n); x, y = x[order], y[order]`), or a DataLoader
    over a TensorDataset(x, y).
    """
    relation, tried = evidence.fact("relation"), evidence.probe("label_permutation")
    fact = data_set(evidence) or {}
    apart = fact.get("aligned") is False
    if relation is None or relation["rows"] < PAIRS:
        evidence.cannot("label_shuffle_mismatch", "too few pairs of inputs and labels could be recorded")
        return
    best = max(abs(relation[name]) for name in ("linear", "crossed", "near"))
    if best >= UNRELATED or (tried is not None and tried.get("related")) or _learned(evidence):
        return
    if tried is None:
        evidence.cannot("label_shuffle_mismatch", evidence.why_no_probe("label_permutation"))
    decided = tried is not None and tried.get("related") is False
    ordered = any(_ORDERING.search(f["text"]) for f in evidence.facts("source_file"))
    structured = (relation.get("structure") or 1.0) > 1.3
    loud = (decided or apart) and (structured or ordered or apart) and (apart or not relation.get("ids"))
    numbers: dict[str, Any] = {
        "pairs": int(relation["rows"]),
        "linear_deviations": relation["linear"],
        "products_deviations": relation["crossed"],
        "neighbours_deviations": relation["near"],
        "experiment": "not run" if tried is None else "unrelated" if decided else "cannot tell",
        "rows_of_targets": "of other samples" if apart else "of the same rows" if fact.get("aligned") else "unknown",
    }
    yield Finding(
        "label_shuffle_mismatch",
        Severity.CRITICAL if loud else Severity.INFO,
        "the labels have nothing to do with the inputs they come with: no predictor does better than on shuffled ones",
        step=0,
        source=_line_of_data(evidence),
        evidence=numbers,
        confidence=(0.93 if apart else 0.84) if loud else 0.45,
        inference="inputs and labels were put into different orders somewhere before training",
    )


def _learned(evidence: Evidence) -> bool:
    """Whether the run came below what can be reached without looking at the inputs: on other data at any time, or on
    samples it saw for the first time."""
    floor = constant_loss(evidence)
    if floor is None:
        return False
    held = evaluations(evidence).values
    if len(held) and float(np.min(held)) < BELOW_FLOOR * floor:
        return True
    rows, loss = rows_of_data(evidence), main_loss(evidence)
    fact = evidence.fact("data_set") or {}
    updates = len(loss)
    if rows is None or not fact.get("rows_seen") or updates < 20:
        return False
    first_epoch = int(rows / max(fact["rows_seen"] / updates, 1e-9))
    late = finite(loss.values[max(first_epoch // 2, first_epoch - 50) : first_epoch])
    return len(late) >= 8 and float(np.mean(late)) < BELOW_FLOOR * floor
