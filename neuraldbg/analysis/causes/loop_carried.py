"""Graphs that reach too far: into a network that should be constant, or into earlier updates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.loop_reading import (
    Fact,
    deepest_layer,
    error_of,
    latest,
    owners_of_lines,
    parameters_owned,
    steps_by,
    text_at,
    trained_models,
    variable,
)
from neuraldbg.analysis.causes.loss_score import learns_its_baseline
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Call, Finding, Severity

FEWEST = 3
AGAIN = "backward through the graph a second time"
IN_PLACE = "modified by an inplace operation"
_NAME = re.compile(r"[A-Za-z_]\w*")
UNSTABLE = (
    "oscillating_loss",
    "diverging_loss",
    "exploding_gradient",
    "loss_plateau",
    "no_learning",
    "slow_convergence",
)


@cause(
    "missing_detach",
    group="loop",
    auto="S",
    explains=(
        *UNSTABLE,
        "parameters_not_in_optimizer",
        "learning_rate_too_high",
        "loss_spike",
        "memory_growth",
        "crash",
    ),
)
def missing_detach(evidence: Evidence) -> Iterator[Finding]:
    """Gradients leak into a model that should be constant in this step.

    Finds: updates that apply gradients of a loss which belongs to another optimizer (a discriminator's loss that
    reaches the generator), regression targets that carry a graph (a bootstrapped target computed by a network
    without detach), advantages that carry the graph of the value they are measured against, and losses carried on
    from earlier updates.
    Why it matters: the second network is pushed to help the first one's loss, or the target moves to meet the
    prediction: training becomes unstable or settles on a trivial answer.
    Decides by: which parameters each backward reaches, which backward lines are in the gradients that a step applies
    (cleared ones do not count), and on which side of the loss a graph hangs.
    Usual cures: fake.detach() for the discriminator's step; with torch.no_grad() around the target; loss.item() for
    sums that are only logged.
    """
    reaches = {fact["source_id"]: fact for fact in evidence.facts("graph_reach")}
    found = False
    for finding in _foreign_gradients(evidence, reaches):
        found = True
        yield finding
    if not found:
        yield from _moving_targets(evidence, reaches)
        yield from learns_its_baseline(evidence)
        yield from _carried_loss(evidence)


def _foreign_gradients(evidence: Evidence, reaches: dict[int, Fact]) -> Iterator[Finding]:
    """A step that applies what another optimizer's loss left in the gradients."""
    owners = owners_of_lines(evidence)
    leaks: set[int] = set()
    for optimizer, flow in latest(evidence, "gradient_flow", "optimizer").items():
        seen = sum(count for kind, _, count in flow["lines"] if kind in ("fresh", "stale"))
        foreign: dict[int, int] = {}
        for kind, lines, count in flow["lines"]:
            for line in lines:
                if kind in ("fresh", "stale") and owners.get(line) and optimizer not in owners[line]:
                    foreign[line] = foreign.get(line, 0) + count
        for line, count in foreign.items():
            if count >= FEWEST and 2 * count >= seen and _upstream(reaches.get(line), optimizer, owners[line]):
                leaks.add(line)
                fed = reaches[line]["fed_passes"]
                yield _leak(evidence, optimizer, (line, owners[line]), (count, seen), fed)
    yield from _harmless_leaks(evidence, reaches, owners, leaks)


def _upstream(reach: Fact | None, optimizer: int, owners: set[int]) -> bool:
    """Whether the parameters lie behind those of the loss's own optimizer: then cutting there costs it nothing."""
    if reach is None:
        return False
    depth = dict(tuple(pair) for pair in reach["optimizers"])
    own = [depth[site] for site in owners if site in depth]
    return optimizer in depth and bool(own) and depth[optimizer] > min(own)


def _leak(
    evidence: Evidence, optimizer: int, line: tuple[int, set[int]], seen: tuple[int, int], fed: list[int]
) -> Finding:
    """`fed` = passes whose input had a graph: there the detach is missing."""
    source, owners = evidence.source(line[0]), line[1]
    mine, theirs = variable(evidence, optimizer), variable(evidence, next(iter(owners)))
    return Finding(
        "missing_detach",
        Severity.CRITICAL,
        f"the loss of {theirs} also fills the gradients that {mine}.step() applies: detach what comes from its network",
        step=_first_step(evidence, optimizer),
        layer=deepest_layer(evidence, sorted(parameters_owned(evidence).get(optimizer, ()))),
        source=_target_line(evidence, fed) or source,
        evidence={
            "optimizer": mine,
            "backward_line": source or "unknown",
            "loss_belongs_to": theirs,
            "updates_with_foreign_gradients": seen[0],
            "updates_looked_at": seen[1],
            "text": text_at(evidence, source).strip()[:120],
        },
        confidence=0.95,
        inference="one network is trained for the other's loss",
    )


def _first_step(evidence: Evidence, optimizer: int) -> int:
    steps = evidence.of_call(Call.STEP, site=optimizer)["step"]
    return int(steps[0]) if len(steps) else 0


def _harmless_leaks(
    evidence: Evidence, reaches: dict[int, Fact], owners: dict[int, set[int]], known: set[int]
) -> Iterator[Finding]:
    """Gradients that are cleared before they are applied: only time is lost."""
    for line, reach in reaches.items():
        if line in known or not owners.get(line):
            continue
        others = [site for site, _ in reach["optimizers"] if site not in owners[line]]
        wasted = [site for site in others if _upstream(reach, site, owners[line])]
        if wasted and steps_by(evidence)[wasted[0]] >= FEWEST:
            name = variable(evidence, wasted[0])
            yield Finding(
                "missing_detach",
                Severity.INFO,
                f"a loss that {name} does not step on computes gradients for its parameters; they are cleared unused",
                source=evidence.source(line),
                evidence={"optimizer": name},
                confidence=0.5,
                inference="detach() would save that part of the backward",
            )
            return


def _moving_targets(evidence: Evidence, reaches: dict[int, Fact]) -> Iterator[Finding]:
    """A regression target made from a network's own output, with the graph still on it."""
    models = _models_of_passes(evidence)
    for line, reach in reaches.items():
        side = reach["target_side"]
        if side is None or side["same_pass"]:
            continue
        target = {models[number] for number in side["passes"] if number in models}
        against = {models[number] for number in side["against"] if number in models}
        if not target or not (against & trained_models(evidence)):
            continue
        only = side["only_parameters"]
        owned = set().union(*parameters_owned(evidence).values(), set())
        moved = bool(side["shared_parameters"]) or bool(owned & set(only))
        layer = deepest_layer(evidence, only)
        name = layer or variable(evidence, next(iter(target)))
        yield Finding(
            "missing_detach",
            Severity.WARNING if moved else Severity.INFO,
            f"the target of the loss is computed by {name} and still has its graph: the gradient also moves the target",
            step=reach["step"],
            layer=layer,
            source=_target_line(evidence, side["passes"]) or evidence.source(line),
            evidence={
                "model": variable(evidence, next(iter(target))),
                "parameters_only_behind_the_target": len(only),
                "parameters_behind_both": side["shared_parameters"],
                "takes_a_maximum": str(side["maximal"]),
                "backward_line": evidence.source(line) or "unknown",
            },
            confidence=0.45 if not moved else 0.88 if side["maximal"] or only else 0.82,
            inference="a target should be a constant of the step: no_grad or detach()",
        )
        return


def _models_of_passes(evidence: Evidence) -> dict[int, int]:
    rows = evidence.of_call(Call.PASS)
    return dict(zip(rows["pass_id"].tolist(), rows["site"].tolist(), strict=True))


def _target_line(evidence: Evidence, passes: list[int]) -> str | None:
    rows = evidence.of_call(Call.PASS)
    for number, source in zip(rows["pass_id"].tolist(), rows["source"].tolist(), strict=True):
        if number in passes:
            return evidence.source(source)
    return None


def _carried(evidence: Evidence, *, through_pass: bool) -> list[Fact]:
    """Backwards into graph that an earlier backward went through, across an update of the parameters in it."""
    return [
        fact
        for fact in evidence.facts("graph_again")
        if fact["through_pass"] is through_pass and fact["updated_parameters"] and fact["new_passes"]
    ]


def _crashed_on_it(evidence: Evidence) -> bool:
    return AGAIN in error_of(evidence) or IN_PLACE in error_of(evidence)


def _carried_loss(evidence: Evidence) -> Iterator[Finding]:
    facts = _carried(evidence, through_pass=False)
    if not facts or not (_crashed_on_it(evidence) or len(facts) >= 2):
        return
    first = facts[0]
    source = evidence.source(first["source_id"])
    yield Finding(
        "missing_detach",
        Severity.CRITICAL,
        "the loss is added to that of earlier updates with its graph: each backward goes through all of them again",
        step=first["step"],
        source=source,
        evidence={**_carried_numbers(facts), "text": text_at(evidence, source).strip()[:120]},
        confidence=0.93,
        inference="old graphs were built with weights that have changed since",
    )


def _carried_numbers(facts: list[Fact]) -> dict[str, Any]:
    return {
        "nodes_of_earlier_backwards": facts[-1]["old_nodes"],
        "nodes": facts[-1]["nodes"],
        "updated_parameters_in_them": facts[0]["updated_parameters"],
    }


@cause(
    "hidden_state_not_detached",
    group="loop",
    auto="S",
    explains=(
        "crash",
        "memory_growth",
        "retained_graph_memory_leak",
        "exploding_gradient",
        "missing_gradient_clipping",
    ),
)
def hidden_state_not_detached(evidence: Evidence) -> Iterator[Finding]:
    """Recurrent state is carried across steps with its graph.

    Finds: backwards that go, through an input of the current forward pass, into graph that an earlier backward has been
    through and whose parameters have been updated since.
    Why it matters: torch raises "Trying to backward through the graph a second time", or, with retain_graph=True, time
    and memory grow with every step and gradients are those of weights that no longer exist.
    Decides by: marks left in the graph by earlier backwards, found again by this one.
    Usual cures: h = h.detach() (for an LSTM each of h and c) before the next chunk.
    """
    facts = _carried(evidence, through_pass=True) or _growing(evidence)
    if not facts:
        return
    first = facts[0]
    crashed = _crashed_on_it(evidence)
    if not crashed and len(facts) < 2:
        return
    line = _call_line(evidence)
    name = _carried_name(text_at(evidence, line))
    what = f"{name} is carried" if name else "state is carried"
    yield Finding(
        "hidden_state_not_detached",
        Severity.CRITICAL,
        f"{what} from one training step to the next with its graph: backward goes into the steps before"
        + (" and raises" if crashed else ""),
        step=first["step"],
        source=line or evidence.source(first["source_id"]),
        evidence={
            **({"state": name} if name else {}),
            **_carried_numbers(facts),
            "backward_line": evidence.source(first["source_id"]) or "unknown",
            **({"error": error_of(evidence)[:160]} if crashed else {}),
        },
        confidence=0.96 if name or not crashed else 0.88,
        inference="the state should enter the next step as a plain value",
    )


def _growing(evidence: Evidence) -> list[Fact]:
    """Several backwards per update, each going through the whole chain before it."""
    facts = [fact for fact in evidence.facts("graph_again") if fact["through_pass"] and fact["new_passes"]]
    old = [fact["old_nodes"] for fact in facts]
    return facts if len(old) >= 4 and all(later > before for before, later in pairwise(old)) else []


def _call_line(evidence: Evidence) -> str | None:
    """The call of the model that takes the state: where a name is both given and taken."""
    rows = evidence.of_call(Call.PASS)
    for source in dict.fromkeys(rows["source"].tolist()):
        line = evidence.source(source)
        if _carried_name(text_at(evidence, line)) is not None:
            return line
    return evidence.line_of(Call.PASS)


def _carried_name(text: str) -> str | None:
    """`out, h = net(x, h)` -> h"""
    left, equals, right = text.partition("=")
    if not equals:
        return None
    given = set(_NAME.findall(right.partition("(")[2]))
    return next((name for name in _NAME.findall(left) if name in given and name != "self"), None)
