"""Gradient clipping: in the wrong place, at the wrong height, or nowhere."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.optim_arms import ADAPTIVE, Arm, Overfit, numbers, optimizer_line, overfit_of
from neuraldbg.analysis.causes.optim_rate import SLOW, too_high
from neuraldbg.analysis.evidence import Columns, Evidence
from neuraldbg.analysis.written import argument_line
from neuraldbg.records import Call, Finding, Severity, SiteKind
from neuraldbg.trace.tables import CALL_CODE

FAR_BELOW = 1e3
BELOW = 10.0
NEARLY_ALL = 0.9
SPIKE = 20.0  # times the usual gradient norm
JUMP = 5.0  # times the usual loss
LASTING = 20  # updates that a jump must last
EARLIEST = 10  # updates before a jump, to know the usual loss
MOST_JUMPS = 2000  # high losses that are looked at


@cause(
    "gradient_clip_misuse",
    group="optim",
    auto="R",
    explains=(*SLOW, "learning_rate_too_low", "insufficient_training", "insufficient_capacity",
              "missing_gradient_clipping",
              "exploding_gradient", "diverging_loss", "loss_spike", "oscillating_loss", "nan_loss", "inf_loss",
              "nan_gradient", "learning_rate_too_high"),
    excludes=("missing_gradient_clipping",),
)  # fmt: skip
def gradient_clip_misuse(evidence: Evidence) -> Iterator[Finding]:
    """Clipping takes away nearly all of the gradient, or comes when it is no use.

    Finds: clip calls that follow the optimizer's step (or precede the backward) so that the step sees the raw gradient;
    a limit a thousand times below the gradient norm on nearly every step; and a limit without which the same batches
    are learned, and with which they are not.
    Why it matters: in the wrong place nothing is bounded; far too low a limit makes every step tiny, whatever the rate.
    Decides by: the order of backward, clip and step in the ledger; the norm before clipping over the limit; a
    short training on recorded batches with and without the limit.
    Usual cures: backward, unscale, clip, step, in this order; a limit near the usual norm (often 1.0).
    """
    clips = evidence.of_call(Call.CLIP)
    if len(clips["step"]) < 3:
        return
    yield from _misplaced(evidence, clips)
    yield from _far_too_low(evidence, clips)


def _on_device(evidence: Evidence) -> bool:
    """There norms arrive late, and rows say nothing about order."""
    return any((site.device or "cpu") != "cpu" for site in evidence.of_kind(SiteKind.PARAMETER))


def _misplaced(evidence: Evidence, clips: Columns) -> Iterator[Finding]:
    bounding = (clips["value"] > clips["aux"]) | ~np.isfinite(clips["value"])
    if _on_device(evidence) or not bounding.any() or not np.isfinite(clips["aux"]).any():
        return
    rows = evidence.of_call(Call.BACKWARD, Call.STEP, Call.CLIP, Call.ZERO_GRAD)
    codes = rows["call"]
    fresh, late, first_late = False, 0, None
    for code, step in zip(codes.tolist(), rows["step"].tolist(), strict=True):
        if code == CALL_CODE[Call.BACKWARD]:
            fresh = True
        elif code in (CALL_CODE[Call.STEP], CALL_CODE[Call.ZERO_GRAD]):
            fresh = False
        elif not fresh:
            late += 1
            first_late = step if first_late is None else first_late
    total = len(clips["step"])
    if late < NEARLY_ALL * total or late < 3:
        return
    yield Finding(
        "gradient_clip_misuse",
        Severity.CRITICAL if _went_wrong(evidence) else Severity.WARNING,
        "gradients are clipped after the optimizer has used them, so no step is bounded",
        step=max((first_late or 0) - 1, 0),
        source=evidence.line_of(Call.CLIP),
        evidence={
            "clip_calls": int(total),
            "clip_calls_after_step": int(late),
            "largest_norm": float(np.nanmax(np.where(np.isfinite(clips["value"]), clips["value"], np.nan))),
            "limit": float(np.nanmedian(clips["aux"])),
        },
        confidence=0.93,
        inference="between backward and step nothing touches the gradients: the call changes what nobody reads again",
    )


def _went_wrong(evidence: Evidence) -> bool:
    loss = evidence.curve("loss").values
    return bool(len(loss)) and not np.isfinite(loss[-1])


def _far_too_low(evidence: Evidence, clips: Columns) -> Iterator[Finding]:
    known = np.isfinite(clips["value"]) & (clips["aux"] > 0) & np.isfinite(clips["aux"])
    probe = overfit_of(evidence)
    freed = None if probe is None else probe.learned("unclipped")
    helped = freed is not None and probe is not None and probe.share(probe.own.last, freed) < 0.5
    if probe is not None and freed is not None and helped and known.sum() < 3:
        yield _each_value_cut(evidence, clips, probe, freed)
    if known.sum() < 3:
        return
    ratio = clips["value"][known] / clips["aux"][known]
    far = float((ratio > FAR_BELOW).mean())
    if far < NEARLY_ALL and not (helped and float((ratio > BELOW).mean()) >= NEARLY_ALL):
        return
    adaptive = any(fact["class"] in ADAPTIVE for fact in evidence.facts("optimizer"))
    harmless = not helped and (adaptive or (probe is not None and not probe.failed))
    limit, norm = float(np.median(clips["aux"][known])), float(np.median(clips["value"][known]))
    yield Finding(
        "gradient_clip_misuse",
        Severity.INFO if harmless else Severity.CRITICAL,
        f"gradients of norm {norm:.2g} are clipped to {limit:.2g}: {np.median(ratio):.0f} times too little is left",
        step=int(clips["step"][known][0]),
        source=argument_line(evidence, evidence.line_of(Call.CLIP), "max_norm", 1),
        evidence={
            "median_norm_over_limit": float(np.median(ratio)),
            "share_far_above_limit": far,
            "limit": limit,
            **({} if probe is None or freed is None else numbers(probe, freed)),
        },
        confidence=0.55 if harmless else 0.94 if helped else 0.9,
        inference="the step size is set by the limit, not by the learning rate",
    )


def _each_value_cut(evidence: Evidence, clips: Columns, probe: Overfit, freed: Arm) -> Finding:
    """clip_grad_value_ tells no norm: what the run learns without it does."""
    limit = float(np.nanmedian(clips["aux"]))
    return Finding(
        "gradient_clip_misuse",
        Severity.CRITICAL if probe.failed else Severity.WARNING,
        f"gradients are cut to {limit:.2g} in every entry: the same batches are learned without it, not with it",
        step=int(clips["step"][0]),
        source=argument_line(evidence, evidence.line_of(Call.CLIP), "clip_value", 1),
        evidence={"limit": limit, **numbers(probe, freed)},
        confidence=0.9,
        inference="the step size is set by the limit, not by the learning rate",
    )


@cause(
    "missing_gradient_clipping",
    group="optim",
    auto="R",
    explains=("loss_spike", "diverging_loss", "exploding_gradient", "nan_loss", "inf_loss", "nan_gradient",
              "no_learning", "exploding_activation", "update_ratio_too_high", "oscillating_loss", "nan_activation",
              "dead_units"),
    excludes=("learning_rate_too_high", "momentum_too_high", "gradient_clip_misuse", "data_outlier_batch"),
)  # fmt: skip
def missing_gradient_clipping(evidence: Evidence) -> Iterator[Finding]:
    """A rare huge gradient wrecks the run, and nothing bounds it.

    Finds: a run that learned until one gradient many times the usual norm, after which its loss jumped and did not
    come back, with no clipping; ordinary batches are learned well with the same settings.
    Why it matters: one step can undo thousands; recurrent nets and long sequences meet such gradients sooner or later.
    Decides by: the gradient norms and the loss around the jump, and a short training on ordinary recorded batches.
    Usual cures: torch.nn.utils.clip_grad_norm_ with a limit near the usual norm, before every step.
    """
    if evidence.count(Call.CLIP):
        return
    verdict, probe = too_high(evidence), overfit_of(evidence)
    if verdict is not None and verdict[0] == "missing_gradient_clipping" and probe is not None:
        yield _finding(evidence, 0, {**numbers(probe, verdict[1])}, 0.8, Severity.CRITICAL)
        return
    spike = _lasting_jump(evidence)
    if spike is None:
        return
    step, found = spike
    sound = probe is not None and not probe.own.diverged and probe.own.last < 0.7 * probe.first
    decided = sound and probe is not None and probe.failed and verdict is None
    decided = decided or (probe is None and _learns_until_ruin(evidence))
    found = {**found, **(numbers(probe) if probe is not None else {})}
    severity = Severity.CRITICAL if decided else Severity.INFO
    yield _finding(evidence, step, found, 0.76 if decided else 0.45, severity)


def _learns_until_ruin(evidence: Evidence) -> bool:
    """Of a loss that begins below zero: its own settings learn ordinary batches, and the run ended in NaN."""
    fact = evidence.probe("overfit")
    if fact is None or not fact["from_initial"] or fact.get("run_first_loss") is None:
        return False
    own = fact["arms"]["own"]
    ruined = fact.get("final_loss") is None and not own["diverged"] and own["updates"] >= LASTING
    return bool(ruined and own["last"] is not None and own["last"] < fact["run_first_loss"])


def _finding(
    evidence: Evidence, step: int, found: dict[str, float | str], confidence: float, severity: Severity
) -> Finding:
    return Finding(
        "missing_gradient_clipping",
        severity,
        "a rare gradient far above the usual norm wrecks the run, and nothing bounds it",
        step=step,
        source=evidence.line_of(Call.STEP) or optimizer_line(evidence),
        evidence=found,
        confidence=confidence,
        inference="ordinary batches are learned with these settings; one step of the rare gradient undoes it",
    )


def _lasting_jump(evidence: Evidence) -> tuple[int, dict[str, float | str]] | None:
    """The step at which a loss that had been falling jumps for good, with a gradient far above the usual near it."""
    loss = evidence.curve("loss")
    norms = evidence.curve("grad_norm")
    finite = loss.values[np.isfinite(loss.values)]
    if len(loss) < 40 or len(norms) < 10 or not len(finite):
        return None
    usual_of_all = float(np.median(finite))
    high = np.flatnonzero(np.isfinite(loss.values) & (loss.values > usual_of_all))
    lost = np.flatnonzero(~np.isfinite(loss.values))
    for index in high[high >= EARLIEST][:MOST_JUMPS].tolist():
        before = loss.values[max(0, index - 200) : index]
        before = before[np.isfinite(before)]
        if not len(before):
            continue
        usual, high_end = (float(value) for value in np.quantile(before, (0.5, 0.9)))
        rest = loss.values[index:]
        if not loss.values[index] > high_end + (JUMP - 1) * max(abs(high_end), abs(usual)) or len(rest) < LASTING:
            continue
        known = rest[np.isfinite(rest)]
        ruined = not np.isfinite(rest[-1]) and (high_end > 0 or int(lost[lost >= index][0]) - index <= LASTING)
        if ruined or float(np.median(known)) > max(usual + abs(usual), high_end):
            found = _spike_near(norms.steps, norms.values, int(loss.steps[index]), usual)
            if found is not None:
                return found
    return None


def _spike_near(
    steps: np.ndarray, values: np.ndarray, jump: int, usual_loss: float
) -> tuple[int, dict[str, float | str]] | None:
    near = (steps >= jump - 25) & (steps <= jump + 1)
    if not near.any():  # norms are looked at now and then; the loss at every update
        return jump, {"loss_before": usual_loss, "loss_jumped_at": float(jump)}
    earlier = values[(steps < jump - 25) & np.isfinite(values)] if (steps < jump - 25).any() else values[:10]
    known = earlier[np.isfinite(earlier)]
    usual = float(np.median(known)) if len(known) else 0.0
    high = near & (~np.isfinite(values) | (values > SPIKE * usual))
    if not usual or not high.any():
        return None
    worst = values[high & np.isfinite(values)]
    found: dict[str, float | str] = {"usual_norm": usual, "loss_before": usual_loss, "loss_jumped_at": float(jump)}
    if len(worst):
        found["norm_at_jump"] = float(worst.max())
    return int(steps[high][0]), found
