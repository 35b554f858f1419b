"""The anomalies of a run that may still be growing: looked at piece by piece, with bounded work, kept beside the run.

Two files of the run directory hold the state: `anomalies.npz` is the fitted detector, `anomalies.json` how far it came
and what it found. Whoever looks next goes on from there.
"""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neuraldbg.analysis.anomalies.detector import HISTORY, AnomalyDetector
from neuraldbg.analysis.anomalies.recorded import Anomaly, Sample, judged, samples_of
from neuraldbg.analysis.anomalies.thresholds import DEFAULT
from neuraldbg.analysis.findings import strict
from neuraldbg.errors import NeuralDbgError
from neuraldbg.trace.rundir import write_atomically

if TYPE_CHECKING:
    from neuraldbg.records import RunInfo
    from neuraldbg.trace import Trace

MODEL_FILE, FOUND_FILE = "anomalies.npz", "anomalies.json"
MOST_SAMPLES = 20_000  # of one look: one or two seconds
ROWS_OF_A_SAMPLE = 4  # about: a layer in one step leaves spans, an activation, gradients
STILL_COMING = 64  # steps: numbers of a device arrive later than those of the host


@dataclass(frozen=True, slots=True)
class AnomalyReport:
    """What is unusual in a run. A statistical remark, never a finding: of noise about 0.5 % of all samples are."""

    sensitivity: float
    history: int
    samples: int  # that were judged
    total: int  # of them unusual
    found: tuple[Anomaly, ...]  # the newest `history`, by step; of what stays NaN or infinite only the first
    unseen_steps: int  # recorded steps that were left out because there were too many

    def strongest(self, most: int) -> list[Anomaly]:
        """The furthest out first."""
        return sorted(self.found, key=lambda each: (-each.severity, each.step))[:most]

    def by_layer(self) -> Counter[str]:
        return Counter(each.layer for each in self.found if each.layer is not None)


class AnomalyWatch:
    """One detector and how far in the run it has come."""

    def __init__(self, detector: AnomalyDetector | None = None) -> None:
        self.detector = detector if detector is not None else AnomalyDetector()
        self.next_step = 0
        self.samples = 0
        self.total = 0
        self.unseen_steps = 0
        self.found: deque[Anomaly] = deque(maxlen=self.detector.history)
        self._broken: dict[str, list[str]] = {}  # metrics that were not finite in the last sample of a layer

    def look(self, trace: Trace, *, through: int | None = None, most: int = MOST_SAMPLES) -> list[Anomaly]:
        """What is new since the last look, up to step `through`. Of more than `most` samples the last are judged."""
        steps = trace.between(self.next_step, through).steps
        if not len(steps):
            return []
        first = max(int(steps[0]), _first_that_fits(trace.between(int(steps[0]), through), most))
        self.unseen_steps += int((steps < first).sum())
        new = []
        for sample in samples_of(trace.between(first, through)):
            self.samples += 1
            one = judged(sample, self.detector)
            goes_on = self._stays_broken(sample)
            if one is not None:
                self.total += 1
                new += [] if goes_on else [one]
        self.next_step = int(steps[-1]) + 1
        self.found.extend(new)
        return new

    def _stays_broken(self, sample: Sample) -> bool:
        """A NaN in a weight comes back in every step: the first tells when it began, the others would hide it."""
        name, broken = sample.remembered_as, [each for each, x in sample.values.items() if not math.isfinite(x)]
        before = self._broken.pop(name, [])
        if broken:
            self._broken[name] = broken
        return bool(broken) and before == broken

    def report(self) -> AnomalyReport:
        dial = self.detector
        found = tuple(self.found)
        return AnomalyReport(dial.sensitivity, dial.history, self.samples, self.total, found, self.unseen_steps)

    def save(self, run_dir: Path, *, most_bytes: int | None = None) -> bool:
        """Whether it was written: the disk may be full or not ours, or the run would take more than `most_bytes`."""
        about = {
            "next_step": self.next_step,
            "samples": self.samples,
            "remembered": _remembered(self.detector),
            "total": self.total,
            "unseen_steps": self.unseen_steps,
            "broken": self._broken,
            "found": [as_dict(one) for one in self.found],
        }
        try:
            self.detector.save(run_dir / MODEL_FILE)
            write_atomically(run_dir / FOUND_FILE, json.dumps(strict(about), allow_nan=False))
            if most_bytes is not None and _size(run_dir) > most_bytes:
                for name in (FOUND_FILE, MODEL_FILE):
                    (run_dir / name).unlink()
                return False
        except (NeuralDbgError, OSError):
            return False
        return True


def watch_of(trace: Trace) -> AnomalyWatch:
    """Where an earlier look at this run ended; a new one where there was none, or where its files do not fit."""
    fresh = AnomalyWatch(detector_of(trace.run))
    try:
        about = json.loads((trace.path / FOUND_FILE).read_text(encoding="utf-8"))
        detector = AnomalyDetector.load(trace.path / MODEL_FILE)
        kept = _restored(about, detector)
    except (NeuralDbgError, OSError, ValueError, LookupError, TypeError):
        return fresh
    same_dial = (detector.sensitivity, detector.history) == (fresh.detector.sensitivity, fresh.detector.history)
    return kept if same_dial and about["remembered"] == _remembered(detector) else fresh


def survey(trace: Trace, *, alive: bool | None = None) -> AnomalyReport:
    """Everything unusual in a run; of one that still goes on, all but its last steps. Writes nothing."""
    watch = watch_of(trace)
    watch.look(trace, through=settled_step(trace) if alive else None)
    return watch.report()


def settled_step(trace: Trace) -> int:
    """The last step of a running training whose numbers have all arrived; -1 where there is none yet."""
    steps = trace.steps
    return max(int(steps[-1]) - STILL_COMING, -1) if len(steps) else -1


def detector_of(run: RunInfo) -> AnomalyDetector:
    """With the sensitivity and the history that the run was started with."""
    sensitivity, history = run.settings.get("anomaly_sensitivity"), run.settings.get("anomaly_history")
    return AnomalyDetector(
        sensitivity=float(sensitivity) if isinstance(sensitivity, int | float) else DEFAULT,
        history=int(history) if isinstance(history, int) else HISTORY,
    )


def as_dict(one: Anomaly) -> dict[str, Any]:
    """As plain values, the shape of the portable session."""
    return {
        "step": one.step,
        "layer": one.layer,
        "rank": one.rank,
        "metrics": list(one.metrics),
        "methods": list(one.methods),
        "severity": one.severity,
        "scores": dict(one.scores),
        "values": dict(one.values),
    }


def _restored(about: Mapping[str, Any], detector: AnomalyDetector) -> AnomalyWatch:
    watch = AnomalyWatch(detector)
    watch.next_step, watch.samples = int(about["next_step"]), int(about["samples"])
    watch.total, watch.unseen_steps = int(about["total"]), int(about["unseen_steps"])
    watch.found.extend(_anomaly(each) for each in about["found"])
    watch._broken = {str(name): list(map(str, metrics)) for name, metrics in about["broken"].items()}
    return watch


def _anomaly(about: Mapping[str, Any]) -> Anomaly:
    scores, values = ({name: float(x) for name, x in about[each].items()} for each in ("scores", "values"))
    metrics, methods = tuple(map(str, about["metrics"])), tuple(map(str, about["methods"]))
    layer = None if about["layer"] is None else str(about["layer"])
    return Anomaly(int(about["step"]), layer, int(about["rank"]), metrics, methods, scores, values)


def _size(run_dir: Path) -> int:
    return sum(file.stat().st_size for file in run_dir.rglob("*") if file.is_file())


def _remembered(detector: AnomalyDetector) -> int:
    """The two files are written one after the other: this tells whether they belong together."""
    return sum(layer.samples for layer in detector.layers.values())


def _first_that_fits(trace: Trace, most: int) -> int:
    """The step from which on there are about `most` samples."""
    rows = {name: trace.table(name, ("step",))["step"] for name in ("stats", "spans", "scalars")}
    steps = np.concatenate(list(rows.values()))
    if not len(steps):
        return 0
    weights = np.repeat([1 / ROWS_OF_A_SAMPLE, 1 / ROWS_OF_A_SAMPLE, 1.0], [len(each) for each in rows.values()])
    order = np.argsort(steps, kind="stable")[::-1]
    fits = np.cumsum(weights[order]) <= most
    return int(steps[order[fits]].min()) if fits.any() else int(steps.max())
