"""Runs a few lines of training under a real capture and says what was found in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from watching import watching

from neuraldbg import open_trace
from neuraldbg.analysis.diagnose import LOUD, Judgement, diagnose
from neuraldbg.records import Finding


def judged(folder: Path, program: Callable[[], object]) -> Judgement:
    """A crash of the program is written down as the launcher would."""
    with watching(folder) as capture:
        try:
            program()
        except RuntimeError as error:
            capture.close(exit_code=1, error=f"{type(error).__name__}: {error}")
    with open_trace(folder / "run") as trace:
        judgement = diagnose(trace)
    assert judgement.failed == {}
    return judgement


def loud(folder: Path, program: Callable[[], object]) -> dict[str, Finding]:
    """Warnings and worse, by id."""
    return {one.finding.kind: one.finding for one in judged(folder, program).diagnoses if one.finding.severity in LOUD}
