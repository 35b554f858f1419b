"""Too little of something: training, samples in a batch, room in the model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.optim_arms import Overfit, numbers, overfit_of, typical_ratio
from neuraldbg.analysis.causes.optim_schedule import updates_per_epoch
from neuraldbg.analysis.detectors.loss_curve import blocks_of, main_loss
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.written import rounds_line
from neuraldbg.records import Finding, Severity

STILL_FALLING = 0.15  # of all that was gained, in the last quarter of the run
STEADY = 0.2  # a quarter of the time brought nearly a quarter of the gain
FASTER = 0.3  # it falls faster than ever
SHORT = 100  # updates in which every loss falls steadily: a run to see whether the script works
MORE = 0.25
MUCH_MORE = 0.5  # of what the run gained, on batches held out of an experiment no longer than the run
TINY_BATCH = 2
LONG_ENOUGH = 100  # updates to learn one batch in
MOVING = 1e-3  # of the weights in an update: a model that hardly moves shows nothing about its room


@cause("insufficient_training", group="optim", auto="D", explains=("slow_convergence", "underfitting"), excludes=())
def insufficient_training(evidence: Evidence) -> Iterator[Finding]:
    """The run stopped while the loss was still falling.

    Finds: a loss that fell in every quarter of the run and in the last one as steadily as before, at a rate that no
    schedule had brought down; a warning where a continuation of the run gains at least half as much again. In fewer
    than 100 updates every loss falls steadily: there it must fall faster than ever.
    Why it matters: more updates at the same settings would have given a better model for nothing but time.
    Decides by: medians of the loss over equal stretches of the run, and a continuation from the final weights with the
    run's settings on some recorded batches, judged by others. The curve alone is information only.
    Usual cures: more epochs; a schedule that ends when the loss is flat.
    """
    curve, rates = main_loss(evidence), evidence.curve("lr").values
    blocks = blocks_of(curve.values, 8)
    if blocks is None or (len(rates) and rates[-1] < 0.5 * np.nanmax(rates)):
        return
    gained, late = blocks[0] - blocks[-1], blocks[-3] - blocks[-1]
    if gained <= 0.05 * abs(blocks[0]) or late < STILL_FALLING * gained or not (np.diff(blocks[-4:]) < 0).all():
        return
    if blocks[-1] < 0.05 * blocks[0]:
        return
    epoch, further = updates_per_epoch(evidence), _further(evidence)
    faster = late > FASTER * gained
    early = further is not None and further["share_gained_further"] > (MORE if faster else MUCH_MORE)
    early = early and (faster or (late > STEADY * gained and evidence.updates >= SHORT))
    yield Finding(
        "insufficient_training",
        Severity.WARNING if early else Severity.INFO,
        f"the loss was still falling when the run ended after {evidence.updates} updates"
        + (": it goes on to fall as fast" if early else ""),
        step=None,
        source=rounds_line(evidence) if early else None,
        evidence={
            "loss_first": float(blocks[0]),
            "loss_last": float(blocks[-1]),
            "share_gained_in_last_quarter": float(late / gained),
            **({} if epoch is None else {"epochs": float(evidence.updates / epoch)}),
            **(further or {}),
        },
        confidence=0.7 if early else 0.45,
        inference="more updates would probably have lowered it further",
    )


def _further(evidence: Evidence) -> dict[str, float] | None:
    """What the run would have gained by going on, on batches that the experiment did not train on."""
    probe = overfit_of(evidence)
    more = None if probe is None else probe.fact.get("continued")
    if probe is None or not more or more["held_last"] is None or not np.isfinite(probe.final):
        return None
    gained = probe.first - probe.final
    if gained <= 0 or more["updates"] > probe.run_updates:
        return None
    return {
        "further_updates": int(more["updates"]),
        "held_out_loss": float(more["held_first"]),
        "held_out_loss_further": float(more["held_last"]),
        "share_gained_further": float((more["held_first"] - more["held_last"]) / gained),
    }


@cause(
    "batch_size_too_small",
    group="optim",
    auto="R",
    explains=("oscillating_loss", "loss_plateau", "no_learning", "slow_convergence"),
    excludes=(),
)
def batch_size_too_small(evidence: Evidence) -> Iterator[Finding]:
    """So few samples per update that noise swamps the gradient.

    Finds: one or two samples per update in a run that did not learn, while the few recorded ones can be learned.
    Why it matters: each step follows the noise of its own samples; the steps cancel instead of adding up.
    Decides by: the rows of the recorded batches, and how far the run came on them. Without a second run with larger
    batches this is information only.
    Usual cures: a larger batch, or accumulation over several before each step; a smaller learning rate.
    """
    probe = overfit_of(evidence)
    if probe is None or not 0 < int(probe.fact.get("rows") or 0) <= TINY_BATCH or not probe.failed:
        return
    if probe.own.diverged or not probe.own.last < 0.5 * probe.first or int(probe.fact.get("backwards") or 1) > 1:
        return
    yield Finding(
        "batch_size_too_small",
        Severity.INFO,
        f"{probe.fact['rows']} sample(s) per update: the run learned nothing that lasts",
        step=0,
        source=None,
        evidence={"samples_per_update": int(probe.fact["rows"]), **numbers(probe)},
        confidence=0.5,
        inference="the settings can fit a few samples; over many, single-sample gradients cancel",
    )


@cause(
    "insufficient_capacity",
    group="arch",
    auto="D",
    explains=("loss_plateau", "underfitting", "no_learning", "constant_output", "slow_convergence"),
    excludes=("learning_rate_too_high", "learning_rate_too_low"),
)
def insufficient_capacity(evidence: Evidence) -> Iterator[Finding]:
    """The model cannot fit even one batch.

    Finds: a model with fewer parameters than a batch has labels that stays at the level of guessing on a single
    recorded batch, and whose final predictions are no better with the true labels than with shuffled ones.
    Why it matters: no amount of training helps where the model has no room for the answer.
    Decides by: a training on one recorded batch, at the run's own settings and at other rates, with gradients that are
    not zero; and the final loss with true and with shuffled labels.
    Usual cures: a wider or deeper model; fewer bottlenecks; check that the labels can be predicted at all.
    """
    probe = overfit_of(evidence)
    if probe is None or probe.own.updates < 40 or not probe.fact.get("grad_norm"):
        return
    reached = [arm.last for arm in (probe.own, *probe.arms.values()) if not arm.diverged]
    guess, one = _guessing(probe), probe.arms.get("one_batch")
    low = 0.5 * (probe.first if guess is None else min(guess[1], probe.first))
    if not reached or min(reached) < low:
        return
    proven = one is not None and guess is not None and one.last > low and guess[0] > 0.95 * guess[1]
    proven = proven and one is not None and one.updates >= LONG_ENOUGH and (typical_ratio(evidence) or 0.0) > MOVING
    faster = any(name in probe.arms for name in ("one_batch", "lr_x10", "lr_x100"))
    if not proven and (not faster or min(reached) < max(0.6 * probe.first, 0.8 * probe.final)):
        return
    parameters, labels = float(probe.fact.get("parameters") or 0), float(probe.fact.get("labels") or 0)
    yield Finding(
        "insufficient_capacity",
        Severity.WARNING if proven else Severity.INFO,
        f"{parameters:.0f} parameters cannot fit a single batch of {labels:.0f} labels: the model does no better than"
        " guessing"
        if proven
        else "even a handful of batches cannot be learned at any of the rates tried",
        step=0 if proven else None,
        evidence={
            **numbers(probe, *([one] if one is not None else [])),
            **({} if guess is None else {"final_loss_true_labels": guess[0], "final_loss_shuffled_labels": guess[1]}),
            "lowest_loss_of_any_rate": float(min(reached)),
        },
        confidence=0.7 if proven else 0.4,
        inference="either the model has no room for the answer, or the labels do not follow from the inputs",
    )


def _guessing(probe: Overfit) -> tuple[float, float] | None:
    """The final loss with the true labels and with shuffled ones."""
    true, shuffled = probe.fact.get("final_loss"), probe.fact.get("final_shuffled")
    return None if true is None or shuffled is None else (float(true), float(shuffled))
