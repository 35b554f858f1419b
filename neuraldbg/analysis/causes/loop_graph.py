"""The way from the loss back to the parameters: cut by detach or no_grad."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.loop_reading import (
    NO_GRAD,
    STUCK,
    STUCK_CAUSES,
    Fact,
    above,
    anywhere,
    cut_between,
    error_of,
    listed,
    loaded_before_training,
    place,
    text_at,
    variable,
)
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Call, Finding, Severity

FEWEST = 3
LARGE = 0.3
_NO_GRAPH = "does not require grad"


def _loss_cuts(evidence: Evidence) -> list[Fact]:
    """Backwards from a loss without a graph, where that is the rule and not an empty batch now and then."""
    cuts = [fact for fact in evidence.facts("loss_cut") if fact["passes"] and fact["trainable_layers_ran"]]
    if _NO_GRAPH in error_of(evidence):
        return cuts
    of_training: dict[Any, list[Fact]] = {}
    for fact in cuts:
        of_training.setdefault((fact["source_id"], fact.get("training")), []).append(fact)
    return [fact for some in of_training.values() if _is_usual(some, evidence) for fact in some]


def _is_usual(cuts: list[Fact], evidence: Evidence) -> bool:
    """Of the backwards of one line and one training."""
    looked = max(fact.get("looked", min(evidence.backwards, 16)) for fact in cuts)
    return len(cuts) >= FEWEST and 2 * len(cuts) >= looked


def _lost(evidence: Evidence) -> list[tuple[Fact, list[int]]]:
    """Layers that ran in training steps and that no gradient ever came to, less those moved by other means."""
    facts = evidence.facts("unreached_excused")
    excused = {_layer_site(evidence, site) for one in facts for site in (*one["moved"], *one["reached"])}
    found = []
    for fact in evidence.facts("unreached"):
        rest = [site for site in fact["layers"] if site not in excused]
        if rest:
            found.append((fact, rest))
    return found


def _layer_site(evidence: Evidence, parameter: int) -> int:
    """The site of the module that owns a parameter."""
    site = evidence.sites[parameter]
    owner = site.path.rpartition(".")[0]
    if not owner:
        return site.model if site.model is not None else -1
    return next((one.id for one in evidence.sites.values() if one.model == site.model and one.path == owner), -1)


def _share(evidence: Evidence, layers: list[int], fact: Fact) -> float:
    models = {evidence.sites[site].model or site for site in layers}
    total = sum(evidence.sites[model].parameters or 0 for model in models if model in evidence.sites)
    return float(fact["elements"] / total) if total else 1.0


def _severity(share: float) -> Severity:
    return Severity.CRITICAL if share >= LARGE else Severity.WARNING


@cause(
    "detached_graph",
    group="loop",
    auto="S",
    explains=(*STUCK, *STUCK_CAUSES, "missing_gradient", "crash"),
    excludes=("backward_missing",),
)
def detached_graph(evidence: Evidence) -> Iterator[Finding]:
    """The graph is cut between parameters and loss.

    Finds: layers that run in training with gradients switched on, belong to an optimizer, and never get a gradient,
    because a later layer (or the loss) is fed a tensor without a graph: .detach(), .data, .item(), NumPy, or a new
    tensor made from values.
    Why it matters: everything before the cut keeps its initial values, however long the training.
    Decides by: which layers ran, which gradients arrived, and the first layer after them whose input has no graph
    although it is no input of the model; whether that input shares memory with the output before it. For a loss: a
    backward that starts at a tensor without a history.
    Usual cures: stay in torch operations between the layers and the loss; keep .item() and .detach() for logging.
    """
    for fact in _loss_cuts(evidence):
        if fact["passes_with_graph"] and fact["passes_without_grad_mode"] < fact["passes"]:
            yield _cut_at_loss(evidence, fact)
            return
    for fact, layers in _lost(evidence):
        after = fact["after"]
        with_mode = [site for site in layers if site not in fact["without_grad_mode"]]
        at_exit = after is None and fact["model_output_without_graph"]
        proven = fact["shares_memory"] or (after is not None and fact["all_before"]) or at_exit or _followed_cut(fact)
        if not with_mode or not proven or _switched_off(fact):
            continue
        yield _cut_between(evidence, fact, with_mode)
        return


def _followed_cut(fact: Fact) -> tuple[str, str | None] | None:
    """Operation and line where values go on without their graph on every way to what the pass puts out."""
    cuts = fact.get("cuts") or []
    if not cuts or fact["with_graph"]:
        return None
    op, source, _ = next((cut for cut in cuts if not cut[2]), cuts[0])
    return op, source


def _switched_off(fact: Fact) -> bool:
    """Whether the graph is lost because the operation ran under no_grad: that is no_grad_in_training."""
    seen = _followed_cut(fact)
    return seen is not None and seen[0] == "no_grad"


def _cut_at_loss(evidence: Evidence, fact: Fact) -> Finding:
    backward = evidence.source(fact["source_id"])
    passed = evidence.line_of(Call.PASS)
    line = cut_between(evidence, passed, backward) or _built_anew(evidence) or backward
    crashed = not fact["requires_grad"]
    return Finding(
        "detached_graph",
        Severity.CRITICAL,
        "backward() starts at a tensor without a history: no parameter can be reached from the loss"
        + (", so it raises" if crashed else ""),
        step=fact["step"],
        source=line,
        evidence={
            "passes_with_graph": fact["passes_with_graph"],
            "loss_requires_grad": str(fact["requires_grad"]),
            "backward_line": backward or "unknown",
            "text": text_at(evidence, line).strip()[:120],
        },
        confidence=0.96,
        inference="the outputs of the model had a graph, the loss made from them has none",
    )


def _built_anew(evidence: Evidence) -> str | None:
    """A loss put together in a function of its own."""
    return anywhere(evidence, re.compile(r"loss.*torch\.tensor\(|total.*torch\.tensor\(|torch\.tensor\(.*loss"))


def _cut_between(evidence: Evidence, fact: Fact, layers: list[int]) -> Finding:
    before, after = fact["before"], fact["after"]
    share = _share(evidence, layers, fact)
    names = [name for site in layers if (name := evidence.name(site)) is not None]
    behind = evidence.name(after)
    seen = _followed_cut(fact)
    line = (seen and seen[1]) or _cut_line(evidence, before, after)
    where = f"{behind} is fed a tensor without a graph" if behind else "what the model returns has no graph"
    if seen is not None:
        where = f"`{seen[0]}` cuts the graph behind them"
    return Finding(
        "detached_graph",
        _severity(share),
        f"no gradient reaches {listed(names)}: {where}",
        step=fact["step"],
        layer=evidence.name(before) if before in layers else names[-1],
        source=line,
        evidence={
            "layers_without_gradient": listed(names, 8),
            "share_of_weights": round(min(share, 1.0), 4),
            "last_layer_before_the_cut": evidence.name(before) or "unknown",
            "first_layer_after_it": behind or "none",
            "same_memory": str(bool(fact["shares_memory"])),
            **({"cut_by": seen[0]} if seen is not None else {}),
            "text": text_at(evidence, line).strip()[:120],
        },
        confidence=0.97 if fact["shares_memory"] or seen is not None else 0.92,
        inference="the forward reaches these layers, the backward does not",
    )


def _cut_line(evidence: Evidence, before: int | None, after: int | None) -> str | None:
    """From where the last layer before the cut is called to where the first one after it is; of nested layers the
    outermost that differ. Else the calls in the training loop."""
    first, last = _parted(evidence, before, after)
    start = place(first)
    if last is None and start is not None:
        last = f"{start.file}:{start.line + 12}"
    loop = cut_between(evidence, evidence.line_of(Call.PASS), evidence.line_of(Call.BACKWARD))
    return cut_between(evidence, first, last) or loop or last or first


def _parted(evidence: Evidence, before: int | None, after: int | None) -> tuple[str | None, str | None]:
    """The lines that call two layers, or the outermost containers that hold only one of them."""
    one, other = evidence.sites.get(before or -1), evidence.sites.get(after or -1)
    if one is None or other is None or one.model != other.model:
        return (one.source if one else None), (other.source if other else None)
    depth = 0
    parts = one.path.split("."), other.path.split(".")
    while depth < min(map(len, parts)) - 1 and parts[0][depth] == parts[1][depth]:
        depth += 1
    tops = [".".join(part[: depth + 1]) for part in parts]
    lines = {site.path: site.source for site in evidence.sites.values() if site.model == one.model}
    return lines.get(tops[0]) or one.source, lines.get(tops[1]) or other.source


@cause(
    "no_grad_in_training",
    group="loop",
    auto="R",
    explains=(*STUCK, *STUCK_CAUSES, "missing_gradient", "detached_graph", "backward_missing", "crash"),
)
def no_grad_in_training(evidence: Evidence) -> Iterator[Finding]:
    """Part or all of the training forward runs under no_grad or inference_mode.

    Finds: layers with trainable parameters in an optimizer that run in training steps only while gradients are switched
    off, and losses without a graph because the whole forward ran that way.
    Why it matters: no graph is built there, so these layers get no gradient and never learn; if it is the whole model,
    backward() raises.
    Decides by: the grad mode at every layer call of a training step and the gradients that came back. Parts that were
    loaded before training are information only: that is how fixed feature extractors are run.
    Usual cures: move the training forward out of the torch.no_grad() block; undo torch.set_grad_enabled(False) after an
    evaluation.
    """
    for fact in _loss_cuts(evidence):
        if fact["passes_without_grad_mode"] == fact["passes"]:
            yield _all_without(evidence, fact)
            return
    for fact, layers in _lost(evidence):
        without = layers if _switched_off(fact) else [site for site in layers if site in fact["without_grad_mode"]]
        if not without:
            continue
        models = {evidence.sites[site].model or site for site in without}
        meant = loaded_before_training(evidence, models)
        names = [name for site in without if (name := evidence.name(site)) is not None]
        share = _share(evidence, without, fact)
        call = evidence.sites[without[0]].source
        at = seen[1] if _switched_off(fact) and (seen := _followed_cut(fact)) is not None else call
        line = above(evidence, at, NO_GRAD) or above(evidence, evidence.line_of(Call.PASS), NO_GRAD) or call
        yield Finding(
            "no_grad_in_training",
            Severity.INFO if meant else _severity(share),
            f"in every training step gradients are switched off in {listed(names)}: no gradient, no learning",
            step=fact["step"],
            layer=names[0] if names else None,
            source=line,
            evidence={
                "layers": listed(names, 8),
                "share_of_weights": round(min(share, 1.0), 4),
                "optimizer": variable(evidence, fact["optimizer"]),
                "text": text_at(evidence, line).strip()[:120],
            },
            confidence=0.5 if meant else 0.96,
            inference="an optimizer has their parameters, but no graph leads to them",
        )
        return


def _all_without(evidence: Evidence, fact: Fact) -> Finding:
    backward = evidence.source(fact["source_id"])
    passed = evidence.line_of(Call.PASS)
    line = above(evidence, passed, NO_GRAD) or backward
    return Finding(
        "no_grad_in_training",
        Severity.CRITICAL,
        "the forward pass of the training step runs with gradients switched off: the loss has no graph",
        step=fact["step"],
        source=line,
        evidence={
            "passes": fact["passes"],
            "passes_without_grad_mode": fact["passes_without_grad_mode"],
            "backward_line": backward or "unknown",
            "text": text_at(evidence, line).strip()[:120],
        },
        confidence=0.96,
        inference="nothing leads from the loss back to the parameters",
    )
