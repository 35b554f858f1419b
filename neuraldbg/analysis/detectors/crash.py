"""The script raised."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.detectors.rank_divergence import lost_rank
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.ranks import first_failure, processes
from neuraldbg.records import Finding, Severity

_ON_PURPOSE = ("KeyboardInterrupt", "SystemExit", "StoppedOnNaN")


@symptom("crash")
def crash(evidence: Evidence) -> Iterator[Finding]:
    """The script raised.

    Finds: runs of models that an exception ended.
    Why it matters: whatever was to be trained or saved afterwards was not.
    Decides by: the last line of the uncaught exception. Ctrl-C and sys.exit() are no crash.
    Usual cures: see the cause it is listed under, or the line it names.
    """
    error = evidence.run.error
    if not error or error.startswith(_ON_PURPOSE) or not _began(evidence):
        return
    rank, end = _who(evidence)
    step = end.get("steps")
    followed = lost_rank(evidence) is not None  # of another rank's end: that is what happened
    yield Finding(
        "crash",
        Severity.WARNING if followed else Severity.CRITICAL,
        f"the script raised {error[:200]}",
        step=int(step) if isinstance(step, int) else None,
        source=end.get("error_at"),
        evidence={"error": error[:400], "updates_before": int(step) if isinstance(step, int) else 0},
        rank=rank,
        confidence=0.5 if followed else 0.99,
    )


def _who(evidence: Evidence) -> tuple[int, dict[str, Any]]:
    """The rank whose error it is, and its end; of one process, its own."""
    ranks = processes(evidence.trace)
    failed = first_failure(ranks, {fact["rank"]: fact for fact in evidence.trace.facts("end")})
    return (0, evidence.fact("end") or {}) if failed is None else (failed[0].rank, failed[1])


def _began(evidence: Evidence) -> bool:
    """Whether any model or optimizer was seen: of a script without one Python's own message says all there is."""
    return bool(len(evidence.calls["step"]) or evidence.facts("model") or evidence.facts("optimizer"))
