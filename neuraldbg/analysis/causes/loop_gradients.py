"""Gradients and the calls that make, apply and clear them: zero_grad, backward and step, in the right order."""

from __future__ import annotations

from collections.abc import Iterator

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.loop_reading import (
    STUCK,
    STUCK_CAUSES,
    Fact,
    deepest_layer,
    latest,
    models_of,
    parameters_owned,
    stepping,
    steps_by,
    variable,
)
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Call, Finding, Severity
from neuraldbg.trace.tables import CALL_CODE

FEWEST = 3  # updates or backwards before anything is said about a loop


def _flows(evidence: Evidence) -> dict[int, Fact]:
    return latest(evidence, "gradient_flow", "optimizer")


@cause(
    "missing_zero_grad",
    group="loop",
    auto="R",
    explains=(
        "learning_rate_too_high",
        "momentum_too_high",
        "missing_gradient_clipping",
        "missing_warmup",
        "batch_size_too_small",
        "exploding_gradient",
        "exploding_activation",
        "oscillating_loss",
        "diverging_loss",
        "loss_spike",
        "nan_loss",
        "inf_loss",
        "nan_gradient",
        "no_learning",
        "loss_plateau",
        "slow_convergence",
        "update_ratio_too_high",
        "dead_units",
        "saturated_units",
    ),
    excludes=("gradient_accumulation_not_scaled",),
)
def missing_zero_grad(evidence: Evidence) -> Iterator[Finding]:
    """Gradients of earlier updates are never cleared.

    Finds: optimizers whose step() applies gradients that an earlier step() has already applied, because nothing set
    them to zero or None in between.
    Why it matters: `.grad` adds up. Each update repeats all those before it, so the step size grows with the number of
    batches and the direction is that of old data: the loss swings, plateaus high or diverges.
    Decides by: the values in `.grad` when a backward begins after an update, for each optimizer apart. Clearing by
    another optimizer's zero_grad(), by model.zero_grad() or by hand counts as what it did; several backwards per step
    (accumulation) are fine, and so are gradients that were scaled down on purpose.
    Usual cures: call optimizer.zero_grad() once per update, before backward().
    """
    judged = False
    for site, flow in _flows(evidence).items():
        kinds = flow["kinds"]
        stale, fresh = kinds.get("stale", 0), kinds.get("fresh", 0)
        judged = judged or bool(stale or fresh or kinds.get("empty", 0))
        if stale < 2 or stale < 0.25 * (stale + fresh):
            continue
        name = variable(evidence, site)
        calls = evidence.count(Call.ZERO_GRAD, site=site)
        others = evidence.count(Call.ZERO_GRAD) - calls
        said = "is never called" if not calls else "does not run before every backward"
        if not calls and others:
            said = "is never called for it (only for something else)"
        part = len(stepping(evidence)) > 1 and sorted(parameters_owned(evidence).get(site, ()))
        yield Finding(
            "missing_zero_grad",
            Severity.CRITICAL if stale >= 0.6 * (stale + fresh) else Severity.WARNING,
            f"{name}.zero_grad() {said}: each {name}.step() applies the gradients of earlier batches again",
            step=flow["first"]["stale"],
            layer=deepest_layer(evidence, part) if part else None,
            source=evidence.line_of(Call.ZERO_GRAD) or evidence.line_of(Call.BACKWARD),
            evidence={
                "optimizer": name,
                "zero_grad_calls": calls,
                "updates_with_old_gradients": stale,
                "updates_looked_at": stale + fresh,
                "backward_line": evidence.line_of(Call.BACKWARD) or "unknown",
                "step_line": evidence.line_of(Call.STEP, site=site) or "unknown",
            },
            confidence=0.97,
            inference="gradients add up from batch to batch, so steps grow and point at old data",
        )
    if not judged:
        yield from _stale_on_device(evidence)


def _stale_on_device(evidence: Evidence) -> Iterator[Finding]:
    """Where gradients were not read one optimizer at a time: the share of old ones that were not zero."""
    rows = evidence.of_call(Call.GRAD_STALE)
    optimizers = stepping(evidence)
    if len(rows["value"]) < FEWEST or len(optimizers) != 1:
        if evidence.updates and evidence.backwards and optimizers:
            evidence.cannot("missing_zero_grad", "gradients could not be read when backward began")
        return
    share = float((rows["value"] > 0.5).mean())
    if share >= 0.9 and not evidence.count(Call.ZERO_GRAD):
        name = variable(evidence, optimizers[0])
        yield Finding(
            "missing_zero_grad",
            Severity.CRITICAL,
            f"{name}.zero_grad() is never called: each {name}.step() applies the gradients of earlier batches again",
            step=int(rows["step"][0]),
            source=evidence.line_of(Call.BACKWARD),
            evidence={"optimizer": name, "zero_grad_calls": 0, "backwards_with_old_gradients": share},
            confidence=0.95,
            inference="gradients add up from batch to batch, so steps grow and point at old data",
        )


@cause(
    "backward_missing",
    group="loop",
    auto="R",
    explains=(*STUCK, *STUCK_CAUSES, "missing_gradient", "zero_gradient", "missing_no_grad_in_eval", "detached_graph"),
)
def backward_missing(evidence: Evidence) -> Iterator[Finding]:
    """The optimizer steps and no gradient was ever computed.

    Finds: runs where step() is called again and again while `.grad` of every parameter it owns is None, and no
    backward ran.
    Why it matters: step() skips parameters without a gradient and says nothing. The weights never move.
    Decides by: the ledger (no backward, no torch.autograd.grad) and the gradients each step() found.
    Usual cures: loss.backward() between the loss and optimizer.step().
    """
    if evidence.backwards or evidence.count(Call.AUTOGRAD_GRAD) or not evidence.of_call(Call.PASS)["value"].any():
        return
    for site, flow in _flows(evidence).items():
        steps = steps_by(evidence)[site]
        empty = flow["kinds"].get("empty", 0)
        if steps < FEWEST or empty < FEWEST or empty < sum(flow["kinds"].values()):
            continue
        name = variable(evidence, site)
        passes = evidence.of_call(Call.PASS)
        yield Finding(
            "backward_missing",
            Severity.CRITICAL,
            f"{name}.step() ran {steps} times and backward() never did: no parameter has a gradient",
            step=flow["first"]["empty"],
            source=evidence.line_of(Call.STEP, site=site),
            evidence={
                "optimizer": name,
                "steps": steps,
                "backwards": 0,
                "forward_line": evidence.line_of(Call.PASS) or "unknown",
                "forward_passes_with_graph": int((passes["value"] > 0).sum()),
            },
            confidence=0.98,
            inference="step() leaves parameters without a gradient as they are",
        )
        return


@cause(
    "step_order_wrong",
    group="loop",
    auto="R",
    explains=(*STUCK, *STUCK_CAUSES, "zero_gradient", "missing_gradient", "vanishing_gradient"),
    excludes=("missing_zero_grad",),
)
def step_order_wrong(evidence: Evidence) -> Iterator[Finding]:
    """zero_grad, backward and step come in an order in which step sees no gradient.

    Finds: optimizers whose gradients are filled by backward and are None or zero again at (nearly) every step(); and
    updates of several backwards between which the gradients are cleared, so that only the last one counts.
    Why it matters: every update is empty, so nothing is learned although each call is there; or one of several losses,
    or most of an accumulated batch, is never learned from.
    Decides by: the gradients at step() and the order of calls in the ledger: zero_grad() between backward() and step(),
    or step() before backward(). Between two backwards: gradients of weights alone that were there, were zero when the
    next backward began, and were applied as that one left them. Adversarial examples, SAM and gradients that are put
    together by hand are left alone.
    Usual cures: zero_grad(), forward, backward(), step(), in this order.
    """
    for site, flow in _flows(evidence).items():
        kinds = flow["kinds"]
        empty, seen = kinds.get("empty", 0), sum(kinds.values())
        if empty < FEWEST or empty < 0.8 * seen or flow["reached"] < FEWEST:
            continue
        order = _order(evidence, site)
        if order is None:
            continue
        name = variable(evidence, site)
        cleared = order == "cleared"
        what = (
            f"zero_grad() runs between backward() and {name}.step()"
            if cleared
            else f"{name}.step() runs before backward()"
        )
        zero_line = evidence.line_of(Call.ZERO_GRAD, site=site) or evidence.line_of(Call.ZERO_GRAD)
        step_line = evidence.line_of(Call.STEP, site=site)
        yield Finding(
            "step_order_wrong",
            Severity.CRITICAL,
            f"{what}: the gradients are gone when they should be applied",
            step=flow["first"]["empty"],
            source=zero_line if cleared else step_line,
            evidence={
                "optimizer": name,
                "order": "backward, zero_grad, step" if cleared else "zero_grad, step, backward",
                "updates_without_gradient": empty,
                "updates_looked_at": seen,
                "backwards_that_reached_it": flow["reached"],
                "zero_grad_line": zero_line or "unknown",
                "backward_line": evidence.line_of(Call.BACKWARD) or "unknown",
                "step_line": step_line or "unknown",
            },
            confidence=0.97,
            inference="an update without gradients changes nothing",
        )
        return
    yield from _cleared_between(evidence)


def _cleared_between(evidence: Evidence) -> Iterator[Finding]:
    """Several backwards for one update, and only the last one's gradients in it."""
    for site, fact in latest(evidence, "gradients_lost", "optimizer").items():
        if fact["count"] < FEWEST or fact["count"] < 0.8 * fact["updates"]:
            continue
        name = variable(evidence, site)
        lost, kept = evidence.source(fact["cleared_id"]), evidence.source(fact["applied_id"])
        zero_line = evidence.line_of(Call.ZERO_GRAD, site=site) or evidence.line_of(Call.ZERO_GRAD)
        which = (
            f"those of {lost} never reach {name}.step()" if lost != kept else f"{name}.step() sees the last ones only"
        )
        yield Finding(
            "step_order_wrong",
            Severity.WARNING,
            f"the gradients are cleared between the backwards of one update: {which}",
            step=int(fact["first"]),
            source=zero_line,
            evidence={
                "optimizer": name,
                "order": "backward, zero_grad, backward, step",
                "updates_with_lost_gradients": fact["count"],
                "updates_looked_at": fact["updates"],
                "lost_backward_line": lost or "unknown",
                "applied_backward_line": kept or "unknown",
                "zero_grad_line": zero_line or "unknown",
            },
            confidence=0.92,
            inference="a backward adds to the gradients that are there; what is cleared before step() teaches nothing",
        )
        return


def _order(evidence: Evidence, optimizer: int) -> str | None:
    """What most steps of an optimizer follow: "cleared" = a backward and then a zero_grad, "early" = a forward pass
    whose backward is still to come."""
    mine = {optimizer, -1, *models_of(evidence, optimizer)}
    rows = evidence.of_call(Call.PASS, Call.BACKWARD, Call.ZERO_GRAD, Call.STEP)
    letter = {CALL_CODE[Call.PASS]: "p", CALL_CODE[Call.BACKWARD]: "b", CALL_CODE[Call.ZERO_GRAD]: "z"}
    found = {"cleared": 0, "early": 0, "right": 0}
    since = ""
    for call, site in zip(rows["call"].tolist(), rows["site"].tolist(), strict=True):
        if call in letter:
            if letter[call] != "z" or site in mine:
                since += letter[call]
        elif site == optimizer:
            found[_told(since)] += 1
            since = ""
    if found["right"] > 0.2 * sum(found.values()):
        return None
    backwards = evidence.of_call(Call.BACKWARD)["seq"]
    if len(backwards) and evidence.of_call(Call.STEP, site=optimizer)["seq"][0] < backwards[0]:
        return "early"  # in a loop the two orders look alike but for their beginning
    return "cleared" if found["cleared"] > found["early"] else "early"


def _told(since: str) -> str:
    """By the calls since the last step: p = a forward pass, b = backward, z = zero_grad."""
    backward, cleared, forward = since.rfind("b"), since.rfind("z"), since.rfind("p")
    if backward >= 0 and cleared < backward:
        return "right"
    return "early" if forward > backward else "cleared"


@cause(
    "optimizer_step_missing",
    group="loop",
    auto="R",
    explains=(*STUCK, *STUCK_CAUSES, "missing_zero_grad", "exploding_gradient", "scheduler_misuse"),
)
def optimizer_step_missing(evidence: Evidence) -> Iterator[Finding]:
    """backward runs and step() of the optimizer that owns the parameters never does.

    Finds: optimizers that were created, whose parameters get gradients from many backwards, and that never step.
    Why it matters: the network stays as it was initialised; every metric is that of random weights.
    Decides by: no step() call in the whole run, gradients that arrived, and parameters that are still bit for bit what
    they were. Parameters moved by hand or by another optimizer do not count.
    Usual cures: optimizer.step() after loss.backward() (scheduler.step() does not do it).
    """
    owned = parameters_owned(evidence)
    moved_by_others = set().union(*(owned.get(site, set()) for site in stepping(evidence)), set())
    for site, flow in _flows(evidence).items():
        mine = owned.get(site, set())
        if steps_by(evidence)[site] or evidence.count(Call.STEP_SKIPPED, site=site) or mine & moved_by_others:
            continue
        if flow["reached"] < FEWEST or flow.get("moved") is not False or not mine:
            continue
        name = variable(evidence, site)
        schedulers = evidence.count(Call.SCHEDULER, site=site)
        yield Finding(
            "optimizer_step_missing",
            Severity.CRITICAL,
            f"{name}.step() is never called: {evidence.backwards} backward passes, and no parameter "
            + ("it owns has moved" if stepping(evidence) else "has moved"),
            step=0,
            layer=deepest_layer(evidence, sorted(mine)) if stepping(evidence) else None,
            source=evidence.line_of(Call.BACKWARD),
            evidence={
                "optimizer": name,
                "steps": 0,
                "backwards": evidence.backwards,
                "parameters_owned": len(mine),
                "scheduler_steps": schedulers,
            },
            confidence=0.97,
            inference="gradients are computed and thrown away",
        )
        return
