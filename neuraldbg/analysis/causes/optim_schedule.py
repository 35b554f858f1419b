"""Learning-rate schedules that run at the wrong pace, or not at all."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.optim_rate import SLOW
from neuraldbg.analysis.evidence import Columns, Evidence
from neuraldbg.records import Call, Finding, Severity

FEW = 20  # updates: shorter runs say nothing about a schedule
NEARLY_NOTHING = 0.01  # of the highest rate
EARLY = 0.2  # of the run
RARELY = 0.2  # scheduler steps per update: once an epoch, not once a batch
SAME_SHAPE = 0.02  # of the length that each rate by itself tells
FAR_OFF = 4.0  # times the scheduler steps of the run
RESTARTING = ("CosineAnnealingWarmRestarts", "CyclicLR", "OneCycleLR")
LENGTHS = ("total_steps", "T_max", "total_iters")
Fact = dict[str, Any]


@cause(
    "scheduler_misuse",
    group="optim",
    auto="S",
    explains=(*SLOW, "learning_rate_too_low", "learning_rate_too_high", "insufficient_training", "oscillating_loss"),
    excludes=(),
)
def scheduler_misuse(evidence: Evidence) -> Iterator[Finding]:
    """The schedule is stepped at the wrong pace, never, or before the optimizer.

    Finds: a scheduler that is made and never stepped; one meant for epochs that is stepped after every batch, so that
    its rate is used up (or swings) within the first epoch; one planned over all updates that is stepped once an epoch,
    or whose warm-up in updates is stepped so and never ends; one that steps before the first update.
    Why it matters: most updates run at a rate that nobody chose: close to nothing, or that of the first warm-up step.
    Decides by: the schedulers made, their settings, their steps beside those of the optimizer, and the rates used.
    Usual cures: move scheduler.step() to the end of the epoch (or of the batch); set its length in the same unit.
    """
    for site in dict.fromkeys(fact["optimizer"] for fact in evidence.facts("scheduler")):
        made = [fact for fact in evidence.facts("scheduler") if fact["optimizer"] == site]
        updates, taken = evidence.of_call(Call.STEP, site=site), _taken(evidence, site)
        if len(updates["step"]) < FEW:
            continue
        for judge in (_never, _used_up, _swings, _too_slow, _still_warming, _too_early):
            finding = judge(evidence, made, updates, taken)
            if finding is not None:
                yield finding
                return


def _taken(evidence: Evidence, site: int) -> Columns:
    """Steps of the schedulers of an optimizer; with one optimizer also those noted before it had a site."""
    only = len({fact["site"] for fact in evidence.facts("optimizer")}) == 1
    rows = evidence.of_call(Call.SCHEDULER)
    chosen = (rows["site"] == site) | ((rows["site"] == -1) & only)
    return {name: column[chosen] for name, column in rows.items()}


def _never(evidence: Evidence, made: list[Fact], updates: Columns, taken: Columns) -> Finding | None:
    fine = evidence.run.error is None and not evidence.run.exit_code
    constant = float(np.ptp(updates["value"])) == 0.0
    if len(taken["step"]) or not fine or not constant or any(fact["class"] == "SWALR" for fact in made):
        return None
    fact = made[-1]
    return Finding(
        "scheduler_misuse",
        Severity.WARNING,
        f"{_name(evidence, fact)} is made and never stepped: the rate stays at {updates['value'][0]:.3g} throughout",
        step=int(updates["step"][0]),
        source=evidence.line_of(Call.STEP) or fact.get("source"),
        evidence={"scheduler": fact["class"], "scheduler_steps": 0, "updates": len(updates["step"])},
        confidence=0.93,
        inference="the rates that were planned were never used",
    )


def _each_update(updates: Columns, taken: Columns) -> bool:
    return len(taken["step"]) >= 0.8 * len(updates["step"])


def _used_up(evidence: Evidence, made: list[Fact], updates: Columns, taken: Columns) -> Finding | None:
    rates = updates["value"]
    highest = float(np.nanmax(rates)) if np.isfinite(rates).any() else 0.0
    if not _each_update(updates, taken) or highest <= 0:
        return None
    nothing = rates < NEARLY_NOTHING * highest
    first = int(nothing.argmax()) if nothing.any() else len(rates)
    epoch = updates_per_epoch(evidence)
    soon = first < epoch if epoch is not None and epoch < len(rates) else first < EARLY * len(rates)
    if nothing.mean() < 0.5 or not soon:
        return None
    fall = int((rates[int(np.nanargmax(rates)) :] < 0.999 * highest).argmax()) + int(np.nanargmax(rates))
    return _paced(evidence, made[-1], updates, taken, (fall, "is used up", float(nothing.mean())))


def _paced(evidence: Evidence, fact: Fact, updates: Columns, taken: Columns, what: tuple[int, str, float]) -> Finding:
    step, verb, share = what
    epoch = updates_per_epoch(evidence)
    return Finding(
        "scheduler_misuse",
        Severity.CRITICAL if share > 0.7 else Severity.WARNING,
        f"{_name(evidence, fact)} is stepped after every batch and {verb} long before the training is over",
        step=int(updates["step"][step]),
        source=step_line(evidence, fact) or evidence.line_of(Call.STEP),
        evidence={
            "scheduler": fact["class"],
            "scheduler_steps": len(taken["step"]),
            "updates": len(updates["step"]),
            "share_of_updates_at_no_rate": share,
            **({} if epoch is None else {"updates_per_epoch": float(epoch)}),
            **{name: float(value) for name, value in _numbers(fact).items()},
        },
        confidence=0.93,
        inference="its settings count epochs, its steps count batches",
    )


def _numbers(fact: Fact) -> dict[str, float]:
    wanted = ("step_size", "T_max", "gamma", "total_steps", "total_iters")
    return {name: fact["settings"][name] for name in wanted if isinstance(fact["settings"].get(name), int | float)}


def _swings(evidence: Evidence, made: list[Fact], updates: Columns, taken: Columns) -> Finding | None:
    """CosineAnnealingLR past its T_max goes up again: with a T_max of epochs, many times an epoch."""
    fact = made[-1]
    length, count = fact["settings"].get("T_max"), len(updates["step"])
    if fact["class"] in RESTARTING or not isinstance(length, int | float) or not _each_update(updates, taken):
        return None
    epoch = updates_per_epoch(evidence)
    if length * 4 > count or (epoch is not None and length * 2 > epoch) or (epoch is None and length * 8 > count):
        return None
    turns = _turns(updates["value"])
    if turns < 4:
        return None
    return _paced(evidence, fact, updates, taken, (min(int(length), count - 1), f"swings {turns} times", 0.0))


def _turns(rates: NDArray[np.float64]) -> int:
    """How often a series turns from falling to rising or back."""
    signs = np.sign(np.diff(rates))
    signs = signs[signs != 0]
    return int((signs[1:] != signs[:-1]).sum())


def _too_slow(evidence: Evidence, made: list[Fact], updates: Columns, taken: Columns) -> Finding | None:
    """Planned over as many steps as the run has updates, and stepped far less often."""
    count, steps = len(updates["step"]), len(taken["step"])
    lengths = [(fact, _planned(fact)) for fact in made]
    if len(made) > 1:  # a warm-up and what follows it, one after the other
        lengths.append((made[-1], sum(length or 0 for _, length in lengths)))
    if not any(length for _, length in lengths):  # a function of the user's own: its rates tell
        lengths.append((made[-1], _length_of_shape(_levels(updates["value"]))))
    for fact, planned in lengths:
        if not planned or not 0.8 <= planned / count <= 1.25 or steps > RARELY * count:
            continue
        return Finding(
            "scheduler_misuse",
            Severity.WARNING,
            f"{_name(evidence, fact)} is planned over {planned:.0f} steps and takes {steps}: it counts batches",
            step=int(updates["step"][0]),
            source=step_line(evidence, fact) or evidence.line_of(Call.STEP),
            evidence={
                "scheduler": fact["class"],
                "planned_steps": int(planned),
                "scheduler_steps": int(steps),
                "updates": int(count),
                "last_rate": float(updates["value"][-1]),
            },
            confidence=0.88,
            inference="the run ends where the schedule has hardly begun",
        )
    return None


def _planned(fact: Fact) -> float | None:
    found = next((fact["settings"][name] for name in LENGTHS if fact["settings"].get(name)), None)
    return float(found) if isinstance(found, int | float) else None


def _levels(rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rates in turn, each once."""
    return np.concatenate([rates[:1], rates[1:][np.diff(rates) != 0]])


def _length_of_shape(levels: NDArray[np.float64]) -> float | None:
    """In how many steps a rate that falls along a line or a cosine would reach zero; None for other shapes."""
    if len(levels) < 4 or levels[0] <= 0 or not (np.diff(levels) < 0).all() or levels[-1] < 0:
        return None
    taken, left = np.arange(1, len(levels)), levels[1:] / levels[0]
    for ends in (taken / (1 - left), np.pi * taken / np.arccos(2 * left - 1)):
        if float(np.ptp(ends)) < SAME_SHAPE * float(ends[-1]):
            return float(ends[-1])
    return None


def _still_warming(evidence: Evidence, made: list[Fact], updates: Columns, taken: Columns) -> Finding | None:
    """A rate that rises from the first update to the last, far below the one it rises to, stepped once an epoch."""
    rates, count, steps = updates["value"], len(updates["step"]), len(taken["step"])
    base = max((rate for fact in made for rate in fact.get("base_rates") or [] if np.isfinite(rate)), default=0.0)
    levels = _levels(rates)
    if not 3 <= steps <= RARELY * count or len(levels) < max(3, steps - 1) or not (np.diff(levels) > 0).all():
        return None
    slope = float(np.median(np.diff(levels)))
    needed = steps + (base - float(rates[-1])) / slope
    if not FAR_OFF * steps <= needed <= count:
        return None
    fact = made[-1]
    return Finding(
        "scheduler_misuse",
        Severity.WARNING,
        f"{_name(evidence, fact)} is stepped {steps} times in {count} updates and ends deep in its warm-up: it counts"
        " batches",
        step=int(updates["step"][0]),
        source=step_line(evidence, fact) or evidence.line_of(Call.STEP),
        evidence={
            "scheduler": fact["class"],
            "scheduler_steps": int(steps),
            "updates": int(count),
            "highest_rate_used": float(rates.max()),
            "full_rate": float(base),
            "steps_to_full_rate": int(needed),
        },
        confidence=0.86,
        inference=f"the full rate would come after {needed:.0f} steps: fewer than updates, far more than epochs",
    )


def _too_early(evidence: Evidence, made: list[Fact], updates: Columns, taken: Columns) -> Finding | None:
    early = int((taken["seq"] < updates["seq"][0]).sum())
    if early != 1 or evidence.count(Call.STEP_SKIPPED) or evidence.count(Call.LOAD_STATE) or len(taken["seq"]) < 2:
        return None
    return Finding(
        "scheduler_misuse",
        Severity.WARNING,
        f"{_name(evidence, made[-1])} steps before the optimizer does: the first rate of the schedule is skipped",
        step=int(updates["step"][0]),
        source=step_line(evidence, made[-1]),
        evidence={"scheduler": made[-1]["class"], "scheduler_steps_before_first_update": int(early)},
        confidence=0.72,
        inference="every update runs at the rate of the next one",
    )


def updates_per_epoch(evidence: Evidence) -> float | None:
    """From the loader that hands out most batches; None when there is none."""
    return evidence.once("updates per epoch", lambda: _updates_per_epoch(evidence))


def _updates_per_epoch(evidence: Evidence) -> float | None:
    sites, counts = np.unique(evidence.of_call(Call.BATCH)["site"], return_counts=True)
    loaders = {fact["site"]: fact for fact in evidence.facts("loader")}
    known = [(count, site) for site, count in zip(sites.tolist(), counts.tolist(), strict=True) if site in loaders]
    if not known:
        return None
    fact = loaders[max(known)[1]]
    if not fact.get("length") or not fact.get("batch_size"):
        return None
    accumulation = evidence.fact("accumulation")
    backwards = 1 if accumulation is None else int(accumulation["backwards_per_update"])
    return float(math.ceil(fact["length"] / fact["batch_size"]) / backwards)


def _variable(evidence: Evidence, fact: Fact) -> tuple[str, str] | None:
    """File and name of the variable a scheduler is kept in, as the line that makes it says."""
    file, _, line = (fact.get("source") or "").rpartition(":")
    text = evidence.text(file)
    if text is None or not line.isdigit():
        return None
    lines = text.splitlines()
    for number in range(min(int(line), len(lines)), max(0, int(line) - 8), -1):
        found = re.match(r"\s*(?:self\.)?([A-Za-z_]\w*)\s*(?::[^=]+)?=\s*(?!=)", lines[number - 1])
        if found:
            return file, found.group(1)
    return None


def step_line(evidence: Evidence, fact: Fact) -> str | None:
    """The line that steps a scheduler: the ledger does not know it, the text does."""
    known = _variable(evidence, fact)
    if known is None:
        return None
    file, name = known
    text = evidence.text(file) or ""
    pattern = re.compile(rf"\b{re.escape(name)}\.step\(|\b\w*sched\w*\.step\(", re.IGNORECASE)
    found = [number for number, line in enumerate(text.splitlines(), 1) if pattern.search(line)]
    return f"{file}:{found[0]}" if found else None


def _name(evidence: Evidence, fact: Fact) -> str:
    known = _variable(evidence, fact)
    kind: str = fact["class"]
    return kind if known is None else f"{known[1]} ({kind})"
