"""Copies, ties and frozen parts: things that should be equal and are not, or should stand still and do not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.places import parsed
from neuraldbg.records import Call, Finding, Kind, Severity

AVERAGED = re.compile(r"(?<![a-z])(ema|swa|avg|averaged?|shadow|polyak|mean_teacher)(?![a-z])", re.IGNORECASE)
NEEDED_LOOKS = 3  # steps in which an update must have been lost
LEAST_RELATIVE = 1e-6  # of the weight: below it float32 rounds an update away by itself


def _copies(evidence: Evidence) -> list[dict[str, Any]]:
    """The last word on each copy."""
    return list({(fact["name"], fact["original"]): fact for fact in evidence.facts("copy")}.values())


@cause("ema_not_tracking", group="loop", auto="S", explains=("train_eval_mismatch", "batchnorm_stats_stale"))
def ema_not_tracking(evidence: Evidence) -> Iterator[Finding]:
    """An averaged copy of the model does not follow it.

    Finds: a second module of the same class and shapes, not trained itself, whose parameters move with the trained
    model while its buffers (BatchNorm statistics) never do; or one that is called an average and never moves at all.
    Why it matters: the copy is what gets evaluated and shipped. With the statistics of an untrained network its outputs
    are wrong although every weight is right.
    Decides by: the copy's own tensors, bit for bit, between its first sight and the end of the run, beside those of the
    trained model. Frozen teachers and target networks, whose parameters and buffers rest or move together, are left
    alone.
    Usual cures: copy the buffers as well after each average (ema.buffers() from model.buffers()), use
    AveragedModel(use_buffers=True), or update_bn() before evaluating.
    """
    late = evidence.fact("copy_unwatched")
    if late is not None:
        evidence.cannot("ema_not_tracking", f"{late['name']}, a copy of the model, was made too late to be followed")
    for fact in _copies(evidence):
        if fact.get("trained") or not fact.get("original_travelled"):
            continue
        stale = fact["parameters_moved"] and fact["buffers"] and fact["original_buffers_moved"]
        if stale and not fact["buffers_moved"]:
            yield _ema(evidence, fact, "its parameters follow but its buffers stay as they were", 0.95)
            return
        called = fact.get("site") is not None and evidence.count(Call.PASS, site=fact["site"])
        if not fact["parameters_moved"] and AVERAGED.search(fact["name"]) and called:
            yield _ema(evidence, fact, "it is evaluated but has never moved", 0.85)
            return


def _ema(evidence: Evidence, fact: dict[str, Any], what: str, confidence: float) -> Finding:
    original = evidence.name(fact["original"])
    distances = {"distance_of_parameters": fact.get("distance"), "distance_of_buffers": fact.get("buffer_distance")}
    return Finding(
        "ema_not_tracking",
        Severity.WARNING,
        f"the copy {fact['name']} does not track {original}: {what}",
        step=fact.get("since"),
        layer=fact["name"],
        source=None,
        evidence={
            "copy": fact["name"],
            "original": str(original),
            "parameters_moved": str(fact["parameters_moved"]).lower(),
            "buffers_moved": str(fact["buffers_moved"]).lower(),
            **{name: value for name, value in distances.items() if value is not None},
        },
        confidence=confidence,
        inference="Evaluating the copy shows another network than the one that was trained.",
    )


@cause("weight_tying_lost", group="arch", auto="R", explains=())
def weight_tying_lost(evidence: Evidence) -> Iterator[Finding]:
    """Two weights meant to be one no longer share storage.

    Finds: two names that were one tensor and are two later, or an embedding table and another layer's weight with equal
    values in two places at the first pass although the source ties them somewhere.
    Why it matters: a tied embedding and head learn from both ends; apart they drift, the model has more parameters than
    intended, and a checkpoint of the tied model no longer means the same.
    Decides by: addresses and values of the weights at the first pass and later ones. Random weights are not equal by
    chance; layers cloned from one template have the same class and are left alone. Equal values that nothing ever tied
    are information only: both may start from the same pretrained vectors on purpose.
    Usual cures: tie again after whatever replaced the weight (resize, deepcopy, re-initialisation, to_empty):
    model.head.weight = model.embedding.weight.
    """
    lost = [(sort, fact) for sort in ("untied", "twins") for fact in evidence.facts(sort)]
    tied = {(f["model"], f["first"], f["second"]) for f in evidence.facts("tied")}
    for sort, fact in lost:
        if sort == "twins" and (fact["model"], fact["first"], fact["second"]) in tied:
            continue
        apart = "were one tensor and are two now" if sort == "untied" else "hold equal values in two places"
        meant = sort == "untied" or _tied_in_source(evidence, str(fact["first"]), str(fact["second"]))
        site = _module_site(evidence, fact["model"], str(fact["second"]).rpartition(".")[0])
        yield Finding(
            "weight_tying_lost",
            Severity.WARNING if meant else Severity.INFO,
            f"{fact['first']} and {fact['second']} {apart}: they are trained apart",
            step=fact.get("step"),
            layer=evidence.name(site) or str(fact["second"]).rpartition(".")[0],
            source=None if site is None else evidence.sites[site].defined,
            evidence={"first": fact["first"], "second": fact["second"], "seen_at_update": fact.get("step") or 0},
            confidence=0.93 if sort == "untied" else 0.85 if meant else 0.4,
            inference="Equal random values mean that one was made from the other and the tie was lost on the way."
            if meant
            else "Nothing in the source ties them: a common start on purpose, or a tie that was meant and never made.",
        )
        return


def _tied_in_source(evidence: Evidence, first: str, second: str) -> bool:
    """Whether a line makes one of two parameters the other: `self.head.weight = self.embedding.weight`."""
    wanted = {_tail(first.split(".")), _tail(second.split("."))}
    trees = [parsed(fact["text"]) for fact in evidence.facts("source_file")]
    for node in (node for tree in trees if tree is not None for node in ast.walk(tree)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute):
            given = _tail(ast.unparse(node.value).split("."))
            if any({_tail(ast.unparse(target).split(".")), given} == wanted for target in node.targets):
                return True
    return False


def _tail(parts: list[str]) -> tuple[str, ...]:
    """`head.weight` of model.head.weight and of self.head.weight.data: the layer and its parameter."""
    return tuple(parts[:-1] if parts[-1] == "data" else parts)[-2:]


def _module_site(evidence: Evidence, model: int, path: str) -> int | None:
    return next((s.id for s in evidence.sites.values() if s.model == model and s.path == path), None)


@cause("frozen_state_still_changes", group="loop", auto="R", explains=("train_eval_mismatch", "loss_spike"))
def frozen_state_still_changes(evidence: Evidence) -> Iterator[Finding]:
    """Something declared frozen keeps changing.

    Finds: parameters with requires_grad=False that an optimizer moves (old gradients, momentum, weight decay), and
    BatchNorm layers whose whole block is frozen but which run in training mode and so keep updating their statistics.
    Why it matters: the frozen feature extractor is no longer the one that was pretrained; results drift and cannot be
    reproduced from the stated weights.
    Decides by: the version counters of frozen parameters around each update; mode and requires_grad of each BatchNorm
    layer and its block during passes that train.
    Usual cures: call eval() on the frozen part after every train(); give the optimizer only what trains
    (filter on requires_grad), or clear old gradients with set_to_none=True when freezing.
    """
    moved = evidence.facts("frozen_moved")
    if moved:
        sites = [site for fact in moved for site in fact["parameter_sites"]]
        yield Finding(
            "frozen_state_still_changes",
            Severity.WARNING,
            f"{len(sites)} frozen parameter{'s' if len(sites) > 1 else ''} (requires_grad=False) "
            "still moved by the optimizer",
            step=moved[0].get("step"),
            layer=evidence.layer_of(sites[0]),
            source=evidence.line_of(Call.STEP, site=moved[0].get("optimizer")),
            evidence={"frozen_parameters_moved": len(sites), "first": str(evidence.name(sites[0]))},
            confidence=0.95,
            inference="They still hold a gradient from before the freeze, and step() applies it, momentum or decay.",
        )
        return
    yield from _frozen_norms(evidence)


def _frozen_norms(evidence: Evidence) -> Iterator[Finding]:
    last = {fact["site"]: fact for fact in evidence.facts("batchnorm")}
    hit = [fact for fact in last.values() if fact["tracks"] and fact["frozen_looks"] >= NEEDED_LOOKS]
    if not hit or not evidence.updates:
        return
    site = evidence.sites.get(hit[0]["site"])
    yield Finding(
        "frozen_state_still_changes",
        Severity.WARNING,
        f"{len(hit)} BatchNorm layer{'s' if len(hit) > 1 else ''} of a frozen block run in training mode: "
        "the running statistics keep changing",
        step=hit[0].get("frozen_since"),
        layer=evidence.name(hit[0]["site"]),
        source=None if site is None else site.source or site.defined,
        evidence={
            "layers": len(hit),
            "passes_looked_at": hit[0]["frozen_looks"],
            "batches_its_statistics_have_seen": hit[0]["tracked"] if hit[0]["tracked"] is not None else "unknown",
        },
        confidence=0.9,
        inference="requires_grad=False freezes scale and shift only; train() lets the mean and variance move on.",
    )


@cause("update_not_applied", group="loop", auto="R", explains=("parameters_not_updating",))
def update_not_applied(evidence: Evidence) -> Iterator[Finding]:
    """step() runs over a parameter that has a gradient, and leaves it as it was.

    Finds: a float32 or wider parameter owned by an optimizer with a learning rate above zero and a gradient that is not
    zero, whose value is identical before and after step(), while others of the same optimizer move.
    Why it matters: part of the network does not train although everything looks wired up: a write into a copy, a broken
    custom kernel, a frozen schedule of one group.
    Decides by: the measured update of each parameter in the steps measured in full; it must be exactly zero in all of
    them, and the expected one large enough not to be lost to rounding.
    Usual cures: make the parameter contiguous, write in place (`p.copy_`, `p.add_`), check the learning rate of its
    group.
    """
    gradients, changes = evidence.stats(Kind.GRADIENT), evidence.stats(Kind.UPDATE)
    for fact in evidence.facts("optimizer"):
        owned = set(fact.get("parameter_sites") or ())
        if not owned or all(not group.get("lr") for group in fact.get("groups") or ()):
            continue
        still = [site for site in owned if _never_moved(evidence, site, gradients, changes, _lr(fact))]
        movers = np.isin(changes["site"], list(owned - set(still))) & (changes["l2"] > 0)
        if still and movers.any():
            still.sort()
            yield Finding(
                "update_not_applied",
                Severity.CRITICAL,
                f"{evidence.name(still[0])} has a gradient and is in {fact['name']}, yet step() never changes it",
                step=0,
                layer=evidence.layer_of(still[0]),
                source=evidence.line_of(Call.STEP, site=fact["site"]),
                evidence={
                    "optimizer": fact["name"],
                    "parameters_left_as_they_were": len(still),
                    "parameters_of_the_optimizer": len(owned),
                    "largest_gradient_norm": float(gradients["l2"][gradients["site"] == still[0]].max()),
                    "largest_update": 0.0,
                },
                confidence=0.9,
                inference="The gradient arrives and the optimizer runs; the write does not reach the parameter.",
            )


def _lr(fact: dict[str, Any]) -> float:
    return max((float(group.get("lr") or 0.0) for group in fact.get("groups") or ()), default=0.0)


def _never_moved(evidence: Evidence, site: int, gradients: Any, changes: Any, lr: float) -> bool:
    known = evidence.sites.get(site)
    if known is None or known.dtype not in ("float32", "float64"):
        return False
    mine = changes["site"] == site
    if mine.sum() < NEEDED_LOOKS or (changes["l2"][mine] != 0).any():
        return False
    arrived = gradients["site"] == site
    arrived &= np.isin(gradients["step"], changes["step"][mine])
    norms = gradients["l2"][arrived]
    if len(norms) < NEEDED_LOOKS or not (norms > 0).all():
        return False
    weights = evidence.stats(Kind.PARAMETER, site)["l2"]
    size = float(np.nanmedian(weights)) if len(weights) else 0.0
    return bool(np.median(norms) * lr > LEAST_RELATIVE * size)
