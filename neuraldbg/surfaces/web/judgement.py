"""What is wrong with a run, in the order and the words of the page. The analysis is imported when somebody asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

LOUD = ("critical", "warning", "info")
MOST_ANOMALIES = 500
Found = Mapping[str, Any]


def findings_of(trace: Trace) -> list[dict[str, Any]]:
    from neuraldbg.analysis.summary import summarise

    return [dict(one) for one in summarise(trace, alive=False).findings]


def causes_first(findings: Sequence[Found]) -> list[dict[str, Any]]:
    """As `diagnose` orders them: loud before quiet, causes before what they led to, sure before unsure."""
    led_to = {(link["kind"], link["layer"]) for one in findings for link in one.get("chain", ())}

    def order(one: Found) -> tuple[Any, ...]:
        grave = LOUD.index(one["severity"]) if one["severity"] in LOUD else len(LOUD)
        is_led_to = (one["kind"], one["layer"]) in led_to
        return grave > 1, is_led_to, not one.get("chain"), -(one.get("confidence") or 0.5), grave, one.get("step") or 0

    return [dict(one) for one in sorted(findings, key=order)]


def of_recorded(trace: Trace) -> dict[str, Any]:
    from neuraldbg.analysis.summary import summarise

    summary = summarise(trace, alive=False)
    first = summary.findings[0]["id"] if summary.findings and summary.verdict.state in LOUD else None
    return {"state": summary.verdict.state, "headline": summary.verdict.headline, "finding": first}


def of_findings(findings: Sequence[Found]) -> dict[str, Any]:
    """While a run goes on nothing is concluded from silence."""
    loud = [one for one in findings if one["severity"] in LOUD[:2]]
    if not loud:
        return {"state": "undecided", "headline": "nothing wrong so far", "finding": None}
    since = f" since step {loud[0]['step']:,}" if loud[0].get("step") is not None else ""
    worst = "critical" if any(one["severity"] == "critical" for one in loud) else "warning"
    return {"state": worst, "headline": f"{loud[0]['summary'].rstrip('.')}{since}", "finding": loud[0]["id"]}


def unusual(trace: Trace, *, alive: bool) -> dict[str, Any]:
    from neuraldbg.analysis.anomalies import survey

    report = survey(trace, alive=alive)
    layers: dict[str, dict[str, Any]] = {}
    for one in report.found:
        if one.layer is not None:
            entry = layers.setdefault(one.layer, {"layer": one.layer, "count": 0, "severity": 0.0})
            entry["count"] += 1
            entry["severity"] = max(entry["severity"], one.severity)
    newest = [
        {
            "step": one.step,
            "layer": one.layer,
            "metrics": list(one.metrics),
            "methods": list(one.methods),
            "severity": one.severity,
        }
        for one in report.found[-MOST_ANOMALIES:]
    ]
    told = {"sensitivity": report.sensitivity, "samples": report.samples, "total": report.total}
    return {**told, "layers": list(layers.values()), "found": newest}
