"""Step sizes that are too large or too small, and what makes the same step size too large: momentum, decay, a cold
start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.numerics_divergence import thrown_far
from neuraldbg.analysis.causes.optim_arms import (
    ADAPTIVE,
    KEEN_MOMENTUM,
    Arm,
    Blamed,
    Overfit,
    blamed,
    numbers,
    optimizer_line,
    overfit_of,
    typical_ratio,
    update_ratios,
    why_no_overfit,
)
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity

HUGE_RATIO = 0.5  # of the weight in one update: the one statistic that may warn by itself
TINY_RATIO = 1e-4
FASTER = ("lr_x10", "lr_x100", "lr_x10000", "lr_x1000000")
BLOWN_UP = 30.0  # times the first loss
UNSTABLE = (
    "diverging_loss",
    "loss_spike",
    "oscillating_loss",
    "no_learning",
    "loss_plateau",
    "exploding_gradient",
    "exploding_activation",
    "nan_loss",
    "inf_loss",
    "nan_gradient",
    "nan_activation",
    "dead_units",
    "saturated_units",
    "constant_output",
    "update_ratio_too_high",
    "zero_gradient",
    "underfitting",
    "vanishing_gradient",
)
# what weights that have run away bring about; where they have not, these say so louder than a rate
OVERFLOWS = ("log_of_zero", "division_by_zero", "undefined_gradient_at_zero", "exp_overflow", "fp16_overflow")
SLOW = ("no_learning", "loss_plateau", "slow_convergence", "underfitting", "update_ratio_too_low",
        "parameters_not_updating", "constant_output")  # fmt: skip


def _best(probe: Overfit, *names: str) -> Arm | None:
    found = [arm for name in names if (arm := probe.cures(name)) is not None]
    return min(found, key=lambda arm: arm.last, default=None)


def too_high(evidence: Evidence) -> tuple[str, Arm] | None:
    """Which one of several causes of too long steps the experiment decides for, and the arm that shows it."""
    return evidence.once("too long steps", lambda: _too_high(overfit_of(evidence)))


def _too_high(probe: Overfit | None) -> tuple[str, Arm] | None:
    """The most specific change that cures; a smaller rate cures nearly everything, so it comes last."""
    if probe is None:
        return None
    slower = _best(probe, "lr_x0.1", "lr_x0.01")
    decay = probe.cures("weight_decay_0")
    if decay is not None and (slower is None or decay.last <= max(1.5 * slower.last, 0.1 * probe.first)):
        return "weight_decay_too_high", decay
    momentum = probe.steadies("momentum_0.9")
    if momentum is not None and probe.momentum >= KEEN_MOMENTUM:
        return "momentum_too_high", momentum
    warm = probe.cures("warmup")
    adaptive = probe.optimizer in ADAPTIVE
    if adaptive and warm is not None and slower is not None and _holds_full_rate(probe, warm, slower):
        return "missing_warmup", warm
    if slower is not None:
        return "learning_rate_too_high", slower
    clipped = probe.cures("clipped")
    return None if clipped is None else ("missing_gradient_clipping", clipped)


def _holds_full_rate(probe: Overfit, warm: Arm, slower: Arm) -> bool:
    """After the warm-up the full rate learns as well as a smaller one: only the start was at fault."""
    steady = warm.swings < 0.3 or warm.last < 0.05 * probe.first  # of nearly nothing every loss swings
    return warm.last <= max(1.5 * slower.last, 0.02 * probe.first) and steady


@cause(
    "learning_rate_too_high",
    group="optim",
    auto="R",
    explains=(*UNSTABLE, *OVERFLOWS, "missing_gradient_clipping", "insufficient_capacity"),
    excludes=("learning_rate_too_low", "momentum_too_high", "missing_warmup", "weight_decay_too_high"),
)
def learning_rate_too_high(evidence: Evidence) -> Iterator[Finding]:
    """The step size is too large for this loss and optimizer.

    Finds: a run that does not learn batches which the same model learns at a tenth or a hundredth of the rate, from the
    same first weights; a run whose loss blew up and that stays behind what a smaller rate reaches in less time; and
    updates larger than half the weight in most weight tensors, two updates running.
    Why it matters: every step jumps past the minimum it points to; the loss swings, blows up, or the network dies in a
    flat region and stays there.
    Decides by: a short training on recorded batches after the script is over: own settings against lr x 0.1 and x 0.01.
    Usual cures: divide the learning rate by ten (by a hundred if that is not enough), then add a warm-up.
    """
    verdict = too_high(evidence)
    probe = overfit_of(evidence)
    if verdict is not None and verdict[0] == "learning_rate_too_high" and probe is not None:
        yield _rate_finding(evidence, probe, verdict[1])
        return
    milder = None if verdict is not None or probe is None else _blown_up_once(evidence, probe)
    if milder is not None and probe is not None:
        finding = _rate_finding(evidence, probe, milder)
        summary = (
            f"the loss blows up at a learning rate of {probe.lr or 0:.3g}; a smaller one learns at once, and better"
        )
        yield replace(finding, summary=summary, confidence=0.82)
        return
    thrown = _thrown(evidence)
    yield from _huge_updates(evidence, probe) if thrown is None else (thrown,)


def _thrown(evidence: Evidence) -> Finding | None:
    """A few updates, weights of several times their size, and a number that is not finite: there are no two more."""
    origin = next(iter(evidence.facts("origin")), None)
    if origin is None or not thrown_far(evidence, origin):
        return None
    growth, updates = float(origin["growth"]), int(origin["update"])
    guilty = blamed(evidence)
    several = "the first update makes" if updates == 1 else f"the first {updates} updates make"
    return Finding(
        "learning_rate_too_high",
        Severity.CRITICAL,
        f"{several} the weights {growth:.3g} times as large as they were, and the next values are not finite",
        step=0,
        source=optimizer_line(evidence, guilty),
        evidence={
            "weights_over_first_weights": growth,
            "updates_before": updates,
            **_named(guilty),
            **_setting("lr", guilty.lr if guilty else _rate(evidence)),
        },
        confidence=0.86,
        inference="with the first weights the same operations gave finite numbers: the steps are too long",
    )


def _rate(evidence: Evidence) -> float | None:
    rates = evidence.curve("lr").values
    return float(rates[0]) if len(rates) else None


def _rate_finding(evidence: Evidence, probe: Overfit, arm: Arm) -> Finding:
    factor = arm.name.removeprefix("lr_x")
    guilty, rate = _whose(evidence, probe)
    severity = Severity.CRITICAL if probe.failed else Severity.WARNING
    return Finding(
        "learning_rate_too_high",
        severity,
        f"the learning rate{rate} is too high: the run's own batches are learned at {factor} times it and not at it",
        step=_first_update(evidence),
        source=optimizer_line(evidence, guilty),
        evidence={**numbers(probe, arm), **_named(guilty), **_setting("lr", guilty.lr if guilty else probe.lr)},
        confidence=0.88 if probe.own.diverged or probe.failed else 0.8,
        inference="the same model, batches and first weights learn with nothing but the rate changed",
    )


def _whose(evidence: Evidence, probe: Overfit, *, low: bool = False) -> tuple[Blamed | None, str]:
    """The optimizer to blame where there are several, and the rate in words."""
    guilty = blamed(evidence, low=low)
    lr = probe.lr if guilty is None else guilty.lr
    return guilty, ("" if lr is None else f" of {lr:.3g}") + (f" in {guilty.name}" if guilty else "")


def _named(guilty: Blamed | None) -> dict[str, float | str]:
    return {} if guilty is None else {"optimizer": guilty.name}


def _blown_up_once(evidence: Evidence, probe: Overfit) -> Arm | None:
    """A run that blew up and came back is still behind a smaller rate that never did."""
    loss = evidence.curve("loss").values
    loss = loss[np.isfinite(loss)]
    if not len(loss) or loss[0] <= 0 or loss.max() < BLOWN_UP * probe.first:
        return None
    found = [arm for name in ("lr_x0.1", "lr_x0.01") if (arm := probe.recovers_better(name)) is not None]
    return min(found, key=lambda arm: arm.last, default=None)


def _setting(name: str, value: float | None) -> dict[str, float | str]:
    return {} if value is None else {name: float(value)}


def _first_update(evidence: Evidence) -> int:
    return int((evidence.probe("overfit") or {}).get("at_step") or 0)


def _huge_updates(evidence: Evidence, probe: Overfit | None) -> Iterator[Finding]:
    """The taxonomy's exception: no healthy run moves most of its weight tensors by half twice in a row."""
    if any(fact["class"] == "LBFGS" for fact in evidence.facts("optimizer")):
        return
    ratios = update_ratios(evidence)
    large: Counter[int] = Counter(
        step for steps, values in ratios.values() for step in steps[values > HUGE_RATIO].tolist()
    )
    seen: Counter[int] = Counter(step for steps, _ in ratios.values() for step in steps.tolist())
    most = {step for step, count in large.items() if count > seen[step] / 2}
    running = sorted(step for step in most if step + 1 in most)
    if not running:
        return
    fine = probe is not None and not probe.failed and not probe.own.diverged and probe.final < 0.5 * probe.first
    worst = max(float(values.max()) for _, values in ratios.values())
    guilty = blamed(evidence)
    numbers_of = {"largest_update_over_weight": worst, "weight_tensors": len(ratios), "steps": len(most)}
    yield Finding(
        "learning_rate_too_high",
        Severity.INFO if fine else Severity.WARNING,
        "single updates move most weight tensors by more than half of what they are",
        step=max(running[0] - 1, 0),
        source=optimizer_line(evidence, guilty),
        evidence={**numbers_of, **_named(guilty)},
        confidence=0.5 if fine else 0.78,
        inference="after such steps little of what was learned before is left",
    )


@cause(
    "learning_rate_too_low",
    group="optim",
    auto="R",
    explains=(*SLOW, "insufficient_training", "insufficient_capacity", "insufficient_data"),
    excludes=("learning_rate_too_high",),
)
def learning_rate_too_low(evidence: Evidence) -> Iterator[Finding]:
    """The step size is so small that the weights hardly move.

    Finds: a run that gains little on its own batches, with updates below a ten-thousandth of the weights, where the
    same model learns them within a few dozen updates at a rate 10, 100, 10000 or a million times higher.
    Why it matters: the run spends its time and ends where it began; it looks like a model that cannot learn.
    Decides by: the size of update over weight, and a short training on recorded batches at higher rates.
    Usual cures: multiply the learning rate by the factor named (1e-3 suits Adam, 1e-2 to 1e-1 SGD, to begin with).
    """
    probe, ratio = overfit_of(evidence), typical_ratio(evidence)
    if probe is None or ratio is None:
        evidence.cannot("learning_rate_too_low", why_no_overfit(evidence))
        return
    arms = [arm for name in FASTER if (arm := probe.arms.get(name)) is not None]
    arms = [arm for arm in arms if not arm.diverged and arm.last < 0.7 * probe.first]
    arms = [arm for arm in arms if max(probe.share(probe.final, arm), probe.share(probe.own.last, arm)) < 0.3]
    if not arms or ratio > TINY_RATIO:
        return
    arm = min(arms, key=lambda each: each.last)
    factor = f"{int(arm.name.removeprefix('lr_x')):,}"
    guilty, rate = _whose(evidence, probe, low=True)
    yield Finding(
        "learning_rate_too_low",
        Severity.CRITICAL if probe.final > 0.9 * probe.first else Severity.WARNING,
        f"the learning rate{rate} is too low: {factor} times it learns the same batches in {arm.updates} updates",
        step=_first_update(evidence),
        source=optimizer_line(evidence, guilty),
        evidence={
            **numbers(probe, arm),
            "update_over_weight": ratio,
            **_named(guilty),
            **_setting("lr", guilty.lr if guilty else probe.lr),
        },
        confidence=0.86,
        inference="gradients are there and point the right way; the steps along them are too short",
    )


@cause(
    "momentum_too_high",
    group="optim",
    auto="R",
    explains=(*UNSTABLE, "missing_gradient_clipping"),
    excludes=("learning_rate_too_high",),
)
def momentum_too_high(evidence: Evidence) -> Iterator[Finding]:
    """Momentum so near to one that updates overshoot.

    Finds: momentum (beta1 of Adam) of at least 0.97 in a run that failed, where the same batches are learned with 0.9.
    Why it matters: the velocity sums up hundreds of gradients; when the slope turns, the weights fly on for as long.
    Decides by: a short training on recorded batches with momentum 0.9 and everything else as it was.
    Usual cures: momentum 0.9; if 0.99 is wanted, a learning rate ten times smaller.
    """
    verdict, probe = too_high(evidence), overfit_of(evidence)
    if verdict is None or probe is None or verdict[0] != "momentum_too_high":
        return
    yield Finding(
        "momentum_too_high",
        Severity.CRITICAL,
        f"momentum {probe.momentum:g} is too high: with 0.9 the same batches are learned, the run learned nothing",
        step=_first_update(evidence),
        source=optimizer_line(evidence),
        evidence={**numbers(probe, verdict[1]), "momentum": probe.momentum, **_setting("lr", probe.lr)},
        confidence=0.87,
        inference=f"a velocity of {1 / (1 - min(probe.momentum, 0.99999)):.0f} summed gradients overshoots for as long",
    )


@cause(
    "weight_decay_too_high",
    group="optim",
    auto="R",
    explains=("no_learning", "loss_plateau", "constant_output", "underfitting", "vanishing_gradient", "zero_gradient",
              "slow_convergence", "dead_units", "insufficient_capacity", "insufficient_training",
              "learning_rate_too_low", "oscillating_loss", "parameters_not_updating"),
    excludes=("learning_rate_too_high",),
)  # fmt: skip
def weight_decay_too_high(evidence: Evidence) -> Iterator[Finding]:
    """The decay term outweighs the gradient.

    Finds: a run with weight decay that does not learn batches which the same model learns without it.
    Why it matters: the weights shrink geometrically towards zero, whatever the data say; the output becomes constant.
    Decides by: a short training on recorded batches with weight_decay=0 and everything else as it was.
    Usual cures: weight_decay of 1e-4 (SGD) to 1e-2 (AdamW); none on biases and norms.
    """
    verdict, probe = too_high(evidence), overfit_of(evidence)
    if verdict is None or probe is None or verdict[0] != "weight_decay_too_high":
        return
    decay = float(probe.fact.get("weight_decay") or 0.0)
    yield Finding(
        "weight_decay_too_high",
        Severity.CRITICAL,
        f"weight decay {decay:g} is too high: without it the same batches are learned, with it they are not",
        step=_first_update(evidence),
        source=optimizer_line(evidence),
        evidence={**numbers(probe, verdict[1]), "weight_decay": decay, **_setting("lr", probe.lr)},
        confidence=0.9,
        inference="the pull towards zero is stronger than what the data say",
    )


@cause(
    "missing_warmup",
    group="optim",
    auto="R",
    explains=(*UNSTABLE, "learning_rate_too_high"),
    excludes=("learning_rate_too_high",),
)
def missing_warmup(evidence: Evidence) -> Iterator[Finding]:
    """The full step size from the first update on wrecks the run.

    Finds: an adaptive optimizer (Adam, RMSprop and their like) in a run that failed, where the same batches are learned
    at the same full rate once it is reached gradually.
    Why it matters: the second moment is young in the first updates, so each step is as long as it can be; a network
    that saturates or dies then does not come back.
    Decides by: a short training on recorded batches with a linear warm-up, which must do as well as a smaller rate.
    Usual cures: a linear warm-up over the first hundreds of updates; RAdam; a smaller rate.
    """
    verdict, probe = too_high(evidence), overfit_of(evidence)
    if verdict is None or probe is None or verdict[0] != "missing_warmup":
        return
    slower = [arm for name in ("lr_x0.1", "lr_x0.01") if (arm := probe.arms.get(name)) is not None]
    yield Finding(
        "missing_warmup",
        Severity.CRITICAL if probe.failed else Severity.WARNING,
        f"{probe.optimizer} takes its full rate from the first update on: reached gradually, the same rate learns",
        step=_first_update(evidence),
        source=optimizer_line(evidence),
        evidence={**numbers(probe, verdict[1], *slower[:1]), **_setting("lr", probe.lr)},
        confidence=0.84,
        inference="the rate is right once the optimizer has seen some gradients; only the first steps are too long",
    )
