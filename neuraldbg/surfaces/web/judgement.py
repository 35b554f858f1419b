"""What is wrong with a run, in the order and the words of the page. The analysis is imported when somebody asks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuraldbg.trace import Trace, open_trace

if TYPE_CHECKING:
    from neuraldbg.analysis.summary import RunSummary

LOUD = ("critical", "warning", "info")
MOST_ANOMALIES = 500
SELDOM_S = 15.0
SO_FAR = {"state": "undecided", "headline": "nothing wrong so far", "finding": None}
Found = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: dict[str, Any]
    findings: list[dict[str, Any]]


class Judge:
    """Looks at one run as a whole, which of a long one takes half a minute: in a process of its own, so that nobody
    waits who asks for something else."""

    def __init__(self) -> None:
        self._lock, self._unusual_lock = threading.Lock(), threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._judgement: Judgement | None = None
        self._unusual: dict[str, Any] = {}
        self._unusual_until: int | None = None
        self._unusual_since_s = 0.0

    def recorded(self, run_dir: Path) -> Judgement:
        """Of a run that is over: once."""
        with self._lock:
            found = self._judgement or self._elsewhere(run_dir)
            if found is None:
                found = Judgement(SO_FAR, []) if self._closed else here(run_dir)
            self._judgement = found
            return found

    def _elsewhere(self, run_dir: Path) -> Judgement | None:
        """None where no process can be had."""
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import tell; tell(sys.argv[1])"
        command, nowhere = [sys.executable, "-c", code, str(run_dir)], subprocess.DEVNULL
        try:
            self._child = subprocess.Popen(command, stdin=nowhere, stdout=subprocess.PIPE, stderr=nowhere)
            if self._closed:
                self._child.kill()
            return Judgement(**json.loads(self._child.communicate()[0]))
        except (OSError, ValueError, TypeError):
            return None
        finally:
            self._child = None

    def close(self) -> None:
        self._closed = True
        child = self._child
        if child is not None:
            child.kill()

    def unusual(self, run_dir: Path, last_step: int | None, *, alive: bool) -> dict[str, Any]:
        """Judged anew when there are more steps, but seldom: it takes a second or two of a core."""
        with self._unusual_lock:
            now = time.monotonic()
            if not self._unusual or (self._unusual_until != last_step and now - self._unusual_since_s > SELDOM_S):
                with open_trace(run_dir) as trace:
                    self._unusual = unusual(trace, alive=alive)
                self._unusual_until, self._unusual_since_s = last_step, now
            return self._unusual


def here(run_dir: Path) -> Judgement:
    with open_trace(run_dir) as trace:
        return of_recorded(trace)


def tell(run_dir: str) -> None:
    """The process of its own: it takes no more of the machine than is left over."""
    if hasattr(os, "nice"):
        os.nice(10)
    print(json.dumps(asdict(here(Path(run_dir)))))


def causes_first(findings: Sequence[Found]) -> list[dict[str, Any]]:
    """As `diagnose` orders them: loud before quiet, causes before what they led to, sure before unsure; and before all
    of them what an experiment has proved."""
    led_to = {(link["kind"], link["layer"]) for one in findings for link in one.get("chain", ())}

    def order(one: Found) -> tuple[Any, ...]:
        grave = LOUD.index(one["severity"]) if one["severity"] in LOUD else len(LOUD)
        is_led_to = (one["kind"], one["layer"]) in led_to
        proved = any(each.get("verified") for each in one.get("suggestions") or ())
        return (
            not proved,
            grave > 1,
            is_led_to,
            not one.get("chain"),
            -(one.get("confidence") or 0.5),
            grave,
            one.get("step") or 0,
        )

    return [dict(one) for one in sorted(findings, key=order)]


def of_recorded(trace: Trace) -> Judgement:
    from neuraldbg.analysis.summary import summarise

    return of_summary(summarise(trace, alive=False))


def of_summary(summary: RunSummary) -> Judgement:
    findings = [dict(one) for one in summary.findings]
    first = findings[0]["id"] if findings and summary.verdict.state in LOUD else None
    return Judgement({"state": summary.verdict.state, "headline": summary.verdict.headline, "finding": first}, findings)


def of_findings(findings: Sequence[Found]) -> dict[str, Any] | None:
    """The verdict that loud findings give, in the words of the report; None where there are none."""
    loud = [one for one in findings if one["severity"] in LOUD[:2]]
    if not loud:
        return None
    first = loud[0]
    since = f"since step {first['step']:,}" if first.get("step") is not None else None
    layer = f"layer {first['layer']}" if first.get("layer") and first["layer"] not in first["summary"] else None
    place = ", ".join(part for part in (since, layer, first.get("source")) if part)
    said = first["summary"].rstrip(".")
    worst = "critical" if any(one["severity"] == "critical" for one in loud) else "warning"
    return {"state": worst, "headline": f"{said} ({place})" if place else said, "finding": first["id"]}


def unusual(trace: Trace, *, alive: bool) -> dict[str, Any]:
    from neuraldbg.analysis.anomalies import survey

    report = survey(trace, alive=alive)
    layers: dict[str, dict[str, Any]] = {}
    for one in report.found:
        if one.layer is not None:
            entry = layers.setdefault(one.layer, {"layer": one.layer, "count": 0, "severity": 0.0})
            entry["count"] += 1
            entry["severity"] = max(entry["severity"], one.severity)
    strongest = [
        {
            "step": one.step,
            "layer": one.layer,
            "metrics": list(one.metrics),
            "methods": list(one.methods),
            "severity": one.severity,
        }
        for one in sorted(report.strongest(MOST_ANOMALIES), key=lambda one: one.step)
    ]
    told = {"sensitivity": report.sensitivity, "samples": report.samples, "total": report.total}
    told["unseen_steps"] = report.unseen_steps
    return {**told, "layers": list(layers.values()), "found": strongest}
