"""The shape of the network: linear stacks, saturating stacks, drifting scales, dropout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.arch_reading import (
    activations,
    defined,
    first_stats,
    gradient_rms,
    stack,
    weights,
)
from neuraldbg.analysis.causes.loss_terms import line_of_site, written
from neuraldbg.analysis.causes.optim_arms import overfit_of
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Kind, Severity

DEEP_ENOUGH = 4  # bounded activations in a row
FADES = 0.4  # gradient from one layer to the one before it
FADED = 1e-3  # over the whole stack
DRIFT_LAYERS = 6
GREW = 30.0
SHRANK = 1e-3
STEADY = 0.9  # correlation of the logarithm of the spread with depth
USUAL_GAIN = (0.2, 2.5)
MOSTLY_DROPPED = 0.8
LEARNS = 0.8  # of the first loss: what a short training without dropout must reach
SO_FAR = 0.4  # of what it gained is the most that the run, and the same training with dropout, may have gained
DROPOUT_COSTS = 1.5  # times the loss without dropout


@cause(
    "missing_activation",
    group="arch",
    auto="S",
    explains=("insufficient_capacity", "loss_plateau", "underfitting", "no_learning", "slow_convergence"),
)
def missing_activation(evidence: Evidence) -> Iterator[Finding]:
    """Linear layers follow each other with nothing in between.

    Finds: a linear or convolution layer that takes another one's output as it is, or only scaled or thinned out by
    dropout, with no narrower layer between them, and networks of two or more such layers that hold no non-linear
    operation at all.
    Why it matters: a product of matrices is one matrix: the layers together can do no more than the last one alone.
    Decides by: the graph of the first loss: what feeds what. A narrow layer in between (a bottleneck or a low-rank
    factor), projections of an attention, filters per channel (depthwise convolutions) and the seam between two parts
    of a model are meant to be linear and are left alone.
    Usual cures: ReLU or GELU between the layers, or one layer instead of two.
    """
    shape = stack(evidence)
    if shape is None or not shape["complete"]:
        return
    pairs = [pair for pair in shape["pairs"] if _pointless(evidence, pair)]
    linear = not shape["activations"] and not shape["nonlinear"] and shape["weighted"] >= 2
    if not linear:
        pairs = [pair for pair in pairs if not _seam(evidence, pair)]
    if not pairs:
        return
    first = pairs[-1]
    named = [f"{evidence.name(before)} -> {evidence.name(after)}" for before, after, *_ in reversed(pairs)]
    whole = "the network is one linear map" if linear else "the second adds nothing to the first"
    yield Finding(
        "missing_activation",
        Severity.WARNING,
        f"{evidence.name(first[0])} feeds {evidence.name(first[1])} with no activation in between: {whole}",
        step=0,
        layer=evidence.name(first[0]),
        source=_joint(evidence, first[0], first[1]),
        evidence={
            "pairs": "; ".join(named[:4]),
            "linear_pairs": len(pairs),
            "weighted_layers": shape["weighted"],
            "activations_in_the_network": ", ".join(shape["activations"]) or "none",
        },
        confidence=0.93 if linear else 0.8,
        inference="Without a non-linearity consecutive linear maps collapse into a single one.",
    )


def _joint(evidence: Evidence, before: int, after: int) -> str | None:
    """The line on which an activation belongs: where the first layer is called, or stands in a container."""
    line = line_of_site(evidence, evidence.sites[before])
    called = line is not None and line == evidence.sites[before].source
    return line if called else defined(evidence, after) or defined(evidence, before)


def _seam(evidence: Evidence, pair: list[Any]) -> bool:
    """Two parts of a model meet here (an encoder and a projector): what passes may be wanted for itself."""
    before, after = (evidence.sites[site].path.rpartition(".")[0] for site in pair[:2])
    return bool(before and after and before != after)


def _pointless(evidence: Evidence, pair: list[Any]) -> bool:
    """The layer between is not narrower than what goes in and what comes out."""
    before, after, middle, out, attends = pair
    if attends or before is None or after is None or middle is None or out is None:
        return False
    mine = {weight.module: weight for weight in weights(evidence)}
    first = mine.get(before)
    if first is None or after not in mine:
        return False
    if evidence.sites[before].model != evidence.sites[after].model:
        return False
    wide_in = int(np.prod(first.shape[1:]))
    return bool(middle >= min(wide_in, out))


@cause(
    "saturating_activation",
    group="arch",
    auto="S",
    explains=(
        "vanishing_gradient",
        "saturated_units",
        "no_learning",
        "loss_plateau",
        "slow_convergence",
        "constant_output",
        "insufficient_capacity",
        "learning_rate_too_low",
        "missing_normalisation",
    ),
)
def saturating_activation(evidence: Evidence) -> Iterator[Finding]:
    """A deep stack of sigmoid or tanh layers squashes the gradient.

    Finds: four or more sigmoid or tanh activations one after the other, over which the gradient falls by a factor of
    0.4 or less per layer and by a thousand or more in all, in a network without normalisation.
    Why it matters: the derivative of a sigmoid is at most 0.25: the layers near the input get almost no signal and stay
    as they were initialised.
    Decides by: the gradients of the weights at the first measured update, layer by layer.
    Usual cures: ReLU or GELU, batch or layer normalisation, residual connections, Xavier initialisation for tanh.
    """
    shape = stack(evidence)
    bounded = [fact for fact in activations(evidence) if fact["op"] in ("Sigmoid", "Tanh")]
    if shape is None or shape["normalised"] or len(bounded) < DEEP_ENOUGH:
        return
    by_module = {weight.module: weight for weight in weights(evidence)}
    rms = gradient_rms(evidence)
    chain = [by_module[f["fed_by"]] for f in bounded if f.get("fed_by") in by_module]
    chain = [weight for weight in chain if weight.site in rms]
    if len(chain) < DEEP_ENOUGH:
        return
    first, last = rms[chain[0].site], rms[chain[-1].site]
    if last <= 0:
        return
    factor = (first / last) ** (1 / (len(chain) - 1))
    if factor > FADES or first > FADED * last:
        return
    middle = chain[len(chain) // 2]
    yield Finding(
        "saturating_activation",
        Severity.WARNING,
        f"{len(chain)} {bounded[0]['op'].lower()} layers in a row shrink the gradient {1 / factor:,.0f} times each: "
        f"{chain[0].layer} hardly gets any",
        step=0,
        layer=chain[0].layer,
        source=defined(evidence, chain[0].module),
        evidence={
            "layers": len(chain),
            "activation": bounded[0]["op"].lower(),
            "gradient_factor_per_layer": factor,
            "gradient_of_the_first_layer": first,
            "gradient_of_the_last_layer": last,
            "halfway": middle.layer,
        },
        confidence=0.9,
        inference="The early layers keep their random weights, and nothing after them can make up for it.",
    )


@cause(
    "missing_normalisation",
    group="arch",
    auto="S",
    explains=("exploding_activation", "vanishing_gradient", "exploding_gradient", "no_learning", "slow_convergence"),
)
def missing_normalisation(evidence: Evidence) -> Iterator[Finding]:
    """The scale of activations drifts through depth with nothing to hold it.

    Finds: six or more layers over which the spread of the outputs grows or shrinks by much the same factor each time,
    to thirty times and more (or a thousandth and less) in all, in a network without normalisation whose weights start
    at usual sizes.
    Why it matters: the loss and its gradients start at a scale no single step size suits: some layers fly off while
    others stand still.
    Decides by: the output statistics of the layers in the first measured pass.
    Usual cures: LayerNorm or BatchNorm in every block, residual branches scaled down (by 1/sqrt(depth) or
    zero-initialised).
    """
    shape = stack(evidence)
    if shape is None or shape["normalised"] or shape["weighted"] < DRIFT_LAYERS:
        return
    spread = _spreads(evidence)
    if len(spread) < DRIFT_LAYERS:
        return
    sizes = np.array([size for _, size in spread])
    total = float(sizes[-1] / sizes[0])
    steady = abs(float(np.corrcoef(np.arange(len(sizes)), np.log(sizes))[0, 1])) >= STEADY if total != 1 else False
    if not steady or not (total >= GREW or (total <= SHRANK and _fades(evidence))):
        return
    factor = total ** (1 / (len(sizes) - 1))
    module = spread[0][0]
    grows = "grow" if total > 1 else "shrink"
    yield Finding(
        "missing_normalisation",
        Severity.WARNING,
        f"activations {grows} {max(factor, 1 / factor):.2g} times per layer over {len(sizes)} layers, "
        "with no normalisation to hold them",
        step=0,
        layer=evidence.name(spread[len(spread) // 2][0]),
        source=defined(evidence, module),
        evidence={
            "layers": len(sizes),
            "factor_per_layer": factor,
            "spread_after_the_first": float(sizes[0]),
            "spread_after_the_last": float(sizes[-1]),
        },
        confidence=0.8,
        inference="The drift is there before the first update: it is the architecture's, not the training's.",
    )


def _fades(evidence: Evidence) -> bool:
    """Whether the gradient is lost on its way as well: a signal that only becomes small can still be learnt from."""
    rms = gradient_rms(evidence)
    known = [rms[weight.site] for weight in weights(evidence) if weight.site in rms]
    return len(known) >= DRIFT_LAYERS and min(known) < FADED * max(known)


def _spreads(evidence: Evidence) -> list[tuple[int, float]]:
    """Standard deviation of what each repeated weighted layer (or block) put out at first, in order; only while weights
    start at usual sizes."""
    every = weights(evidence)
    usual = [weight for weight in every if USUAL_GAIN[0] <= weight.gain <= USUAL_GAIN[1]]
    if len(usual) < 0.8 * len(every):
        return []
    rows = first_stats(evidence, Kind.ACTIVATION)
    blocks = _repeated_blocks(evidence, rows)
    if len(blocks) >= DRIFT_LAYERS:
        return blocks
    mine = [(weight.module, rows[weight.module]["std"]) for weight in usual if weight.module in rows]
    return [(module, std) for module, std in mine if module is not None and np.isfinite(std) and std > 0]


def _repeated_blocks(evidence: Evidence, rows: dict[int, dict[str, float]]) -> list[tuple[int, float]]:
    """Members of the longest row of equal modules (`blocks.0`, `blocks.1`, ...)."""
    groups: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    for site in evidence.sites.values():
        parent, _, last = site.path.rpartition(".")
        if last.isdigit() and site.id in rows:
            groups.setdefault((site.model, parent, site.op), []).append((int(last), site.id))
    longest = max(groups.values(), key=len, default=[])
    found = [(site, rows[site]["std"]) for _, site in sorted(longest)]
    return [(site, std) for site, std in found if np.isfinite(std) and std > 0]


@cause(
    "dropout_too_high",
    group="arch",
    auto="R",
    explains=("train_eval_mismatch", "no_learning", "slow_convergence", "loss_plateau", "underfitting"),
)
def dropout_too_high(evidence: Evidence) -> Iterator[Finding]:
    """Dropout removes nearly all of the signal.

    Finds: a dropout probability of 0.8 or more (of a module, or as the graph shows it), with a loss on the last batch
    that is far lower when dropout is off; or a run that learned next to nothing, whose batches are learned from the
    same start without dropout, and not with it.
    Why it matters: what is left of the signal is mostly noise: the network learns slowly or not at all.
    Decides by: the modules' own p, a probe of the last batch with and without dropout, and a short training on recorded
    batches with and without it. Strong dropout in a network that learns all the same is left alone.
    Usual cures: p between 0.1 and 0.5; dropout after wide layers only; not twice in a row. p is the share to drop, not
    to keep.
    """
    ran = evidence.probe("train_eval")
    if ran is None:
        evidence.cannot("dropout_too_high", evidence.why_no_probe("train_eval"))
        return
    noisy, quiet = ran.get("loss_train"), ran.get("loss_no_dropout")
    largest = max(ran.get("largest_dropout") or 0.0, (stack(evidence) or {}).get("dropped") or 0.0)
    if largest < MOSTLY_DROPPED:
        return
    costs = noisy is not None and quiet is not None and noisy > DROPOUT_COSTS * quiet
    arm = _learns_without(evidence, quiet)
    site = _dropout_site(evidence, largest)
    after = (stack(evidence) or {}).get("dropped_after")
    numbers = {"loss_with_dropout": noisy, "loss_without": quiet, "noise": ran.get("train_noise"), **arm}
    yield Finding(
        "dropout_too_high",
        Severity.WARNING if costs or arm or (ran.get("train_noise") or 0) > 1 else Severity.INFO,
        f"dropout drops {largest:.0%} of the units in training",
        step=0,
        layer=evidence.name(after if site is None else site),
        source=defined(evidence, site) if site is not None else written(evidence, r"dropout\("),
        evidence={"p": float(largest), **{name: value for name, value in numbers.items() if value is not None}},
        confidence=0.9 if costs else 0.85 if arm else 0.7,
        inference="Two passes over the same batch hardly agree: the gradient is mostly noise.",
    )


def _learns_without(evidence: Evidence, quiet: float | None) -> dict[str, float]:
    """Losses of a short training without dropout, where that learned what the run did not."""
    probe = overfit_of(evidence)
    arm = None if probe is None else probe.arms.get("no_dropout")
    if probe is None or arm is None or not probe.failed or arm.diverged or not arm.last < LEARNS * probe.first:
        return {}
    reached = [probe.final, probe.own.last, *([] if quiet is None else [quiet])]
    if any(probe.share(loss, arm) > SO_FAR for loss in reached if np.isfinite(loss)):
        return {}
    return {
        "loss_at_start": probe.first,
        "probe_loss_with_dropout": float(probe.own.last) if np.isfinite(probe.own.last) else probe.first,
        "probe_loss_without_dropout": arm.last,
    }


def _dropout_site(evidence: Evidence, p: float) -> int | None:
    facts = [fact for fact in evidence.facts("dropout") if abs(fact.get("p", 0) - p) < 1e-9]
    if facts:
        return int(facts[0]["site"])
    return next((site.id for site in evidence.sites.values() if site.op is not None and "Dropout" in site.op), None)
