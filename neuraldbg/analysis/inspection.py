"""One layer at a time: its latest statistics, its gradient over the steps, and whether that is healthy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from neuraldbg.analysis import gradients as judge
from neuraldbg.analysis.results import (
    CausalHypothesis,
    GradientHealthReport,
    GradientHistory,
    GradientRecord,
    LayerHealth,
    LayerReport,
)
from neuraldbg.records import Kind, Site, SiteKind
from neuraldbg.trace import Trace
from neuraldbg.trace.tables import KIND_CODE

FAILURES: Final = (
    "vanishing_gradients",
    "exploding_gradients",
    "dead_neurons",
    "saturated_activations",
    "optimizer_instability",
    "data_anomaly",
)
FEWEST: Final = 3  # gradients of others before one that never came is called missing
_COLUMNS: Final = ("count", "mean", "std", "min", "max", "l2", "zero_count", "nan_count", "inf_count")


def joined_norm(norms: Iterable[float | None]) -> float | None:
    """The norm over several parts; None when one of them is unknown or there is none."""
    known = list(norms)
    if not known or any(norm is None for norm in known):
        return None
    return math.sqrt(sum(norm * norm for norm in known if norm is not None))


def owner_path(parameter: str) -> str:
    """`encoder.0.weight` belongs to `encoder.0`; a bare `weight` to the root."""
    return parameter.rpartition(".")[0]


def by_layer(gradients: Iterable[Any]) -> dict[str, list[Any]]:
    """Gradients of parameters (anything with `.site`), put together by the layer that owns them. Raw tensors stand
    alone."""
    layers: dict[str, list[Any]] = {}
    for one in gradients:
        name = owner_path(one.site.path) or one.site.path if one.site.model is not None else one.site.path
        layers.setdefault(name, []).append(one)
    return layers


def gradient_record(step: int, parts: Sequence[Sequence[Any]]) -> GradientRecord:
    """One layer's record from the statistics of its parameters' gradients; mean, std and max are over all of them."""
    count = sum(int(part[0]) for part in parts)
    bad = [sum(int(part[index]) for part in parts) for index in (7, 8)]
    if not count or bad != [0, 0] or not all(math.isfinite(part[5]) for part in parts):
        return GradientRecord(step, None, nan_count=bad[0], inf_count=bad[1])
    square = sum(part[5] ** 2 for part in parts) / count
    if any(math.isnan(part[1]) for part in parts):
        return GradientRecord(step, math.sqrt(square * count))  # only the norm was taken
    mean = sum(part[0] * part[1] for part in parts) / count
    return GradientRecord(
        step,
        norm=math.sqrt(square * count),
        mean=mean,
        std=math.sqrt(max(square - mean * mean, 0.0)),
        max=max(max(abs(part[3]), abs(part[4])) for part in parts),
        zero_fraction=sum(int(part[6]) for part in parts) / count,
    )


# -- from the trace
# ------------------------------------------------------------------------------------------------------


def parameters_of(trace: Trace, layer: Site) -> list[Site]:
    """The parameters a layer owns itself; of a model the parameters of all its layers; of a parameter the parameter."""
    if layer.kind is SiteKind.PARAMETER:
        return [layer]
    every = [site for site in trace.sites if site.kind is SiteKind.PARAMETER]
    if layer.kind is SiteKind.MODEL:
        return [site for site in every if site.model == layer.id]
    return [site for site in every if site.model == layer.model and owner_path(site.path) == layer.path]


def gradient_history(trace: Trace, name: str) -> GradientHistory:
    """The gradient of a layer's parameters at every sampled step."""
    layer = trace.site(name)
    return GradientHistory(trace.canonical(layer), _records(trace, parameters_of(trace, layer)))


def _records(trace: Trace, parameters: Sequence[Site]) -> list[GradientRecord]:
    parts: dict[int, dict[int, tuple[Any, ...]]] = {}
    for site in parameters:
        rows = trace.table("stats", columns=["step", "kind", *_COLUMNS], site=site.id)
        keep = np.flatnonzero(rows["kind"] == KIND_CODE[Kind.GRADIENT])
        columns = [rows[column][keep].tolist() for column in _COLUMNS]
        for step, values in zip(rows["step"][keep].tolist(), zip(*columns, strict=True), strict=True):
            parts.setdefault(step, {})[site.id] = values  # the latest look at a step counts
    return [gradient_record(step, list(parts[step].values())) for step in sorted(parts)]


def layer_report(
    trace: Trace, name: str, *, vanishing: float | None = None, exploding: float | None = None
) -> LayerReport:
    """Everything that was last seen of a layer."""
    site = trace.site(name)
    weights = parameters_of(trace, site)
    largest = max(weights, key=lambda one: one.parameters or 0, default=None)
    history = gradient_history(trace, name)
    health = gradient_health(trace, vanishing=vanishing, exploding=exploding).layers.get(
        site.path or trace.canonical(site)
    )
    output = _latest(trace, site, Kind.ACTIVATION)
    steps = [seen["step"] for seen in (output, _latest(trace, site, Kind.GRADIENT)) if seen]
    return LayerReport(
        layer=trace.canonical(site),
        type=site.op,
        step=max([*steps, *history.steps[-1:]], default=None),
        health="unknown" if health is None else health.status,
        input=_latest(trace, site, Kind.INPUT),
        output=output,
        gradient=_latest(trace, site, Kind.GRADIENT) or (_latest(trace, largest, Kind.GRADIENT) if largest else None),
        weight=None if largest is None else _latest(trace, largest, Kind.PARAMETER),
        grad_norm=history[-1].norm if history else None,
        first_bad_step=None if health is None else health.first_bad_step,
        source=site.source,
        aliases=tuple(trace.aliases(site)),
    )


def _latest(trace: Trace, site: Site, kind: Kind) -> dict[str, Any] | None:
    rows = trace.table("stats", columns=["step", "kind", *_COLUMNS], site=site.id)
    found = np.flatnonzero(rows["kind"] == KIND_CODE[kind])
    if not found.size:
        return None
    last = found[-1]
    seen: dict[str, Any] = {"step": int(rows["step"][last])}
    for column in _COLUMNS:
        value = rows[column][last].item()
        seen[column] = None if isinstance(value, float) and math.isnan(value) else value
    return seen


# -- health
# --------------------------------------------------------------------------------------------------------------


def gradient_health(
    trace: Trace, *, vanishing: float | None = None, exploding: float | None = None
) -> GradientHealthReport:
    """Every layer's gradients over the whole run, judged. `overall` is None-free: an empty run is healthy with score
    None."""
    layers = _layer_gradients(trace)
    faded = judge.vanishing(layers, threshold=vanishing)
    grown = judge.exploding(layers, threshold=exploding)
    broken = [name for name, one in layers.items() if one.norms and judge.is_bad(one.norms[-1])]
    dead = [name for name, one in layers.items() if one.norms and one.norms[-1] == 0.0]
    status = {**dict.fromkeys(grown, "exploding"), **dict.fromkeys(faded, "vanishing")}
    status.update({**dict.fromkeys(dead, "dead"), **dict.fromkeys(broken, "nan")})
    health = {
        name: LayerHealth(
            status.get(name, "healthy"),
            None if judge.is_bad(one.norms[-1]) else one.norms[-1],
            judge.trend(one.norms),
            judge.first_bad_step(one, layers) if name in status else None,
        )
        for name, one in layers.items()
        if one.norms
    }
    missing = _without_gradient(trace, layers)
    health |= dict.fromkeys(missing, LayerHealth("missing", None, None, 0))
    status.update(dict.fromkeys(missing, "missing"))
    share = len(status) / len(health) if health else None
    overall = "critical" if broken or (share or 0) >= 0.5 else "warning" if status else "healthy"
    return GradientHealthReport(
        overall=overall,
        score=None if share is None else 1.0 - share,
        layers=health,
        vanishing_layers=tuple(faded),
        exploding_layers=tuple(grown),
        nan_layers=tuple(broken),
        dead_layers=tuple(dead),
        missing_layers=tuple(missing),
        causes=tuple(_hypotheses(layers, health)),
        recommendations=tuple(_advice(faded, grown, missing)),
    )


def _without_gradient(trace: Trace, layers: Mapping[str, judge.LayerGradients]) -> list[str]:
    """Layers that may learn and were never given a gradient, while others were a few times."""
    if max((len(one.norms) for one in layers.values()), default=0) < FEWEST:
        return []
    groups = _parameter_groups(trace).items()
    return [name for name, sites in groups if name not in layers and any(site.op != "frozen" for site in sites)]


def _parameter_groups(trace: Trace) -> dict[str, list[Site]]:
    """Parameters by the layer that owns them."""
    groups: dict[str, list[Site]] = {}
    for site in trace.sites:
        if site.kind is SiteKind.PARAMETER:
            name = trace.canonical(site)
            groups.setdefault((owner_path(name) or name) if site.model is not None else name, []).append(site)
    return groups


def _layer_gradients(trace: Trace) -> dict[str, judge.LayerGradients]:
    layers = {}
    for name, sites in _parameter_groups(trace).items():
        records = _records(trace, sites)
        norms = [math.nan if record.norm is None else record.norm for record in records]
        size = sum(site.parameters or 0 for site in sites)
        weight = any(len(site.shape or ()) >= 2 for site in sites)
        if records:
            layers[name] = judge.LayerGradients([record.step for record in records], norms, size, weight)
    return layers


def _hypotheses(
    layers: Mapping[str, judge.LayerGradients], health: Mapping[str, LayerHealth]
) -> Iterable[CausalHypothesis]:
    """What the gradients alone show: where and since when. The cause behind it is the diagnosis's to prove."""
    words = dict.fromkeys(("vanishing", "dead", "missing"), "vanishing_gradients")
    for failure in ("vanishing_gradients", "exploding_gradients"):
        hit = {
            n: h
            for n, h in health.items()
            if h.status != "healthy" and words.get(h.status, "exploding_gradients") == failure
        }
        if not hit:
            continue
        first = min(hit, key=lambda name: hit[name].first_bad_step or 0)
        since = hit[first].first_bad_step
        evidence: dict[str, Any] = {"failure": failure, "layers": len(hit), "first_layer": first, "first_step": since}
        decay = judge.decay_per_layer(layers)
        if failure == "vanishing_gradients" and decay is not None and decay < 0.5:
            evidence["decay_per_layer"] = decay
        said = "fade" if failure == "vanishing_gradients" else "blow up"
        when = "at the last step looked at" if since is None else f"at step {since}"
        text = f"gradients {said} in {len(hit)} of {len(health)} layers, first in {first!r} {when}"
        chain = tuple(f"{name}: {hit[name].status}" + _since(hit[name]) for name in hit)
        yield CausalHypothesis(text, None, evidence, chain)  # how likely it is the cause is not judged here


def _since(layer: LayerHealth) -> str:
    return "" if layer.first_bad_step is None else f" since step {layer.first_bad_step}"


def _advice(faded: Sequence[str], grown: Sequence[str], missing: Sequence[str]) -> Iterable[str]:
    if missing:
        yield "missing: nothing of the loss depends on these layers: look for detach(), no_grad() or an unused branch"
    if faded:
        yield "vanishing: ReLU or GELU instead of a saturating activation, normalisation, residual paths, other init"
    if grown:
        yield "exploding: a smaller learning rate, clip_grad_norm_, normalisation, or a check of the input scale"
