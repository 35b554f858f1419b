"""The experiment: the script as it is, twice, then with one change at a time, until a cause is proved or none is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from neuraldbg.analysis.tried import OUTCOME
from neuraldbg.errors import NeuralDbgError
from neuraldbg.records import RunInfo
from neuraldbg.replay.candidates import PATCH, Candidate, candidates, pairs
from neuraldbg.replay.outcomes import Ending, effect, same
from neuraldbg.replay.running import OUTPUT, Bench, Limits, PatchDoesNotApply, last_words
from neuraldbg.replay.scratch import differences, look
from neuraldbg.trace.rundir import write_atomically

Tell = Callable[[str], None]
CHANCE = "two unchanged runs differ even with the same seed: only what holds against both is told"


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody wants to know of a run."""

    changes: tuple[str, ...] = ()  # to be tried whatever was found; none: what the findings suggest
    steps: int | None = None
    seconds: float = 300.0  # of one arm
    jobs: int = 1
    everything: bool = False  # go on after a cause is proved


@dataclass(slots=True)
class Arm:
    """One change that was tried, and what came of it."""

    candidate: Candidate
    ending: Ending
    verdict: str  # verified, helps, no_effect, harm
    note: str | None = None

    def to_dict(self, control: Ending) -> dict[str, Any]:
        return {
            "intervention": self.candidate.name,
            "change": list(self.candidate.changes) or PATCH,
            "cause": self.candidate.causes[0] if self.candidate.causes else None,
            "causes": list(self.candidate.causes),
            "verdict": self.verdict,
            "metric": {"name": "loss", "control": plain(control.final), "arm": plain(self.ending.final)},
            "updates": self.ending.updates,
            "patch": self.candidate.patch,
            "note": self.note,
        }


@dataclass(slots=True)
class Experiment:
    control: Ending
    arms: list[Arm] = field(default_factory=list)
    seeded: bool = False  # the script is not: its arms were
    others: list[Ending] = field(default_factory=list)  # of the control, where even with a seed two runs differ
    notes: list[str] = field(default_factory=list)

    @property
    def verified(self) -> list[Arm]:
        return [arm for arm in self.arms if arm.verdict == "verified"]

    def to_dict(self) -> dict[str, Any]:
        control = self.control
        return {
            "control": {
                "loss": plain(control.final),
                "start": plain(control.start),
                "updates": control.updates,
                "exit_code": control.exit_code,
                "seeded": self.seeded,
            },
            "arms": [arm.to_dict(control) for arm in self.arms],
            "notes": self.notes,
        }


class ControlFails(NeuralDbgError):
    """Unchanged, it does not even do what it did: nothing can be compared with it."""


def plain(value: float | None) -> float | str | None:
    """As JSON has it: what is not finite is a word."""
    return value if value is None or math.isfinite(value) else "inf" if value > 0 else str(value)


def experiment(
    run_dir: Path, run: RunInfo, findings: Iterable[Mapping[str, Any]], asked: Asked, tell: Tell
) -> Experiment:
    """Everything that is to be tried; the outcome is kept with the run."""
    bench = Bench(run, run_dir / "whatif", Limits(asked.steps, asked.seconds))
    before = look(bench.origin)
    controls, bench = _controls(bench, tell)
    control = controls[0]
    if control.exit_code not in (0, None) and run.exit_code == 0:
        said = last_words(bench.folder / "control" / OUTPUT)
        raise ControlFails(f"the script does not run again as it is (exit code {control.exit_code}): {said}")
    trial = _Trial(bench, Experiment(control, seeded=bench.seeded, others=controls[1:]), asked, tell)
    if asked.changes:
        trial.one_by_one([Candidate((), (text,)) for text in asked.changes])
    else:
        trial.causes(candidates(findings))
    found = trial.found
    found.notes += [CHANCE] if found.others else []
    found.notes += _touched(before, bench)
    write_atomically(run_dir / OUTCOME, json.dumps(found.to_dict(), indent=1))
    return found


def _controls(bench: Bench, tell: Tell) -> tuple[list[Ending], Bench]:
    """Twice the same: a script whose runs differ is given a seed, so that its arms can be compared."""
    nothing = Candidate((), ())
    tell("as it is")
    first = bench.arm("control", nothing)
    tell("as it is, once more")
    second = bench.arm("control-2", nothing)
    if same(first, second):
        return [first], bench
    seeded = replace(bench, seeded=True)
    tell("as it is, with a seed: two runs of it differ")
    first = seeded.arm("control", nothing)
    tell("as it is, with the seed once more")
    second = seeded.arm("control-2", nothing)
    return [first] if same(first, second) else [first, second], seeded


def _touched(before: dict[str, tuple[int, int]], bench: Bench) -> list[str]:
    changed = differences(before, look(bench.origin))
    return [f"changed in the working directory meanwhile: {', '.join(changed[:5])}"] if changed else []


class _Trial:
    def __init__(self, bench: Bench, found: Experiment, asked: Asked, tell: Tell) -> None:
        self.found, self._bench, self._asked, self._tell = found, bench, asked, tell

    def causes(self, groups: list[list[Candidate]]) -> None:
        """Cause by cause, the likeliest first. The first that is cured is proved; what cures after it only helps."""
        for group in groups:
            if self.found.verified and not self._asked.everything:
                return
            self._doses(group)
        if not self.found.verified:
            self._doses(pairs(groups))

    def _doses(self, group: list[Candidate]) -> None:
        """The patch by itself; of several doses the first that cures."""
        patches = [each for each in group if each.patch is not None]
        rest = [each for each in group if each.patch is None]
        self.one_by_one(patches)
        for at in range(0, len(rest), self._asked.jobs):
            self.one_by_one(rest[at : at + self._asked.jobs])
            if any(arm.verdict == "verified" and arm.candidate.changes for arm in self.found.arms):
                return

    def one_by_one(self, wanted: list[Candidate]) -> None:
        names = [f"arm-{len(self.found.arms) + at + 1:02d}" for at in range(len(wanted))]
        with ThreadPoolExecutor(max(self._asked.jobs, 1)) as pool:
            endings = list(pool.map(self._try, names, wanted))
        proved = {cause for arm in self.found.verified for cause in arm.candidate.causes}
        for name, candidate, ending in zip(names, wanted, endings, strict=True):
            if ending is None:
                continue
            verdict = self._verdict(candidate, ending, proved)
            self.found.arms.append(Arm(candidate, ending, verdict, self._note(name, ending)))

    def _note(self, name: str, ending: Ending) -> str | None:
        if ending.timed_out:
            return "ran out of time"
        return last_words(self._bench.folder / name / OUTPUT) if ending.exit_code != 0 else None

    def _try(self, name: str, candidate: Candidate) -> Ending | None:
        self._tell(candidate.name if candidate.patch is None else f"the patch for {candidate.causes[0]}")
        try:
            return self._bench.arm(name, candidate)
        except PatchDoesNotApply as error:
            self.found.notes.append(str(error))
            return None

    def _verdict(self, candidate: Candidate, ending: Ending, proved: set[str]) -> str:
        """A cure proves a cause whose mechanism was seen in the run, unless another one is proved already."""
        cause = candidate.causes[0] if candidate.causes else None
        came = {effect(control, ending, cause) for control in (self.found.control, *self.found.others)}
        if came != {"cured"}:
            return came.pop() if len(came) == 1 else "helps" if came == {"cured", "helps"} else "no_effect"
        own = set(candidate.causes)
        return "verified" if own and (not proved or own <= proved) else "helps"
