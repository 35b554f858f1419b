"""Gradients of several backwards that are added up before one update."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.optim_arms import numbers, overfit_of
from neuraldbg.analysis.causes.optim_rate import UNSTABLE
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Call, Finding, Severity

UNEQUAL = 2.0


def _windows(evidence: Evidence) -> list[dict[str, Any]]:
    """Windows in which one line of the script calls backward several times on a mean."""
    return [
        fact
        for fact in evidence.facts("accumulation_window")
        if len(set(fact["sources"])) == 1 and all(reduction == "mean" for reduction in fact["reductions"])
    ]


def _equal(values: list[float], to: float) -> bool:
    return all(abs(value - to) <= 0.02 * abs(to) for value in values)


@cause(
    "gradient_accumulation_not_scaled",
    group="optim",
    auto="R",
    explains=(*UNSTABLE, "learning_rate_too_high", "momentum_too_high", "missing_gradient_clipping", "missing_warmup"),
    excludes=("learning_rate_too_high",),
)
def gradient_accumulation_not_scaled(evidence: Evidence) -> Iterator[Finding]:
    """Micro-batch losses are added up without dividing by their number.

    Finds: one line that calls backward k times before each step on a mean loss that is not divided by k, in a run whose
    own batches are learned once it is.
    Why it matters: the gradient is k times that of one batch, and so is every step of a plain optimizer.
    Decides by: backwards per update, the factor at the root of each loss, and a short training with loss / k.
    Usual cures: (loss / k).backward(); or a learning rate k times smaller.
    """
    windows = [one for one in _windows(evidence) if _equal(one["factors"], 1.0)]
    fact = evidence.fact("accumulation")
    per_update = 1 if fact is None else int(fact["backwards_per_update"])
    if per_update < 2 or not windows or evidence.count(Call.ZERO_GRAD) > 0.8 * evidence.backwards:
        return  # gradients that are cleared before every backward (a closure) do not add up
    probe = overfit_of(evidence)
    scaled = None if probe is None else probe.cures("scaled")
    source = evidence.source(windows[0]["sources"][0])
    found: dict[str, float | str] = {"backwards_per_update": int(per_update), "loss_factor": 1.0}
    if scaled is not None and probe is not None:
        found |= numbers(probe, scaled)
    yield Finding(
        "gradient_accumulation_not_scaled",
        Severity.INFO if scaled is None else Severity.CRITICAL,
        f"{per_update} micro-batch losses are summed before each step and none is divided by {per_update}",
        step=int(windows[0]["step"]),
        source=source,
        evidence=found,
        confidence=0.5 if scaled is None else 0.94,
        inference=f"every gradient is {per_update} times that of one batch; divided by it, the same batches are learned"
        if scaled is not None
        else "harmless where the learning rate was chosen for the sum, or the optimizer ignores the scale",
    )


@cause("accumulation_token_imbalance", group="optim", auto="R", explains=(), excludes=())
def accumulation_token_imbalance(evidence: Evidence) -> Iterator[Finding]:
    """Accumulated micro-batches of unequal size all weigh the same.

    Finds: windows of several backwards on mean losses with one common factor, while the numbers of targets that are not
    ignored differ by more than two times.
    Why it matters: a token of a short micro-batch counts several times as much as one of a long one: the gradient is
    not that of the joined batch, and nothing in the curves tells.
    Decides by: the targets and the factor of every loss in the window.
    Usual cures: sum the losses (reduction="sum") and divide by the number of valid targets of the whole window.
    """
    windows = [one for one in _windows(evidence) if None not in one["valids"] and min(one["valids"]) > 0]
    unequal = [
        one
        for one in windows
        if max(one["valids"]) > UNEQUAL * min(one["valids"]) and _equal(one["factors"], one["factors"][0])
    ]
    if len(unequal) < 2 or len(unequal) < len(windows) / 2 or not any("Nll" in str(k) for k in unequal[0]["kinds"]):
        return
    spread = [max(one["valids"]) / min(one["valids"]) for one in unequal]
    worst = unequal[spread.index(max(spread))]
    yield Finding(
        "accumulation_token_imbalance",
        Severity.WARNING,
        f"micro-batches of {min(worst['valids'])} to {max(worst['valids'])} valid targets are averaged each by its own "
        "count and then weigh the same",
        step=int(unequal[0]["step"]),
        source=evidence.source(unequal[0]["sources"][0]) or evidence.line_of(Call.BACKWARD),
        evidence={
            "windows_looked_at": len(windows),
            "windows_unequal": len(unequal),
            "largest_imbalance": float(max(spread)),
            "backwards_per_update": int(unequal[0]["backwards"]),
        },
        confidence=0.88,
        inference="the mean of means is not the mean: the update does not follow the gradient of the joined batch",
    )
