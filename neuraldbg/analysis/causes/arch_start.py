"""How the weights start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.arch_reading import (
    Weight,
    activations,
    defined,
    first_activations,
    first_stats,
    gradient_rms,
    weights,
)
from neuraldbg.analysis.causes.loss_terms import written
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Kind, Severity

LARGE = 4.0  # gain: root-mean-square weight times the root of the fan-in; He's is 1.4
SMALL = 0.12
FLAT = 0.5  # share of a bounded activation in its flat part
BLOWN_UP = 30.0  # spread of the output over that of the first layer
FADED = 1e-3
DEAD = 0.9
GATES = {"LSTM": 4, "LSTMCell": 4, "GRU": 3, "GRUCell": 3}  # of a recurrent layer, each with its own units


@cause(
    "bad_init",
    group="arch",
    auto="R",
    explains=(
        "vanishing_gradient",
        "exploding_gradient",
        "zero_gradient",
        "dead_units",
        "saturated_units",
        "constant_output",
        "no_learning",
        "loss_plateau",
        "slow_convergence",
        "exploding_activation",
        "saturating_activation",
        "missing_normalisation",
        "insufficient_capacity",
        "learning_rate_too_high",
        "learning_rate_too_low",
        "missing_warmup",
        "wrong_activation_last_layer",
    ),
)
def bad_init(evidence: Evidence) -> Iterator[Finding]:
    """Weights or biases start constant, far too large or far too small.

    Finds: layers whose units start as copies of one another and are still copies after ten updates and at the end, up
    to rounding (of a recurrent layer one per gate); weights so large
    that sigmoid or tanh outputs start in their flat part or activations blow up with depth; weights so small that the
    signal and the gradient are gone after a few layers; biases so negative that ReLU units are dead from the start.
    Why it matters: equal units stay equal, so a wide layer has one unit; saturated or vanishing layers get no gradient.
    Decides by: the weights before the first pass, the first activations and gradients, and whether equal units have
    become different later. Zero-initialised output layers and residual branches, which do become different, are
    left alone.
    Usual cures: the default initialisation of the layer, kaiming_uniform_ for ReLU, xavier_uniform_ for tanh,
    orthogonal_ for recurrent weights; biases at zero.
    """
    for look in (_copies, _too_large, _too_small, _dead_from_the_start):
        found = list(look(evidence))
        if found:
            yield found[0]
            return


def _copies(evidence: Evidence) -> Iterator[Finding]:
    looks: dict[int, list[dict[str, Any]]] = {}
    for fact in evidence.facts("rows_later"):
        looks.setdefault(fact["site"], []).append(fact)
    still = {site for site, facts in looks.items() if all(_still_equal(fact) for fact in facts)}
    equal = [
        weight
        for weight in weights(evidence)
        if weight.equal_rows and (weight.site in still or _in_few_groups(weight, looks.get(weight.site, [])))
    ]
    if not equal or evidence.updates < 10:
        return
    first = equal[0]
    constant = first.low == first.high
    value = f" (every weight is {first.low:g})" if constant else ""
    kinds = 1 if first.site in still else int(looks[first.site][-1]["different"])
    left = "it has one unit in effect" if kinds == 1 else f"there are {kinds} different ones in effect"
    found = _finding(
        evidence,
        first,
        f"all {first.shape[0]} units of {first.layer} start equal{value} and stay copies: {left}",
        {"units": first.shape[0], "layers_with_equal_units": len(equal), "lowest": first.low, "highest": first.high},
        0.97,
        "Units with equal weights get equal gradients; nothing ever tells them apart.",
    )
    line = written(evidence, r"constant_\(|fill_\(|zeros_\(|ones_\(") if constant else None
    yield replace(found, source=line or found.source)


def _still_equal(fact: dict[str, Any]) -> bool:
    """Copies, up to the rounding of sums in different order."""
    return bool(fact.get("equal")) or (fact.get("different") == 1 and (fact.get("moved") or 0.0) > 0)


def _in_few_groups(weight: Weight, looks: list[dict[str, Any]]) -> bool:
    """Units that have moved, and only in a few groups: the gates of a recurrent layer. Its rounding adds up over the
    steps of a sequence, and Adam makes as much of it as of a gradient: groups may come apart with time."""
    groups = [fact.get("different") or 0 for fact in looks]
    moved = all((fact.get("moved") or 0) > 0 for fact in looks)
    if not groups or not moved or not 0 < min(groups) <= max(groups) <= weight.shape[0] / 4:
        return False
    return min(groups) == max(groups) or groups[0] <= GATES.get(weight.type, 0) <= groups[-1]


def _too_large(evidence: Evidence) -> Iterator[Finding]:
    large = [weight for weight in weights(evidence) if weight.gain > LARGE]
    if not large:
        return
    modules = {weight.module for weight in large}
    flat = [f for f in first_activations(evidence) if f.get("fed_by") in modules and (f.get("flat_share") or 0) > FLAT]
    growth = _growth(evidence)
    if not flat and not (len(large) >= 2 and growth is not None and growth > BLOWN_UP):
        return
    first = next((w for w in large if flat and w.module == flat[0]["fed_by"]), large[0])
    numbers: dict[str, Any] = {"gain": first.gain, "usual_gain": "0.6 to 1.4", "layers": len(large)}
    if flat:
        numbers["share_in_the_flat_part"] = flat[0]["flat_share"]
    if growth is not None:
        numbers["growth_of_activations"] = growth
    yield _finding(
        evidence,
        first,
        f"the weights of {first.layer} start {first.gain / 1.0:.2g} times too large for their width",
        numbers,
        0.92,
        "Activations start saturated or huge, so gradients are near zero or far too large from the first step.",
    )


def _growth(evidence: Evidence) -> float | None:
    rows = first_stats(evidence, Kind.ACTIVATION)
    spreads = [rows[weight.module]["std"] for weight in weights(evidence) if weight.module in rows]
    finite = [spread for spread in spreads if np.isfinite(spread) and spread > 0]
    return float(finite[-1] / finite[0]) if len(finite) >= 2 else None


def _too_small(evidence: Evidence) -> Iterator[Finding]:
    every = weights(evidence)
    small = [weight for weight in every if 0 < weight.gain < SMALL]
    growth, rms = _growth(evidence), gradient_rms(evidence)
    known = [rms[weight.site] for weight in every if weight.site in rms and rms[weight.site] > 0]
    faded = len(known) >= 3 and min(known) < FADED * max(known)
    if len(small) < 2 or len(small) < len(every) / 2 or not ((growth is not None and growth < FADED) or faded):
        return
    first = small[0]
    numbers: dict[str, Any] = {"gain": first.gain, "usual_gain": "0.6 to 1.4", "layers": len(small)}
    if growth is not None:
        numbers["spread_of_the_last_over_the_first_layer"] = growth
    if faded:
        numbers["smallest_over_largest_gradient"] = min(known) / max(known)
    yield _finding(
        evidence,
        first,
        f"the weights of {len(small)} layers from {first.layer} on start far too small: the signal dies on its way",
        numbers,
        0.92,
        "Each layer shrinks the signal and its gradient; after a few nothing is left of either.",
    )


def _dead_from_the_start(evidence: Evidence) -> Iterator[Finding]:
    starts = [fact for fact in evidence.facts("start") if fact["name"] == "bias" and fact.get("mean") is not None]
    biases = {fact["path"]: fact for fact in starts if (fact.get("high") or 0.0) < 0}
    by_module = {weight.module: weight for weight in weights(evidence)}
    last = {(f.get("site"), f.get("fed_by")): f for f in activations(evidence)}
    for fact in first_activations(evidence):
        weight = by_module.get(fact.get("fed_by"))
        now = last.get((fact.get("site"), fact.get("fed_by")), fact)
        if weight is None or not fact["units"] or (now.get("dead") or 0) < DEAD * fact["units"]:
            continue
        site = evidence.sites.get(weight.module) if weight.module is not None else None
        bias = biases.get(site.path if site is not None else "")
        if bias is not None and (fact.get("dead") or 0) >= DEAD * fact["units"]:
            yield _finding(
                evidence,
                weight,
                f"the biases of {weight.layer} start at {bias['mean']:.3g}: "
                f"{fact['dead']} of {fact['units']} units are dead from the first step",
                {"bias": bias["mean"], "dead_units": fact["dead"], "units": fact["units"]},
                0.93,
                "A ReLU unit below zero for every sample has no gradient and cannot come back.",
            )


def _finding(
    evidence: Evidence, weight: Weight, summary: str, numbers: dict[str, Any], confidence: float, inference: str
) -> Finding:
    return Finding(
        "bad_init",
        Severity.CRITICAL if confidence > 0.95 else Severity.WARNING,
        summary,
        step=0,
        layer=weight.layer,
        source=defined(evidence, weight.module),
        evidence=numbers,
        confidence=confidence,
        inference=inference,
    )
