"""How failures hang together: the events of a run, what came with what, the chain from the first one, as graph and
package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from neuraldbg.analysis.findings import plain
from neuraldbg.analysis.inspection import gradient_health
from neuraldbg.analysis.layers import summarise_layers
from neuraldbg.analysis.results import CausalHypothesis, Result
from neuraldbg.records import Diagnosis, Finding

if TYPE_CHECKING:
    from neuraldbg.analysis.diagnose import Judgement
    from neuraldbg.trace import Trace

MOST_EVENTS = 1_000


class EventType(Enum):
    GRADIENT_HEALTH_TRANSITION = "gradient_health_transition"
    ACTIVATION_REGIME_SHIFT = "activation_regime_shift"
    OPTIMIZER_INSTABILITY = "optimizer_instability"
    DATA_ANOMALY = "data_anomaly"


@dataclass(frozen=True, eq=False)
class SemanticEvent(Result):
    """Something went from one state to another: a layer's gradients, its activations, the loss, the data."""

    event_type: str
    layer_name: str | None
    step: int
    from_state: str
    to_state: str
    confidence: float | None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True, eq=False)
class Coupling(Result):
    """Two failures that began within a few steps of each other; the first is not later than the second."""

    first: str
    second: str
    first_step: int
    second_step: int
    layers: tuple[str, ...] = ()


# A finding's kind -> the sort of event it is, and the states it leads from and to.
_STATES = {
    **{
        kind: (EventType.GRADIENT_HEALTH_TRANSITION, "healthy", state)
        for kind, state in (
            ("vanishing_gradient", "vanishing"),
            ("zero_gradient", "vanishing"),
            ("missing_gradient", "vanishing"),
            ("exploding_gradient", "exploding"),
            ("nan_gradient", "exploding"),
        )
    },
    **{
        kind: (EventType.ACTIVATION_REGIME_SHIFT, "normal", state)
        for kind, state in (
            ("dead_units", "dead"),
            ("saturated_units", "saturated"),
            ("exploding_activation", "anomalous"),
            ("nan_activation", "anomalous"),
            ("constant_output", "anomalous"),
        )
    },
    **{
        kind: (EventType.OPTIMIZER_INSTABILITY, "stable", state)
        for kind, state in (
            ("loss_spike", "loss_spike"),
            ("diverging_loss", "diverging"),
            ("oscillating_loss", "diverging"),
            ("nan_loss", "diverging"),
            ("inf_loss", "diverging"),
            ("loss_plateau", "loss_plateau"),
            ("no_learning", "loss_plateau"),
        )
    },
    **{
        kind: (EventType.DATA_ANOMALY, "normal", state)
        for kind, state in (
            ("nan_in_input", "nan_detected"),
            ("data_outlier_batch", "distribution_shift"),
            ("unnormalised_input", "distribution_shift"),
        )
    },
}
FAILURE_OF_STATE = {
    ("gradient_health_transition", "vanishing"): "vanishing_gradients",
    ("gradient_health_transition", "exploding"): "exploding_gradients",
    ("activation_regime_shift", "dead"): "dead_neurons",
    ("activation_regime_shift", "saturated"): "saturated_activations",
    ("activation_regime_shift", "anomalous"): "exploding_gradients",
}


def failure_of(kind: str) -> str:
    """The older name of a failure that a finding belongs to: `vanishing_gradients`, ..., or the kind itself."""
    known = _STATES.get(kind)
    if known is None:
        return kind
    sort, _, state = known
    by_sort = {EventType.OPTIMIZER_INSTABILITY: "optimizer_instability", EventType.DATA_ANOMALY: "data_anomaly"}
    return by_sort.get(sort) or FAILURE_OF_STATE.get((sort.value, state), kind)


def events_of(trace: Trace, judgement: Judgement) -> list[SemanticEvent]:
    """Every change of state that was seen, earliest first. A run that is broken from the start has its events at its
    first step: there need not have been a healthy one."""
    found = [*_gradient_events(trace), *_activation_events(trace)]
    measured = {(event.event_type, event.layer_name) for event in found}
    told: set[tuple[str, str | None, str]] = set()  # a symptom stands by itself and in the chain of what caused it
    for one in _findings(judgement):
        event = _event(one)
        if event is None or (event.event_type, event.layer_name) in measured:
            continue
        if (event.event_type, event.layer_name, event.to_state) not in told:
            told.add((event.event_type, event.layer_name, event.to_state))
            found.append(event)
    return sorted(found, key=lambda event: (event.step, event.layer_name or ""))[:MOST_EVENTS]


def _findings(judgement: Judgement) -> Iterable[Finding]:
    for one in judgement.diagnoses:
        yield one.finding
        yield from one.chain


def _event(one: Finding) -> SemanticEvent | None:
    known = _STATES.get(one.kind)
    if known is None or one.step is None:
        return None
    sort, before, after = known
    metadata = {"kind": one.kind, "summary": one.summary, **{k: plain(v) for k, v in one.evidence.items()}}
    return _made(sort, one.layer, one.step, (before, after), metadata, one.confidence)


def _made(
    sort: EventType,
    layer: str | None,
    step: int,
    states: tuple[str, str],
    metadata: Mapping[str, Any],
    confidence: float | None = None,
) -> SemanticEvent:
    name = f"{sort.value}:{layer or ''}:{step}:{states[1]}"
    return SemanticEvent(sort.value, layer, step, *states, confidence, metadata, name)


def _gradient_events(trace: Trace) -> Iterable[SemanticEvent]:
    states = dict.fromkeys(("vanishing", "dead", "missing"), "vanishing")
    states |= {"exploding": "exploding", "nan": "exploding"}
    for name, layer in gradient_health(trace).layers.items():
        if layer.status in states and layer.first_bad_step is not None:
            metadata = {"status": layer.status, "norm": layer.norm, "trend": layer.trend}
            change = ("healthy", states[layer.status])
            yield _made(EventType.GRADIENT_HEALTH_TRANSITION, name, layer.first_bad_step, change, metadata)


def _activation_events(trace: Trace) -> Iterable[SemanticEvent]:
    for layer in summarise_layers(trace):
        if layer.first_bad_step is not None and layer.bad_kind == "activation":
            metadata = {"found": layer.bad_word}
            change = ("normal", "anomalous")
            yield _made(EventType.ACTIVATION_REGIME_SHIFT, layer.path, layer.first_bad_step, change, metadata)


# -- chains ------------------------------------------------------------------------------------------------------------


def hypotheses(diagnoses: Iterable[Diagnosis]) -> list[CausalHypothesis]:
    """Diagnoses as hypotheses, in the order given."""
    return [_hypothesis(one) for one in diagnoses]


def _hypothesis(one: Diagnosis) -> CausalHypothesis:
    finding = one.finding
    evidence = {"kind": finding.kind, "failure": failure_of(finding.kind), "step": finding.step, "layer": finding.layer}
    evidence |= {"source": finding.source, **{name: plain(value) for name, value in finding.evidence.items()}}
    return CausalHypothesis(finding.summary, finding.confidence, evidence, tuple(_links(one)))


def _links(one: Diagnosis) -> list[str]:
    return [link_text(each) for each in (one.finding, *one.chain)]


def link_text(each: Finding) -> str:
    place = f" in {each.layer}" if each.layer else ""
    when = "" if each.step is None else f" at step {each.step}"
    return f"{each.kind}{place}{when}"


def belongs_to(one: Diagnosis, failure: str) -> bool:
    """Whether a diagnosis is about a failure, itself or as what it led to."""
    kinds = {one.finding.kind, *(each.kind for each in one.chain)}
    return failure in kinds or failure in {failure_of(kind) for kind in kinds}


def coupled(events: Sequence[SemanticEvent], judgement: Judgement, *, window: int) -> list[Coupling]:
    """Failures of different sorts that began within `window` steps of each other: changes of state, the causes found
    and what they led to."""
    seen = [
        (event.step, FAILURE_OF_STATE.get((event.event_type, event.to_state), event.event_type), event.layer_name)
        for event in events
    ]
    for diagnosis in judgement.loud:
        found = (diagnosis.finding, *diagnosis.chain)
        seen += [(one.step, failure_of(one.kind), one.layer) for one in found if one.step is not None]
    first: dict[str, tuple[int, str | None]] = {}
    for step, name, layer in sorted(seen, key=lambda each: (each[0], each[1], each[2] or "")):
        first.setdefault(name, (step, layer))
    pairs = []
    named = sorted(first.items(), key=lambda item: (item[1][0], item[0]))
    for at, (name, (step, layer)) in enumerate(named):
        for other, (later, other_layer) in named[at + 1 :]:
            if later - step <= window:
                layers = tuple(dict.fromkeys(each for each in (layer, other_layer) if each))
                pairs.append(Coupling(name, other, step, later, layers))
    return pairs


# -- exports -----------------------------------------------------------------------------------------------------------


def mermaid(judgement: Judgement) -> str:
    """The causal graph in Mermaid's language: causes above, what they led to below."""
    lines = ["graph TD"]
    loud = judgement.loud
    told = {each.kind for one in loud for each in one.chain}
    roots = [one for one in loud if one.finding.kind not in told]
    if not roots:
        return "\n".join([*lines, '    healthy["nothing above info was found"]', ""])
    for at, one in enumerate(roots):
        lines.append(f'    c{at}["{_label(one.finding)}"]')
        previous = f"c{at}"
        for link, each in enumerate(one.chain):
            lines.append(f'    {previous} --> c{at}_{link}["{_label(each)}"]')
            previous = f"c{at}_{link}" if _later(each, one.chain, link) else f"c{at}"
    return "\n".join([*lines, ""])


def _later(each: Finding, chain: Sequence[Finding], at: int) -> bool:
    """Whether the next link began after this one: only then does an arrow lead from one to the other."""
    if at + 1 >= len(chain) or each.step is None:
        return False
    following = chain[at + 1].step
    return following is not None and following > each.step


_ENTITIES = str.maketrans({"#": "#35;", "<": "#lt;", ">": "#gt;", '"': "#quot;", "`": "#96;"})  # as Mermaid spells them


def _label(each: Finding) -> str:
    parts = [each.kind, *(part for part in (each.layer, each.source) if part)]
    parts += [f"step {each.step}"] if each.step is not None else []
    return "<br/>".join(part.translate(_ENTITIES) for part in parts)


def package(
    events: Sequence[SemanticEvent], judgement: Judgement, couplings: Sequence[Coupling], losses: Sequence[float]
) -> dict[str, Any]:
    """The package of the project's later editions, as plain JSON values."""
    first = min(events, key=lambda event: event.step, default=None)
    return {
        "events": [
            {
                "type": event.event_type,
                "layer": event.layer_name,
                "step": event.step,
                "from": event.from_state,
                "to": event.to_state,
                "confidence": event.confidence,
                "metadata": dict(event.metadata),
            }
            for event in events
        ],
        "hypotheses": [
            {
                "description": one.description,
                "confidence": one.confidence,
                "causal_chain": list(one.causal_chain),
            }
            for one in hypotheses(judgement.loud)
        ],
        "couplings": [one.to_dict() for one in couplings],
        "first_failure_layer": None if first is None else first.layer_name,
        "first_failure_step": None if first is None else first.step,
        "loss_history": list(losses),
    }
