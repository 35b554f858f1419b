"""Causes that the first non-finite operation of a run proves by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.numerics_divergence import diverging
from neuraldbg.analysis.detectors.loss_curve import went_on
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Call, Finding, Severity, SiteKind

Origin = dict[str, Any]
CONSEQUENCES = (
    "nan_loss",
    "inf_loss",
    "nan_gradient",
    "nan_activation",
    "diverging_loss",
    "loss_spike",
    "exploding_gradient",
    "exploding_activation",
    "no_learning",
    "loss_plateau",
    "constant_output",
    "parameters_not_updating",
    "optimizer_step_missing",
    "update_ratio_too_high",
    "missing_gradient_clipping",
    "learning_rate_too_high",
    "missing_warmup",
)
LOGS = frozenset({"log", "log2", "log10", "log1p", "xlogy", "logit", "special_entr"})
QUOTIENTS = frozenset({"div", "reciprocal", "rsqrt", "pow", "mean", "std", "var", "var_mean", "std_mean"})
EXPONENTIALS = frozenset({"exp", "expm1", "exp2", "sinh", "cosh"})
SOFTMAXES = frozenset({"softmax", "log_softmax", "logsumexp", "safe_softmax"})
STEEP = LOGS | frozenset({"sqrt", "pow", "norm", "linalg_vector_norm", "div", "reciprocal", "rsqrt", "acos", "asin",
                          "atan2", "cdist", "std", "var"})  # fmt: skip
FROM_ORIGIN = ("log_of_zero", "division_by_zero", "undefined_gradient_at_zero", "exp_overflow", "fp16_overflow",
               "fully_masked_attention")  # fmt: skip


def origin_of(evidence: Evidence) -> Origin | None:
    """The first non-finite value of the run whose operation or tensor is known; else the first at all."""
    found = [one for one in evidence.facts("origin") if not _caught(evidence, one)]
    return next((one for one in found if one.get("op") or one["where"] == "input"), found[0] if found else None)


def _caught(evidence: Evidence, origin: Origin) -> bool:
    """Gradients that the script itself did not apply, and that were fine later: what a scaler of its own is for."""
    steps = evidence.of_call(Call.STEP)["seq"]
    return bool(origin.get("update_skipped")) and len(steps) > 0 and bool(steps[-1] > origin["seq"])


def when(evidence: Evidence, origin: Origin) -> int:
    """Updates are the axis; a run that never has one counts its backwards."""
    return int(origin["update"] if evidence.updates else origin.get("backward", 0))


def layer_of(evidence: Evidence, origin: Origin) -> str | None:
    """Code of the model's own forward is placed at the layer that had run last before it; None outside of models."""
    site = evidence.sites.get(origin["layer_site"]) if origin.get("layer_site") is not None else None
    if site is not None and site.kind is SiteKind.MODEL and origin.get("after_site") is not None:
        site = evidence.sites.get(origin["after_site"])
    return evidence.name(site) if site is not None and site.kind is SiteKind.MODULE else None


def counted(origin: Origin, key: str) -> int:
    """How many elements of what went in have some property: the largest count among the inputs."""
    values = [*origin.get("inputs", ()), *(v for v in origin.get("saved", {}).values() if isinstance(v, dict))]
    return max((int(one.get(key) or 0) for one in values), default=0)


def _numbers(origin: Origin, **more: float | str | None) -> dict[str, float | str]:
    found: dict[str, float | str | None] = {
        "operation": origin.get("op"),
        "largest_input": origin.get("largest_input"),
        "found_by": origin.get("method"),
        "seconds_to_find": origin.get("seconds"),
        "leads_to": " -> ".join(str(link["op"]) for link in origin.get("chain", ())[1:6]) or None,
        "bad_batch": _short(origin.get("saved_batch")),
        **more,
    }
    return {name: value for name, value in found.items() if value is not None}


def found(evidence: Evidence, origin: Origin, kind: str, said: tuple[str, str], **numbers: Any) -> Finding:
    """`said` = summary and inference. Quieter where the weights had run away before."""
    away = diverging(evidence, origin)
    sure = 0.97 if origin.get("method") in ("replay", "armed") or origin.get("source") else 0.9
    inference = said[1] + ("; the weights were already running away, so this is a consequence" if away else "")
    return Finding(
        kind,
        Severity.INFO if away else Severity.CRITICAL,
        said[0],
        step=when(evidence, origin),
        layer=layer_of(evidence, origin),
        op=origin.get("op"),
        source=origin.get("source") or origin.get("backward_source"),
        evidence=_numbers(origin, **numbers),
        confidence=0.4 if away else sure,
        inference=inference,
    )


def _from_source(evidence: Evidence, origin: Origin, kind: str) -> Finding:
    """No graph knows the tensor; the line that computes it was read from the source."""
    made = origin.get("outputs", {})
    bad = int(made.get("nan") or 0) + int(made.get("inf") or 0)
    summary = f"{origin['tensor']} holds {many(bad, 'value')} not finite, made by {origin['op']} ({origin['source']})"
    one = found(evidence, origin, kind, (summary, "everything computed from it is NaN or infinite"), bad_values=bad)
    return replace(one, confidence=min(one.confidence or 0.0, 0.85))


def _say_what_is_unknown(evidence: Evidence) -> None:
    """A NaN whose operation could not be named: what would name it."""
    origin = origin_of(evidence)
    if origin is None or origin.get("op") or origin["where"] == "input" or diverging(evidence, origin):
        return
    loss = evidence.curve("loss")
    bad = loss.steps[~np.isfinite(loss.values)]
    step = min(int(origin["update"]), int(bad[0])) if len(bad) else int(origin["update"])
    step -= origin["where"] == "parameter" and step > 0  # written by the update before
    why = origin.get("not_replayed") or (
        "its loss is on a device" if origin["method"] == "late" else "it left no trace"
    )
    for kind in FROM_ORIGIN:
        evidence.cannot(kind, f"the operation that made the NaN is not known ({why}); --arm-nan {step} names it")


def many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _place(origin: Origin) -> str:
    line = f" ({origin['source']})" if origin.get("source") else ""
    if origin.get("layer"):
        return f" in layer {origin['layer']}{line}"
    return f" in the loss{line}" if origin["where"] == "loss" else line


def _forward(evidence: Evidence, ops: frozenset[str]) -> Origin | None:
    origin = origin_of(evidence)
    if origin is None or origin.get("op") not in ops or origin["where"] not in ("forward", "loss"):
        return None
    return origin


@cause("log_of_zero", group="num", auto="R", explains=CONSEQUENCES)
def log_of_zero(evidence: Evidence) -> Iterator[Finding]:
    """The logarithm of exactly 0 is taken.

    Finds: the first non-finite value of the run came out of a log whose input holds exact zeros (or negative numbers).
    Why it matters: log(0) is -inf; multiplied by 0 or summed with +inf it is NaN, and one NaN in the loss makes every
    gradient and, at the next update, every weight NaN.
    Decides by: the step is run again operation by operation (or the loss's graph is read); no operation before the log
    gave anything non-finite, and the zeros in its input are counted.
    Usual cures: log_softmax or cross_entropy on logits instead of log(softmax(x)); clamp the argument from below
    (x.clamp_min(1e-8)); torch.xlogy or special.entr for x*log(x).
    """
    _say_what_is_unknown(evidence)
    origin = _forward(evidence, LOGS)
    if origin is None or is_half_overflow(origin):
        return
    if origin.get("read_from_source"):
        yield _from_source(evidence, origin, "log_of_zero")
        return
    zeros, negative = counted(origin, "zeros"), counted(origin, "negative")
    what = many(zeros, "exact zero") if zeros else many(negative, "negative number")
    summary = f"{origin['op']} is given {what}{_place(origin)}: its result is not finite"
    yield found(evidence, origin, "log_of_zero", (summary, "every value computed from it is NaN or infinite"),
                zeros=zeros, negative=negative)  # fmt: skip


@cause("division_by_zero", group="num", auto="R", explains=CONSEQUENCES)
def division_by_zero(evidence: Evidence) -> Iterator[Finding]:
    """A denominator is exactly 0.

    Finds: the first non-finite value came from a division, reciprocal or negative power with a zero in the denominator,
    from the mean of an empty selection, or from the standard deviation of a single value.
    Why it matters: x/0 is infinite and 0/0 is NaN; it takes one such row in one batch to ruin every weight.
    Decides by: running the step again operation by operation: all inputs of the division were finite and its divisor
    holds exact zeros (their number is given).
    Usual cures: add an epsilon to the denominator (x / (s + 1e-8)) or clamp it; skip empty selections; unbiased=False
    where a group may hold one sample.
    """
    origin = _forward(evidence, QUOTIENTS)
    if origin is None or is_half_overflow(origin):
        return
    if origin.get("read_from_source"):
        yield _from_source(evidence, origin, "division_by_zero")
        return
    zeros = _zeros_below(origin)
    op = str(origin["op"])
    if op == "mean":
        what = "the mean of an empty tensor is taken"
    elif op in ("std", "var", "var_mean", "std_mean"):
        what = f"{op} of a single value divides by n - 1 = 0"
    elif zeros or op in ("reciprocal", "rsqrt"):
        what = f"{op} divides by {many(zeros, 'exact zero')}" if zeros else f"{op} divides by zero"
    else:
        return
    yield found(evidence, origin, "division_by_zero", (what + _place(origin), "0/0 is NaN, x/0 is infinite"),
                zeros=zeros)  # fmt: skip


def _zeros_below(origin: Origin) -> int:
    """Exact zeros in the divisor: the last of what went in."""
    given = origin.get("inputs", [])
    values = [one for one in given if "zeros" in one and one.get("name") != "self"] or given
    return int(values[-1].get("zeros") or 0) if values else 0


@cause("undefined_gradient_at_zero", group="num", auto="R", explains=CONSEQUENCES)
def undefined_gradient_at_zero(evidence: Evidence) -> Iterator[Finding]:
    """The loss is finite, but its derivative is not.

    Finds: the first non-finite value appears in backward, at a sqrt, power, norm, log or division whose input was
    exactly 0 (also behind torch.where, which hides the value but not its gradient).
    Why it matters: the derivative of sqrt at 0 is infinite; times the 0 that comes after it this is NaN. The loss still
    prints fine at this step and is NaN from the next one on.
    Decides by: the step is run again forwards and backwards operation by operation; the node of the graph, its line and
    the zeros it had kept are named.
    Usual cures: put the epsilon inside, torch.sqrt(x + 1e-12); for masked values make the input safe before the
    operation (where on the input, not only on the result).
    """
    origin = origin_of(evidence)
    if origin is None or origin["where"] != "backward" or origin.get("op") not in STEEP or is_half_overflow(origin):
        return
    zeros = counted(origin, "zeros")
    edge = origin["op"] in ("acos", "asin")
    if not zeros and not edge:
        return
    at = "at the edge of its range" if edge else f"at {many(zeros, 'exact zero')}"
    summary = f"the gradient of {origin['op']} is infinite {at}{_place(origin)}; the loss itself is finite"
    yield found(evidence, origin, "undefined_gradient_at_zero", (summary, "the next update makes every weight NaN"),
                zeros=zeros)  # fmt: skip


@cause("exp_overflow", group="num", auto="R", explains=CONSEQUENCES)
def exp_overflow(evidence: Evidence) -> Iterator[Finding]:
    """exp of a large number overflows.

    Finds: the first infinite value came out of exp (or expm1, sinh, cosh) with arguments above 88, where float32 ends,
    while the weights had not run away.
    Why it matters: inf / inf and inf - inf are NaN: a hand-written softmax or a variance exp(log_var) ruins the run.
    Decides by: running the step again operation by operation; the largest argument is given. When the weights had grown
    a hundredfold or the updates were larger than the weights, the learning rate is to blame and this stays silent.
    Usual cures: torch.softmax / logsumexp (they subtract the maximum), clamp log-variances, softplus instead of exp,
    standardised inputs.
    """
    origin = origin_of(evidence)
    if origin is None or origin.get("op") not in EXPONENTIALS or is_half_overflow(origin):
        return
    if diverging(evidence, origin):
        return
    given = [one for one in origin.get("inputs", ()) if one.get("name") != "result"]
    top = max((one.get("max") or 0.0 for one in given), default=0.0)
    over, infinite = max((one.get("over_88") or 0 for one in given), default=0), counted(origin, "inf")
    if not over and not infinite:
        return  # overflowed elsewhere
    how = f"is given numbers up to {top:.4g}" if over else f"gives {many(infinite, 'infinity').replace('ys', 'ies')}"
    summary = f"{origin['op']} {how}{_place(origin)}: the result overflows"
    yield found(evidence, origin, "exp_overflow", (summary, "the infinities become NaN where they meet"), over_88=over)


@cause("fp16_overflow", group="num", auto="R", explains=CONSEQUENCES)
def fp16_overflow(evidence: Evidence) -> Iterator[Finding]:
    """A half-precision value exceeds 65504.

    Finds: the first infinite value came out of a float16 operation on finite inputs, and the same operation on the same
    inputs in float32 is finite.
    Why it matters: float16 ends at 65504; one large activation is infinite, and NaN one layer later.
    Decides by: running the step again, and the operation that overflowed once more in float32: its largest value there
    is given.
    Usual cures: bfloat16 (same range as float32), autocast instead of model.half(), that layer in float32, smaller
    activations (normalisation, 1/sqrt(d) scaling before the product).
    """
    origin = origin_of(evidence)
    if origin is None or not is_half_overflow(origin) or diverging(evidence, origin) or scaled_loss(origin):
        return
    wide = origin["in_float32"]
    top = max(abs(wide.get("min", 0.0)), abs(wide.get("max", 0.0)))
    how = f"reaches {top:.4g}, more than float16 can hold (65504)" if top else "exceeds what float16 can hold (65504)"
    summary = f"{origin['op']}{_place(origin)} {how}"
    yield found(evidence, origin, "fp16_overflow", (summary, "in float32 the same operation is finite"),
                value_in_float32=top)  # fmt: skip


def is_half_overflow(origin: Origin) -> bool:
    wide = origin.get("in_float32")
    made = origin.get("outputs", {}).get("dtype")
    return wide is not None and made == "float16" and not wide.get("nan") and not wide.get("inf")


def scaled_loss(origin: Origin) -> bool:
    """The script multiplies its loss by a large number before backward: the scale is to blame, not the layer."""
    return (origin.get("loss_factor") or 0.0) >= 128 and origin["where"] in ("backward", "loss")


@cause("fully_masked_attention", group="num", auto="R", explains=CONSEQUENCES)
def fully_masked_attention(evidence: Evidence) -> Iterator[Finding]:
    """softmax over a row that is -inf everywhere.

    Finds: the first NaN came out of a softmax whose input has rows of nothing but -inf: a query that may see no key.
    Why it matters: exp(-inf) sums to 0 and 0/0 is NaN: one empty or all-padding sequence in a batch ruins the weights.
    Decides by: running the step again operation by operation; the rows are counted, the masking operation is named.
    Usual cures: keep at least one key visible (drop empty sequences), fill with a large negative number instead of
    -inf, or set the output of such rows to 0 (torch.where on the input of softmax).
    """
    origin = origin_of(evidence)
    if origin is None or origin.get("op") not in SOFTMAXES:
        return
    rows = counted(origin, "neg_inf_rows")
    if not rows:
        return
    mask: dict[str, Any] = next(iter(origin.get("chain", ())), {})
    masked_by = f"{mask['op']} ({mask['source']})" if mask.get("op") != "_softmax" and mask.get("source") else None
    summary = f"{many(rows, 'row')} of the softmax{_place(origin)} with -inf everywhere: every key is masked"
    yield found(evidence, origin, "fully_masked_attention", (summary, "softmax of such a row is 0/0 = NaN"),
                masked_rows=rows, masked_by=masked_by)  # fmt: skip


@cause("nan_in_input", group="data", auto="R",
       explains=(*CONSEQUENCES, "corrupted_labels", "unnormalised_input", "data_outlier_batch"))  # fmt: skip
def nan_in_input(evidence: Evidence) -> Iterator[Finding]:
    """The batch already holds NaN or infinity.

    Finds: the first non-finite tensor of the run is an input of the model or a target of the loss.
    Why it matters: every weight that touches the bad row becomes NaN at the next update; no architecture helps.
    Decides by: looking at the batch of the step whose loss was not finite: the tensor and the number of bad rows are
    given, and the batch is saved in the run's folder.
    Usual cures: drop or impute the rows when loading (torch.isfinite(x).all(1)); look for divisions and logs in the
    preprocessing.
    """
    origin = origin_of(evidence)
    if origin is None or origin["where"] != "input":
        return
    rows, of = int(origin.get("bad_rows", 0)), int(origin.get("rows", 0))
    where = f"NaN or infinity in {rows} of {of} rows" if of else "NaN or infinity"
    summary = f"{origin.get('tensor', 'an input')} holds {where}, before any operation"
    yield Finding(
        "nan_in_input",
        Severity.WARNING if went_on(evidence) else Severity.CRITICAL,
        summary,
        step=when(evidence, origin),
        source=origin.get("source") or origin.get("backward_source"),
        evidence=_numbers(origin, bad_rows=rows, rows=of, nan_values=counted(origin, "nan")),
        confidence=0.97,
        inference="the data is bad, not the model: NaN times anything is NaN",
    )


def _short(path: str | None) -> str | None:
    """A file of the run directory, as seen from there."""
    return None if path is None else "/".join(str(path).replace("\\", "/").split("/")[-2:])
