"""From evidence to a judgement: every detector and cause is asked, consequences are put under what caused them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from neuraldbg.analysis.catalogue import Entry, catalogue
from neuraldbg.analysis.evidence import Evidence, Thresholds
from neuraldbg.analysis.fixes import cures
from neuraldbg.analysis.fixes.neural_files import is_neural, neural_fixes
from neuraldbg.analysis.onsets import onsets
from neuraldbg.analysis.other_ranks import NOT_FINITE, first_not_finite
from neuraldbg.records import Diagnosis, Finding, Fix, RunInfo, Severity

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

MOST_OF_ONE_KIND = 3
FOCUS = {  # what --gradients, --dead-neurons and --anomalies restrict a run to
    "gradients": frozenset(
        {"vanishing_gradient", "exploding_gradient", "zero_gradient", "missing_gradient", "nan_gradient"}
    ),
    "dead_neurons": frozenset({"dead_units", "saturated_units", "constant_output"}),
    "anomalies": frozenset(
        {
            "nan_loss",
            "inf_loss",
            "nan_gradient",
            "nan_activation",
            "exploding_activation",
            "exploding_gradient",
            "loss_spike",
            "diverging_loss",
            "oscillating_loss",
            "update_ratio_too_high",
        }
    ),
}
ABOUT = {  # causes that are such a subject themselves; others belong to it where they led to one of its symptoms
    "gradients": frozenset(
        {
            "backward_missing",
            "detached_graph",
            "fp16_underflow",
            "gradient_accumulation_not_scaled",
            "gradient_clip_misuse",
            "missing_gradient_clipping",
            "missing_zero_grad",
            "no_grad_in_training",
            "saturating_activation",
            "step_order_wrong",
            "undefined_gradient_at_zero",
        }
    ),
    "dead_neurons": frozenset({"saturating_activation"}),
    "anomalies": frozenset(
        {
            "data_outlier_batch",
            "division_by_zero",
            "exp_overflow",
            "fp16_overflow",
            "fully_masked_attention",
            "learning_rate_too_high",
            "log_of_zero",
            "nan_in_input",
            "undefined_gradient_at_zero",
        }
    ),
}
READ_ON_HOST = frozenset(
    {
        "all_labels_masked",
        "bad_init",
        "batchnorm_stats_stale",
        "corrupted_labels",
        "dead_units",
        "ema_not_tracking",
        "fp16_overflow",
        "fp16_underflow",
        "frozen_state_still_changes",
        "label_shuffle_mismatch",
        "missing_normalisation",
        "saturating_activation",
        "stale_parameters_in_optimizer",
        "update_not_applied",
        "weight_tying_lost",
    }
)
RAN_AWAY = frozenset(
    {"nan_loss", "inf_loss", "nan_gradient", "diverging_loss", "exploding_gradient", "exploding_activation"}
)
NOT_YET = frozenset(  # conclude from what has not happened: the end of a run proves them, not its first epoch
    {
        "batchnorm_stats_stale",
        "ema_not_tracking",
        "insufficient_training",
        "missing_no_grad_in_eval",
        "optimizer_step_missing",
        "parameters_not_updating",
        "scheduler_misuse",
    }
)
LOUD = (Severity.WARNING, Severity.CRITICAL)
_WEIGHT = {Severity.CRITICAL: 2, Severity.WARNING: 1, Severity.INFO: 0}


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was found, most likely cause first, and what could not be looked at."""

    diagnoses: tuple[Diagnosis, ...]
    checked: int  # ids that were asked
    unchecked: dict[str, str]  # id -> why it could not be decided
    failed: dict[str, str]  # id -> error of its finder: a bug of ours or of a plug-in, never of the user

    @property
    def loud(self) -> tuple[Diagnosis, ...]:
        return tuple(one for one in self.diagnoses if one.finding.severity in LOUD)


def diagnose(
    trace: Trace,
    thresholds: Thresholds | None = None,
    *,
    focus: Iterable[str] | None = None,
    ongoing: bool = False,
) -> Judgement:
    """The same trace always gives the same judgement. `focus` names groups of FOCUS; None is what the run was started
    with. Of an `ongoing` run nothing is concluded from what has not happened yet."""
    evidence = Evidence(trace, thresholds)
    entries = catalogue()
    failed: dict[str, str] = {}
    groups = focus_of(trace.run) if focus is None else tuple(focus)
    wanted = in_focus(entries, groups)
    wanted = [entry for entry in wanted if not (ongoing and entry.id in NOT_YET)]
    found = [finding for entry in wanted for finding in _ask(entry, evidence, failed)]
    found = _first_seen_elsewhere(evidence, wanted, found, failed)
    _not_read(evidence, {one.kind for one in found})
    causes = [one for one in found if entries[one.kind].sort == "cause"]
    symptoms = [one for one in found if entries[one.kind].sort == "symptom"]
    kept, under = settle(causes, entries)
    cure = _Curing(evidence, failed)
    diagnoses = [_in_place(one, entries, under.get(id(one), []), symptoms, cure) for one in kept]
    diagnoses += [Diagnosis(one, (), cure.fixes(one)) for one in _loudness(symptoms, kept, entries)]
    diagnoses = [one for one in diagnoses if _belongs(one, groups)]
    diagnoses.sort(key=lambda one: _order(one.finding, entries))
    return Judgement(tuple(diagnoses), len(wanted), dict(evidence.unchecked), failed)


def focus_of(run: RunInfo) -> tuple[str, ...]:
    """The groups that a run was restricted to when it was started; none is everything."""
    return tuple(group for group in run.settings.get("focus") or () if group in FOCUS)


def _not_read(evidence: Evidence, found: set[str]) -> None:
    """Of a run on a device nobody may call healthy what was never looked at."""
    if evidence.fact("on_device") is not None:
        for kind in READ_ON_HOST - found:
            evidence.cannot(kind, "it needs values that are on the GPU, which is never waited for")


def in_focus(entries: dict[str, Entry], focus: Iterable[str]) -> list[Entry]:
    """All entries; with a focus what its groups are about and the causes that may lead to one of their symptoms."""
    kinds = _kinds_of(focus)
    return [one for one in entries.values() if not kinds or one.id in kinds or one.explains & kinds]


def _belongs(one: Diagnosis, focus: Iterable[str]) -> bool:
    """Whether a diagnosis, or what it led to in this run, is a subject of the focus."""
    kinds = _kinds_of(focus)
    return not kinds or bool(kinds & {one.finding.kind, *(each.kind for each in one.chain)})


def _kinds_of(focus: Iterable[str]) -> frozenset[str]:
    groups = [group for group in focus if group in FOCUS]
    return frozenset[str]().union(*(FOCUS[group] | ABOUT[group] for group in groups))


def _ask(entry: Entry, evidence: Evidence, failed: dict[str, str]) -> list[Finding]:
    """A finder that fails is left out and named: the others still have their say."""
    try:
        return list(entry.find(evidence))[:MOST_OF_ONE_KIND]
    except Exception as error:  # noqa: BLE001  named in the judgement
        failed[entry.id] = f"{type(error).__name__}: {error}"
        return []


def _first_seen_elsewhere(
    evidence: Evidence, wanted: list[Entry], found: list[Finding], failed: dict[str, str]
) -> list[Finding]:
    """A NaN that another rank saw first is explained from there: this one was only sent it."""
    other = first_not_finite(evidence)
    if other is None:
        return found
    about = [entry for entry in wanted if entry.group == "num" or entry.id in NOT_FINITE]
    there = Evidence(evidence.trace, evidence.thresholds, rank=other.folder)
    told = [one for entry in about for one in _ask(entry, there, failed)]
    if not told:
        return found
    kinds = {entry.id for entry in about}
    kept = [one for one in found if one.kind not in kinds]
    return kept + [replace(one, rank=other.rank, summary=f"rank {other.rank}: {one.summary}") for one in told]


def settle(causes: Iterable[Finding], entries: dict[str, Entry]) -> tuple[list[Finding], dict[int, list[Finding]]]:
    """Strongest first; what a kept cause explains is put under it, what it excludes is dropped."""
    kept: list[Finding] = []
    under: dict[int, list[Finding]] = {}
    waiting = sorted(causes, key=lambda one: _order(one, entries))
    explained: dict[int, Finding] = {}
    for one in waiting:
        parent = next((other for other in waiting if other is not one and _explains(other, one, entries)), None)
        if parent is not None:
            explained[id(one)] = parent
    for one in waiting:
        if id(one) in explained:
            under.setdefault(id(_top(one, explained)), []).append(one)
        elif not any(_exclude(one, other, entries) for other in kept):
            kept.append(one)
    return kept, under


def _top(one: Finding, explained: dict[int, Finding]) -> Finding:
    seen: set[int] = set()
    while id(one) in explained and id(one) not in seen:
        seen.add(id(one))
        one = explained[id(one)]
    return one


def _explains(parent: Finding, child: Finding, entries: dict[str, Entry]) -> bool:
    """Only a loud cause explains another away; of two that explain each other the stronger one does."""
    if parent.severity not in LOUD or child.kind not in entries[parent.kind].explains:
        return False
    mutual = parent.kind in entries[child.kind].explains and child.severity in LOUD
    return not mutual or _order(parent, entries) < _order(child, entries)


def _exclude(one: Finding, other: Finding, entries: dict[str, Entry]) -> bool:
    return one.kind in entries[other.kind].excludes or other.kind in entries[one.kind].excludes


def _in_place(
    one: Finding, entries: dict[str, Entry], under: list[Finding], symptoms: list[Finding], cure: _Curing
) -> Diagnosis:
    """A cause with what it led to: consequences that were found, earliest first."""
    explains = entries[one.kind].explains
    led_to = [*under, *(symptom for symptom in symptoms if symptom.kind in explains)]
    chain = sorted(led_to, key=lambda each: (each.step if each.step is not None else -1, each.kind))
    if one.severity is Severity.WARNING and any(each.severity is Severity.CRITICAL for each in chain):
        one = replace(one, severity=Severity.CRITICAL)  # a cause is as grave as what it led to
    return Diagnosis(_with_order(one, chain, cure.evidence), tuple(chain), cure.fixes(one))


def _with_order(one: Finding, chain: list[Finding], evidence: Evidence) -> Finding:
    """Where values ran away: which of update, gradient, activation and loss did so first."""
    if not RAN_AWAY & {each.kind for each in chain}:
        return one
    order = evidence.once("onsets", lambda: onsets(evidence))
    if len(order) < 2:
        return one
    told = "first out of its range: " + ", then ".join(f"{each.quantity} (step {each.step})" for each in order)
    return replace(one, inference=f"{one.inference.rstrip('.')}; {told}" if one.inference else told)


@dataclass(frozen=True)
class _Curing:
    evidence: Evidence
    failed: dict[str, str]

    def fixes(self, one: Finding) -> tuple[Fix, ...]:
        """A cure that fails costs its patch, never the diagnosis."""
        entry = catalogue()[one.kind]
        make = cures().get(one.kind)
        try:
            of_file = is_neural(one, self.evidence)
            made = list(neural_fixes(one, self.evidence)) if of_file else []
            made += [] if make is None or of_file else list(make(one, self.evidence))
        except Exception as error:  # noqa: BLE001  named in the judgement
            self.failed[f"cure of {one.kind}"] = f"{type(error).__name__}: {error}"
            made = []
        words = entry.sections.get("Usual cures")
        if words and entry.sort == "cause":
            made.append(Fix(sentence(words), auto=entry.auto or "D"))
        return tuple(made)


def sentence(words: str) -> str:
    """Begins with a capital letter, unless it begins with code: `model.train()`, `torch.no_grad()`, `log_softmax`."""
    first = words.split(maxsplit=1)[0].rstrip(",;:")
    return words[0].upper() + words[1:] if first.replace("-", "").isalpha() else words


def _loudness(symptoms: list[Finding], causes: list[Finding], entries: dict[str, Entry]) -> list[Finding]:
    """A curve by itself is information; beside a cause that explains it, it is part of what is wrong."""
    loud = frozenset[str]().union(*(entries[one.kind].explains for one in causes if one.severity in LOUD))
    return [
        replace(one, severity=Severity.WARNING) if one.kind in loud and one.severity is Severity.INFO else one
        for one in symptoms
    ]


def _order(one: Finding, entries: dict[str, Entry]) -> tuple[bool, bool, float, int, int, str]:
    """Loud before quiet, causes before symptoms, sure before unsure, grave before mild, early before late."""
    return (
        one.severity not in LOUD,
        entries[one.kind].sort != "cause",
        -(one.confidence if one.confidence is not None else 0.5),
        -_WEIGHT[one.severity],
        one.step if one.step is not None else 0,
        one.kind,
    )
