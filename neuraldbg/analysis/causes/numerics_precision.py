"""Causes of half precision: underflow, loss scaling, updates lost to rounding, and labels that are all ignored."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.numerics import CONSEQUENCES, is_half_overflow, origin_of, scaled_loss, when
from neuraldbg.analysis.evidence import Columns, Evidence
from neuraldbg.records import Call, Finding, Severity
from neuraldbg.trace.tables import CALL_CODE

SLOW = ("no_learning", "slow_convergence", "loss_plateau", "parameters_not_updating", "zero_gradient",
        "vanishing_gradient", "update_ratio_too_low", "learning_rate_too_low", "underfitting")  # fmt: skip
FLUSHED = 0.3  # share of gradient elements that are zero in float16 and not in float32
LOST = 0.5  # share of wanted changes that rounding undid
LARGE_SCALE = 2.0**24
_NUMBER = re.compile(r"(?<![\w.])(\d[\d_]*(?:\.\d*)?(?:[eE][+-]?\d+)?)(?:\s*(\*\*|<<)\s*(\d+(?:\.\d*)?))?")


@cause("fp16_underflow", group="num", auto="R", explains=("update_lost_to_rounding", *SLOW, *CONSEQUENCES))
def fp16_underflow(evidence: Evidence) -> Iterator[Finding]:
    """Half-precision gradients, or the optimizer's own numbers, are flushed to zero.

    Finds: weight gradients that are exactly zero in float16 while the same pass in float32 gives them a value; and
    optimizers whose epsilon (1e-8) is 0 in float16, so that the update divides by zero.
    Why it matters: float16 ends at 6e-8 downwards. What is smaller vanishes: those weights are not trained, or, in
    Adam's denominator, become infinite.
    Decides by: running one recorded pass again in float32 and comparing the shares of exact zeros; an update that
    turned a finite weight with a finite gradient into NaN.
    Usual cures: GradScaler, bfloat16, float32 weights with autocast instead of model.half(), a larger eps (1e-4).
    """
    yield from _zero_division(evidence)
    looks = [one for one in evidence.facts("half_gradients") if one["zeros_half"] - one["zeros_float32"] >= FLUSHED]
    if not looks:
        return
    worst = max(looks, key=lambda one: float(one["zeros_half"]))
    half, wide = float(worst["zeros_half"]), float(worst["zeros_float32"])
    yield Finding(
        "fp16_underflow",
        Severity.CRITICAL if half > 0.9 else Severity.WARNING,
        f"{half:.0%} of the weight gradients are exactly 0 in float16; in float32 {wide:.0%} are",
        step=int(looks[0]["step"]),
        layer=evidence.layer_of(worst["parameter_site"]) if worst.get("parameter_site") is not None else None,
        source=evidence.line_of(Call.BACKWARD),
        evidence={"zero_share_float16": half, "zero_share_float32": wide, "looks": len(looks)},
        confidence=0.93,
        inference="gradients below 6e-8 are flushed to zero, so those weights do not learn",
    )


def _zero_division(evidence: Evidence) -> Iterator[Finding]:
    for one in evidence.facts("update_not_finite")[:1]:
        if one["dtype"] != "float16":
            continue
        eps = one.get("eps")
        cause = f": eps={eps:g} is 0 in float16" if eps is not None and eps < 6e-8 else ""
        yield Finding(
            "fp16_underflow",
            Severity.CRITICAL,
            f"{one['optimizer']} turns finite float16 weights into NaN or infinity{cause}",
            step=int(one["step"]),
            layer=evidence.layer_of(one["parameter_site"]),
            source=one.get("source"),
            evidence={"optimizer": one["optimizer"], **({} if eps is None else {"eps": float(eps)})},
            confidence=0.96,
            inference="the squared gradient underflows to 0 and the update divides by 0 + eps = 0",
        )


@cause("loss_scale_issue", group="num", auto="R",
       explains=("gradient_clip_misuse", "fp16_overflow", *SLOW, *CONSEQUENCES))  # fmt: skip
def loss_scale_issue(evidence: Evidence) -> Iterator[Finding]:
    """Loss scaling is used wrongly.

    Finds: gradients clipped, or handed to the optimizer, while they are still multiplied by the loss scale; a scaler
    that skips every update because its scale never shrinks; a fixed factor on the loss that overflows float16.
    Why it matters: clipping gradients that are 65536 times too large leaves an update 65536 times too small; an update
    with scaled gradients is as much too large; a skipped update learns nothing.
    Decides by: the order of clip_grad_norm_, unscale_ and step in every update, the scale at each of them, and skipped
    updates counted one by one.
    Usual cures: scaler.unscale_(optimizer) before clipping; scaler.step(optimizer) and scaler.update() in this order;
    the default init_scale and growth_interval; bfloat16 needs no scaling at all.
    """
    scalers = [one for one in evidence.facts("scaler") if one["enabled"]]
    if scalers:
        yield from _clipped_scaled(evidence)
        yield from _stepped_scaled(evidence)
        yield from _always_skipped(evidence, scalers[0])
    origin = origin_of(evidence)
    if origin is not None and scaled_loss(origin) and (is_half_overflow(origin) or _half_and_infinite(origin)):
        yield Finding(
            "loss_scale_issue",
            Severity.CRITICAL,
            f"the loss is multiplied by {origin['loss_factor']:g} before backward, and a float16 gradient overflows",
            step=when(evidence, origin),
            source=_where_written(evidence, float(origin["loss_factor"])) or origin.get("backward_source"),
            evidence={"factor": float(origin["loss_factor"]), "operation": str(origin.get("op"))},
            confidence=0.9,
            inference="a fixed scale cannot follow the gradients; GradScaler lowers it when it overflows",
        )


def _where_written(evidence: Evidence, number: float) -> str | None:
    """The only line of the user's files with a number, as `65536`, `2 ** 16` or `1 << 16`."""
    found = set()
    for fact in evidence.facts("source_file"):
        if "site-packages" in fact["file"]:
            continue
        for at, line in enumerate(fact["text"].splitlines(), 1):
            if any(_value(one) == number for one in _NUMBER.finditer(line.partition("#")[0])):
                found.add(f"{fact['file']}:{at}")
    return found.pop() if len(found) == 1 else None


def _value(written: re.Match[str]) -> float:
    first, sign, second = written.groups()
    base = float(first.replace("_", ""))
    if sign is None or len(second) > 3:
        return base
    try:
        return float(base ** float(second)) if sign == "**" else float(base * 2.0 ** float(second))
    except OverflowError:
        return math.inf


def _half_and_infinite(origin: dict[str, Any]) -> bool:
    """The gradient that leaves the loss is float16 and infinite already."""
    made = origin.get("outputs", {})
    return origin["where"] == "backward" and made.get("dtype") == "float16" and bool(made.get("inf"))


def _clipped_scaled(evidence: Evidence) -> Iterator[Finding]:
    """Updates in which a clip came before the unscaling of the same update."""
    rows = evidence.of_call(Call.CLIP, Call.UNSCALE, Call.STEP, Call.STEP_SKIPPED)
    wrong, clips = _order(rows)
    if not wrong or wrong * 2 < clips:
        return
    scale = evidence.curve("loss_scale")
    large = float(np.median(scale.values)) if scale else None
    if large is not None and large <= 1.0:
        return
    yield Finding(
        "loss_scale_issue",
        Severity.CRITICAL,
        f"gradients are clipped while still multiplied by the loss scale, in {wrong} of {clips} updates",
        step=int(rows["step"][0]),
        source=evidence.line_of(Call.CLIP),
        evidence={"clips_before_unscale": wrong, "clips": clips, **({} if large is None else {"loss_scale": large})},
        confidence=0.95,
        inference="scaler.unscale_(optimizer) must come before the clip: as it is, the update shrinks by the scale",
    )


def _order(rows: Columns) -> tuple[int, int]:
    names = {CALL_CODE[call]: call for call in (Call.CLIP, Call.UNSCALE, Call.STEP, Call.STEP_SKIPPED)}
    wrong = clips = 0
    clipped = unscaled = False
    for code in rows["call"].tolist():
        call = names[code]
        if call is Call.CLIP:
            clipped = not unscaled
            clips += 1
        elif call is Call.UNSCALE:
            wrong += clipped
            unscaled, clipped = True, False
        else:
            clipped = unscaled = False
    return wrong, clips


def _stepped_scaled(evidence: Evidence) -> Iterator[Finding]:
    scaled = evidence.facts("update_still_scaled")
    total = evidence.fact("updates_still_scaled")
    count = int(total["count"]) if total else len(scaled)
    if not scaled or count * 2 < evidence.updates:
        return
    scale = scaled[0].get("scale")
    yield Finding(
        "loss_scale_issue",
        Severity.CRITICAL,
        f"optimizer.step() is called on gradients that are still multiplied by the loss scale, in {count} updates",
        step=int(scaled[0]["step"]),
        source=scaled[0].get("source"),
        evidence={"updates": count, **({} if scale is None else {"loss_scale": float(scale)})},
        confidence=0.95,
        inference="scaler.step(optimizer) divides them first; calling the optimizer directly does not",
    )


def _always_skipped(evidence: Evidence, scaler: dict[str, Any]) -> Iterator[Finding]:
    """Skipping now and then is what a scaler is for; skipping with a scale that stays is a fault."""
    skipped = evidence.of_call(Call.STEP_SKIPPED)
    count, done = len(skipped["step"]), evidence.count(Call.STEP)
    origin = origin_of(evidence)
    if count < 5 or count < done or (origin is not None and origin["where"] in ("input", "forward", "loss")):
        return
    scales = skipped["value"][np.isfinite(skipped["value"])]
    stays = len(scales) > 4 and scales.min() == scales.max()
    huge = float(scaler.get("init_scale") or 0.0) > LARGE_SCALE
    if not stays and not huge:
        return
    why = "its scale never shrinks: scaler.update() is missing" if stays else f"init_scale {scaler['init_scale']:.3g}"
    yield Finding(
        "loss_scale_issue",
        Severity.CRITICAL,
        f"the gradient scaler skips {count} of {count + done} updates; {why}",
        step=int(skipped["step"][0]),
        source=evidence.line_of(Call.STEP_SKIPPED),
        evidence={"skipped": count, "done": done, "scale": float(scales[-1]) if len(scales) else "unknown"},
        confidence=0.93,
        inference="a skipped update learns nothing",
    )


@cause("update_lost_to_rounding", group="num", auto="R", explains=SLOW)
def update_lost_to_rounding(evidence: Evidence) -> Iterator[Finding]:
    """The update is smaller than the last digit of the half-precision weight.

    Finds: float16 or bfloat16 weights that step() leaves bit-identical in most elements, although their gradient is not
    zero and the learning rate is not either.
    Why it matters: bfloat16 has 8 bits of mantissa: a change below 1/512 of the weight is rounded away. The run looks
    healthy and stops improving far too early.
    Decides by: comparing each weight with itself before and after the update on measured steps, where the gradient is
    not zero; optimizers that keep the rest (Kahan sums, master weights) are left alone.
    Usual cures: float32 weights with autocast, an optimizer with float32 master weights, stochastic rounding.
    """
    looks = evidence.facts("rounded_update")
    shares = np.array([one["unchanged"] / one["wanted"] for one in looks if one["wanted"]])
    if len(shares) < 3:
        return
    if np.median(shares) < LOST or np.median(shares[-5:]) < LOST:
        return
    first = looks[int(np.flatnonzero(shares >= LOST)[0])]
    yield Finding(
        "update_lost_to_rounding",
        Severity.WARNING,
        f"{np.median(shares):.0%} of the {first['dtype']} weights do not move at all in an update: it is rounded away",
        step=int(first["step"]),
        layer=evidence.layer_of(int(first["worst_site"])),
        source=evidence.line_of(Call.STEP),
        evidence={
            "unchanged_share": float(np.median(shares)),
            "updates_looked_at": len(shares),
            "type": first["dtype"],
        },
        confidence=0.92 if np.median(shares) > 0.8 else 0.8,
        inference="their gradients are not zero and the learning rate is not: the change is below the last digit",
    )


@cause("all_labels_masked", group="data", auto="S", explains=(*SLOW, *CONSEQUENCES, "division_by_zero"))
def all_labels_masked(evidence: Evidence) -> Iterator[Finding]:
    """Every target of a batch is the ignore index.

    Finds: cross entropy whose targets all equal ignore_index.
    Why it matters: with the mean this is 0/0, a NaN loss from finite logits; with a sum the loss and all gradients are
    0 and the batch teaches nothing.
    Decides by: the targets that the loss kept in its graph, on steps where the loss was NaN or exactly 0 and on
    measured steps.
    Usual cures: do not truncate the answer away, check the prompt template, drop rows without labels before batching.
    """
    masked = evidence.facts("labels_masked")
    if not masked:
        return
    total = evidence.fact("labels_masked_total") or {"all_masked": len(masked), "looked_at": len(masked)}
    share = total["all_masked"] / max(total["looked_at"], 1)
    nan = next((one for one in masked if one["loss"] == "nan"), None)
    first = nan or masked[0]
    loud = nan is not None or share >= 0.5
    yield Finding(
        "all_labels_masked",
        Severity.CRITICAL if nan is not None or share >= 0.9 else Severity.WARNING if loud else Severity.INFO,
        f"all {first['targets']} targets equal ignore_index {first['ignore_index']}: the loss is {first['loss']}",
        step=int(first["step"] if evidence.updates else first["backward"]),
        source=first.get("source"),
        evidence={
            "batches_all_masked": total["all_masked"],
            "batches_looked_at": total["looked_at"],
            "targets": first["targets"],
            "ignore_index": first["ignore_index"],
        },
        confidence=0.98 if nan is not None else 0.9 if loud else 0.5,
        inference="the mean over no target is 0/0" if nan is not None else "such a batch teaches nothing",
    )
