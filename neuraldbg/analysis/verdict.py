"""The one sentence about a run: what is wrong and where, or that nothing is, or what would decide it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.diagnose import Judgement
from neuraldbg.analysis.layers import LayerSummary
from neuraldbg.errors import ABORTED
from neuraldbg.records import Finding, RunInfo, Severity

ENOUGH_UPDATES = 10  # before which a run without findings is not called healthy
# no run with one of these is called healthy
DOUBTFUL = ("no_learning", "diverging_loss", "parameters_not_updating", "label_shuffle_mismatch")
A_PART = 0.1  # of the weights: less may well be a head that nobody uses


@dataclass(frozen=True, slots=True)
class Verdict:
    state: str  # healthy, warning, critical or undecided
    headline: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What a headline may be made of."""

    run: RunInfo
    ended: bool
    alive: bool | None
    updates: int
    backwards: int
    passes: int
    losses: NDArray[np.float64] | None
    loss_steps: NDArray[np.int64] | None
    models_seen: int
    stray_models: Sequence[str]
    layers: Sequence[LayerSummary]
    focus: tuple[str, ...] = ()  # the only subjects that were looked at
    mixed_losses: bool = False  # of several networks: the first and the last are not of one kind


def judge(facts: Facts, judgement: Judgement) -> Verdict:
    """The first finding above info decides, of several the first that is critical; without one, a run that trained and
    was seen well enough is healthy."""
    loud = judgement.loud
    if loud:
        grave = [one.finding for one in loud if one.finding.severity is Severity.CRITICAL]
        told = (grave or [loud[0].finding])[0]
        return Verdict(told.severity.value, headline(told))
    ending = _ending(facts)
    trained = _trained(facts)
    known = _subject(facts.focus) + ", ".join([trained, *_details(facts)])
    if not (ending or facts.models_seen or facts.updates or facts.backwards):
        holds = "this run holds what was told by hand" if facts.layers else "nothing of this script could be watched"
        return Verdict("undecided", f"no model was seen: {holds}")
    if not ending and not facts.updates and not facts.backwards:
        return Verdict("undecided", f"{trained}: this script did not train")
    missing = _missing(facts, ending, judgement)
    if missing is None:
        return Verdict("healthy", f"{known}; {_checked(judgement)}")
    return Verdict("undecided", "; ".join(part for part in (ending, known, missing) if part))


def _subject(focus: Sequence[str]) -> str:
    return f"as far as {' and '.join(group.replace('_', ' ') for group in focus)} go: " if focus else ""


def headline(finding: Finding) -> str:
    """What is wrong, since when, where: `... (since step 12, layer fc2, train.py:31)`."""
    since = f"since step {finding.step:,}" if finding.step is not None else None
    layer = f"layer {finding.layer}" if finding.layer and finding.layer not in finding.summary else None
    source = finding.source if finding.source and finding.source not in finding.summary else None
    place = ", ".join(part for part in (since, layer, source) if part)
    return f"{finding.summary.rstrip('.')} ({place})" if place else finding.summary.rstrip(".")


def _missing(facts: Facts, ending: str | None, judgement: Judgement) -> str | None:
    """What would have to be known before the run may be called healthy; None when it may."""
    if facts.alive and not facts.ended:
        return "nothing wrong so far"
    if ending:
        return "nothing else is known to be wrong"
    if facts.updates < ENOUGH_UPDATES:
        return f"too few updates to judge ({ENOUGH_UPDATES} decide)"
    doubt = next((one.finding for one in judgement.diagnoses if _doubtful(one.finding)), None)
    if doubt is not None and not facts.mixed_losses:
        return f"{doubt.summary}, and no cause of it could be proven; {_checked(judgement)}"
    if judgement.failed:
        return f"{count(len(judgement.failed), 'check')} failed: {', '.join(sorted(judgement.failed)[:3])}"
    return None


def _doubtful(finding: Finding) -> bool:
    share = finding.evidence.get("share_of_weights")
    return finding.kind in DOUBTFUL and not (isinstance(share, float) and share < A_PART)


def _checked(judgement: Judgement) -> str:
    decided = judgement.checked - len(judgement.unchecked)
    told = f"{decided} of {count(judgement.checked, 'check')} found nothing"
    if judgement.unchecked:
        told += f"; {count(len(judgement.unchecked), 'check')} could not be made"
    return told


def _ending(facts: Facts) -> str | None:
    run = facts.run
    if not facts.ended:
        if facts.alive:
            return "still running"
        return (
            "the process was killed before it ended"
            if facts.alive is False
            else "no end was recorded (killed, or still running)"
        )
    if run.error:
        if run.interrupted:
            return "ended from the debugger" if ABORTED in run.error else "interrupted from the keyboard"
        return f"the script stopped with {_short(run.error)}"
    if run.exit_code:
        return f"the script exited with code {run.exit_code}"
    return None


def _short(error: str, limit: int = 160) -> str:
    line = " ".join(error.split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def _trained(facts: Facts) -> str:
    if facts.updates:
        return count(facts.updates, "update")
    if facts.backwards:
        return f"{count(facts.backwards, 'backward pass')} and no update seen"
    if not facts.models_seen:
        return "no model was seen"
    return f"{count(facts.passes, 'forward pass')}, no backward and no update"


def count(number: int, what: str) -> str:
    plural = f"{what}es" if what.endswith("s") else f"{what}s"
    return f"{number:,} {what if number == 1 else plural}"


def _details(facts: Facts) -> list[str]:
    if not (facts.updates or facts.backwards):
        return []
    found = [] if facts.models_seen else ["no model was seen"]
    losses = facts.losses
    if losses is not None and len(losses) and not facts.mixed_losses:
        found.append(
            f"loss {number(losses[0])} -> {number(losses[-1])}" if len(losses) > 1 else f"loss {number(losses[0])}"
        )
    found.append(_not_finite(facts))
    found += [f"model {name!r} was trained on but is in no optimizer" for name in facts.stray_models]
    return found


def _not_finite(facts: Facts) -> str:
    """Where the first NaN or Inf was seen: the layer where one is known, else the loss."""
    bad_layers = [layer for layer in facts.layers if layer.first_bad_step is not None]
    first = min(bad_layers, key=lambda layer: (layer.first_bad_step or 0, layer.first_bad_seq or 0), default=None)
    bad_loss = _first_bad_loss(facts)
    if first is not None and (bad_loss is None or (first.first_bad_step or 0) <= bad_loss):
        kind = (first.bad_kind or "").replace("_", " ")
        return f"first {first.bad_word} at step {first.first_bad_step} in {first.path} ({kind})"
    if bad_loss is not None:
        return f"loss not finite from step {bad_loss}"
    return "no NaN or Inf seen"


def _first_bad_loss(facts: Facts) -> int | None:
    if facts.losses is None or facts.loss_steps is None:
        return None
    bad = np.flatnonzero(~np.isfinite(facts.losses))
    return int(facts.loss_steps[bad[0]]) if len(bad) else None


def number(value: float) -> str:
    """A loss as a person writes it: three significant digits, no exponent between 0.001 and 10,000."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Inf" if value > 0 else "-Inf"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e4:
        return f"{value:#.3g}" if abs(value) < 99.95 else f"{value:.0f}"
    return f"{value:.2e}"
