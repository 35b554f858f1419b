"""The script raised."""

from __future__ import annotations

from collections.abc import Iterator

from neuraldbg.analysis.catalogue import symptom
from neuraldbg.analysis.evidence import Evidence
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
    end = evidence.fact("end") or {}
    step = end.get("steps")
    yield Finding(
        "crash",
        Severity.CRITICAL,
        f"the script raised {error[:200]}",
        step=int(step) if isinstance(step, int) else None,
        source=end.get("error_at"),
        evidence={"error": error[:400], "updates_before": int(step) if isinstance(step, int) else 0},
        confidence=0.99,
    )


def _began(evidence: Evidence) -> bool:
    """Whether any model or optimizer was seen: of a script without one Python's own message says all there is."""
    return bool(len(evidence.calls["step"]) or evidence.facts("model") or evidence.facts("optimizer"))
