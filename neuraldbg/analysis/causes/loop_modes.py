"""Training and evaluation mode at the wrong time, and evaluations that build graphs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.loop_reading import (
    Fact,
    anywhere,
    listed,
    loaded_before_training,
    models_of,
    stepping,
    text_at,
    trained_models,
    variable,
)
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Call, Finding, Severity

FEWEST = 3
MANY_PASSES = 8  # of evaluation, before their cost is worth a word
MUCH_LARGER = 4  # times the input of a training pass
_EVAL = re.compile(r"\.eval\(\)|\.train\(\s*False|\.train\(mode=False")


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes of one model, in order."""

    ids: NDArray[np.int64]
    step: NDArray[np.int64]
    grad: NDArray[np.bool_]
    training: NDArray[np.bool_]
    digest: NDArray[np.uint64]
    source: NDArray[np.int64]
    trained: NDArray[np.bool_]
    orphan: NDArray[np.bool_]


def _passes(evidence: Evidence, model: int) -> Passes:
    rows = evidence.of_call(Call.PASS, site=model)
    ids = rows["pass_id"]
    return Passes(
        ids,
        rows["step"],
        rows["value"] > 0,
        rows["aux"] > 0,
        rows["digest"],
        rows["source"],
        np.isin(ids, evidence.of_call(Call.PASS_TRAIN, site=model)["pass_id"]),
        np.isin(ids, evidence.of_call(Call.PASS_ORPHAN, site=model)["pass_id"]),
    )


def _modes(evidence: Evidence, model: int, *, training: bool, grad: bool | None = None) -> list[Fact]:
    """The flags of the layers that depend on the mode, as the model was called with its own flag set so."""
    return [
        fact
        for fact in evidence.facts("modes")
        if fact["model"] == model
        and fact["kinds"]
        and fact["training"] is training
        and (grad is None or fact["grad_mode"] is grad)
    ]


def _updates_of(evidence: Evidence, model: int) -> NDArray[Any]:
    """Steps at which an optimizer that owns the model stepped."""
    owners = [optimizer for optimizer in stepping(evidence) if model in models_of(evidence, optimizer)]
    rows = evidence.of_call(Call.STEP)
    return np.unique(rows["step"][np.isin(rows["site"], owners)])


@cause(
    "eval_mode_in_training",
    group="loop",
    auto="R",
    explains=(
        "overfitting",
        "missing_regularisation",
        "insufficient_data",
        "batchnorm_stats_stale",
        "train_eval_mismatch",
        "slow_convergence",
        "exploding_activation",
    ),
)
def eval_mode_in_training(evidence: Evidence) -> Iterator[Finding]:
    """Training steps run with model.eval().

    Finds: updates whose forward passes ran with the dropout and batch-norm layers of the model in evaluation mode.
    Why it matters: dropout does nothing and batch norm neither uses nor updates the statistics of the batch: no
    regularisation, and statistics that stay behind the weights. It usually starts after the first evaluation.
    Decides by: the training flags of these layers at every pass that a gradient came back to and an update followed.
    A model that was loaded and is trained in evaluation mode from the start (frozen statistics) is information only.
    Usual cures: model.train() at the start of every epoch, after each evaluation.
    """
    for model in sorted(trained_models(evidence)):
        modes = _modes(evidence, model, training=False, grad=True)
        if not modes or any(fact["on"] for fact in modes):
            continue
        passes = _passes(evidence, model)
        updates = _updates_of(evidence, model)
        used = passes.trained & np.isin(passes.step, updates)
        right = np.unique(passes.step[used & passes.training])
        wrong = np.setdiff1d(np.unique(passes.step[used & ~passes.training]), right)
        if len(wrong) < FEWEST or len(wrong) < 0.1 * (len(wrong) + len(right)):
            continue
        later = bool(len(right)) and right[0] < wrong[0]
        meant = not later and loaded_before_training(evidence, [model])
        name = variable(evidence, model)
        kinds = listed(modes[0]["kinds"])
        line = anywhere(evidence, re.compile(rf"\b{re.escape(name)}\.eval\(\)")) or anywhere(evidence, _EVAL)
        when = f"from step {wrong[0]} on, after an evaluation," if later else "from the start"
        yield Finding(
            "eval_mode_in_training",
            Severity.INFO if meant else Severity.WARNING,
            f"{name} is trained in evaluation mode {when} so its {kinds} do not do their work",
            step=int(wrong[0]),
            last_step=int(wrong[-1]),
            layer=evidence.name(modes[0]["first"]),
            source=line,
            evidence={
                "model": name,
                "updates_in_eval_mode": len(wrong),
                "updates_in_train_mode": len(right),
                "layers": kinds,
                "eval_text": text_at(evidence, line).strip()[:120],
            },
            confidence=0.4 if meant else 0.95 if later else 0.88,
            inference="model.train() is missing before these updates",
        )


@cause(
    "train_mode_in_eval",
    group="loop",
    auto="R",
    explains=("train_eval_mismatch", "overfitting", "underfitting", "batchnorm_stats_stale", "dropout_too_high"),
)
def train_mode_in_eval(evidence: Evidence) -> Iterator[Finding]:
    """Evaluation runs with dropout or batch norm in training mode.

    Finds: passes without a backward, on data that the model was not trained on, while its dropout or batch-norm layers
    are in training mode.
    Why it matters: the reported metric is that of a network with random units missing, or normalised by the evaluation
    batch; batch norm also mixes evaluation data into its running statistics.
    Decides by: the flags of these layers at passes with gradients off (or never followed by a backward) that come
    between or after updates and bring batches not seen in training. Sampling of generators, repeated passes over one
    batch (Monte-Carlo dropout) and re-estimation of statistics are left alone.
    Usual cures: model.eval() before the evaluation, model.train() after it.
    """
    for model in sorted(trained_models(evidence)):
        modes = [fact for fact in _modes(evidence, model, training=True) if fact["on"]]
        if not modes:
            continue
        passes = _passes(evidence, model)
        chosen = _evaluation(evidence, model, passes, training=True)
        if not chosen.any() or _not_an_evaluation(evidence, model, passes, chosen):
            continue
        name, kinds = variable(evidence, model), listed(modes[0]["kinds"])
        first = int(np.flatnonzero(chosen)[0])
        yield Finding(
            "train_mode_in_eval",
            Severity.WARNING,
            f"{name} is evaluated in training mode: its {kinds} act as in training",
            step=min(int(passes.step[first]), evidence.last_step),
            layer=evidence.name(modes[0]["first_on"]),
            source=evidence.source(int(passes.source[first])),
            evidence={
                "model": name,
                "evaluation_passes_in_train_mode": int(chosen.sum()),
                "layers": kinds,
            },
            confidence=0.9 if not passes.grad[chosen].any() else 0.82,
            inference="model.eval() is missing before these passes",
        )


def _evaluation(evidence: Evidence, model: int, passes: Passes, *, training: bool) -> NDArray[np.bool_]:
    """Passes that look like an evaluation: no backward, after the first update, rarer than updates, and on batches that
    were not trained on."""
    updates = _updates_of(evidence, model)
    if not len(updates):
        return np.zeros(len(passes.ids), bool)
    unused = ~passes.trained & (~passes.grad | passes.orphan)
    if evidence.count(Call.AUTOGRAD_GRAD):
        unused &= ~passes.grad
    chosen: NDArray[np.bool_] = unused & (passes.training == training) & (passes.step > updates[0])
    seen = passes.digest[passes.trained]
    chosen &= ~np.isin(passes.digest, seen[seen != 0])
    moments = len(np.unique(passes.step[chosen]))
    if moments > max(1, len(updates) // 3):
        return np.zeros(len(passes.ids), bool)
    return chosen


def _not_an_evaluation(evidence: Evidence, model: int, passes: Passes, chosen: NDArray[np.bool_]) -> bool:
    """Sampling from a generator, Monte-Carlo dropout, new statistics for batch norm, or a model that is evaluated
    properly elsewhere."""
    if any(fact["averaging"] for fact in evidence.facts("modes") if fact["model"] == model):
        return True
    if any(len(fact["optimizers"]) > 1 for fact in evidence.facts("graph_reach")):
        return True
    digests = passes.digest[chosen]
    known = digests[digests != 0]
    if len(known) and np.unique(known, return_counts=True)[1].max() >= FEWEST and _within_one_step(passes, chosen):
        return True
    proper = ~passes.trained & ~passes.training & (passes.step > 0)
    return int(proper.sum()) >= int(chosen.sum())


def _within_one_step(passes: Passes, chosen: NDArray[np.bool_]) -> bool:
    """The same batch several times between two updates: averaging over dropout masks."""
    pairs = np.stack([passes.step[chosen], passes.digest[chosen].view(np.int64)], 1)
    return bool(np.unique(pairs, axis=0, return_counts=True)[1].max() >= FEWEST)


@cause("missing_no_grad_in_eval", group="loop", auto="R", explains=("memory_growth",))
def missing_no_grad_in_eval(evidence: Evidence) -> Iterator[Finding]:
    """Evaluation builds graphs that nobody uses.

    Finds: forward passes in evaluation mode with gradients on, again and again, that no backward ever follows.
    Why it matters: every activation is kept until the output is dropped: an evaluation batch needs several times the
    memory and more time than with gradients off.
    Decides by: passes in evaluation mode that no gradient ever came back to, in a run without torch.autograd.grad
    (saliency maps and adversarial examples need the graph): many of them, or far larger ones than in training.
    Usual cures: with torch.no_grad(): (or torch.inference_mode()) around the evaluation.
    """
    if evidence.count(Call.AUTOGRAD_GRAD):
        return
    for model in sorted(trained_models(evidence)):
        passes = _passes(evidence, model)
        chosen = passes.orphan & ~passes.training & (passes.step > 0)
        count = int(chosen.sum())
        if count < 2 or len(np.unique(passes.step[chosen])) > max(1, evidence.updates // 3):
            continue  # once per update: a teacher or a policy at work, not an evaluation
        ratio = _size_ratio(evidence, model)
        clear = count >= MANY_PASSES or (count >= FEWEST and ratio >= MUCH_LARGER)
        name = variable(evidence, model)
        first = int(np.flatnonzero(chosen)[0])
        yield Finding(
            "missing_no_grad_in_eval",
            Severity.WARNING if clear else Severity.INFO,
            f"{name} is evaluated {count} times with gradients on: each pass builds a graph that is thrown away",
            step=min(int(passes.step[first]), evidence.last_step),
            source=evidence.source(int(passes.source[first])),
            evidence={
                "model": name,
                "evaluation_passes_with_graph": count,
                "training_passes": int(passes.trained.sum()),
                "input_size_against_training": round(ratio, 3),
            },
            confidence=0.85 if clear else 0.4,
            inference="torch.no_grad() would save the memory of all activations",
        )


def _size_ratio(evidence: Evidence, model: int) -> float:
    """The largest input of an evaluation pass over the largest one of a training pass."""
    sizes = {True: 0, False: 0}
    for fact in evidence.facts("modes"):
        if fact["model"] == model and fact["grad_mode"]:
            sizes[fact["training"]] = max(sizes[fact["training"]], fact["input_elements"])
    return sizes[False] / sizes[True] if sizes[True] else 0.0
