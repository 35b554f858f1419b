"""What a session has found, as one object: its parts, and a summary of them."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from neuraldbg.analysis.findings import strict
from neuraldbg.analysis.results import Result
from neuraldbg.debug.alerts import AlertSeverity, TensorAlert
from neuraldbg.debug.diagnostics import DiagnosticsReport
from neuraldbg.debug.dynamics import ConvergenceStatus, TrainingDynamics
from neuraldbg.debug.gradients import GradientFlowAnalysis, LayerHealth
from neuraldbg.debug.hooks import HookStats
from neuraldbg.debug.profiler import ProfilerReport
from neuraldbg.surfaces.terminal.figures import size

FILE = "debug_report.json"


@dataclass(frozen=True, eq=False)
class DebugReport(Result):
    """What `stop()` gives, awaited or not."""

    session_id: str
    run_dir: Path | None
    duration_s: float
    steps: int
    tracked_tensors: int
    evicted_tensors: int
    alerts: tuple[TensorAlert, ...] = ()
    alert_counts: dict[str, int] = field(default_factory=dict)
    gradients: GradientFlowAnalysis | None = None
    diagnostics: DiagnosticsReport | None = None
    memory: dict[str, Any] = field(default_factory=dict)
    hooks: dict[int, HookStats] = field(default_factory=dict)
    profiler: ProfilerReport | None = None
    verdict: Any = None  # of a watched model
    dashboard: Path | None = None  # the page of plots, with `enable_visualization`

    def __await__(self) -> Generator[Any, None, DebugReport]:
        return _itself(self).__await__()

    def summary(self) -> dict[str, Any]:
        """Issues, the critical ones first, and what to do about them."""
        issues = sorted(self._issues(), key=lambda issue: not issue[0])
        return {
            "session_id": self.session_id,
            "total_issues": len(issues),
            "critical_issues": sum(critical for critical, _ in issues),
            "issues": [text for _, text in issues],
            "recommendations": self._recommendations(),
        }

    def _issues(self) -> list[tuple[bool, str]]:
        found = list(_of_alerts(self.alerts))
        for one in self.gradients.layers.values() if self.gradients is not None else ():
            critical = one.health is LayerHealth.Critical
            found += [(critical, f"{one.layer_name}: {text}") for text in one.issues]
        if self.diagnostics is not None:
            found += [(text.startswith("the loss is"), text) for text in self.diagnostics.anomalies]
            found += _of_training(self.diagnostics.dynamics)
        for leak in self.memory.get("leaks", ()):
            text = f"{leak['alive']} tensors {leak['name']!r} still live ({size(leak['bytes'])}): something keeps them"
            found.append((False, text))
        for one in self.verdict.findings if self.verdict is not None else ():
            if one["severity"] != "info":
                found.append((one["severity"] == "critical", str(one["summary"])))
        return found

    def _recommendations(self) -> list[str]:
        parts = (self.gradients, self.diagnostics, self.profiler)
        told = [text for part in parts if part is not None for text in part.recommendations]
        for one in self.verdict.findings if self.verdict is not None else ():
            told += [str(each["title"]) for each in one.get("suggestions", ()) if one["severity"] != "info"]
        return list(dict.fromkeys(told))

    def save(self, path: str | Path) -> Path:
        """As strict JSON."""
        place = Path(path)
        place.write_text(json.dumps(strict(plain({**self.to_dict(), "summary": self.summary()})), indent=1) + "\n")
        return place


def _of_training(dynamics: TrainingDynamics) -> list[tuple[bool, str]]:
    status, ends = dynamics.convergence_status, dynamics.evidence
    found = [(False, text) for text in (*dynamics.overfitting_indicators, *dynamics.underfitting_indicators)]
    if ends and status in (ConvergenceStatus.Diverging, ConvergenceStatus.Oscillating):
        critical = status is ConvergenceStatus.Diverging
        found.append((critical, f"the loss is {status.value}: {ends['first_loss']:.3g}, then {ends['last_loss']:.3g}"))
    return found


def _of_alerts(alerts: tuple[TensorAlert, ...]) -> list[tuple[bool, str]]:
    """One line for all of a kind at a place."""
    groups: dict[tuple[str, str | None], list[TensorAlert]] = {}
    for one in alerts:
        groups.setdefault((one.kind, one.layer), []).append(one)
    found = []
    for same in groups.values():
        if all(one.severity is AlertSeverity.Info for one in same):
            continue
        often = f" ({len(same)} times)" if len(same) > 1 else ""
        found.append((any(one.severity is AlertSeverity.Critical for one in same), same[0].message + often))
    return found


def plain(value: Any) -> Any:
    """Only what JSON knows."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    to_dict = getattr(value, "to_dict", None)
    return plain(to_dict()) if callable(to_dict) else str(value)


async def _itself(value: DebugReport) -> DebugReport:
    return value
