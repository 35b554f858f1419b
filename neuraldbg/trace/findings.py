"""`findings.jsonl`: what the analysis found, appended by the one process that holds the run's analysis lock."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from neuraldbg.trace.rundir import FINDINGS_FILE

LOCK_FILE: Final = "analysis.lock"
VERDICT_FILE: Final = "verdict.json"


def read_findings(run_dir: Path) -> list[dict[str, Any]]:
    """In order of first appearance; a later line with the same id replaces the earlier one."""
    try:
        lines = (run_dir / FINDINGS_FILE).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found: dict[Any, dict[str, Any]] = {}
    for number, line in enumerate(lines):
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # the line being written
        if isinstance(entry, dict):
            found[entry.get("id", f"line {number}")] = entry
    return list(found.values())


def write_verdict(run_dir: Path, verdict: Mapping[str, Any]) -> None:
    """What a run that is over came to, for who opens it later: to judge a long one anew takes half a minute."""
    draft = run_dir / f"{VERDICT_FILE}.{os.getpid()}"
    with suppress(OSError):
        draft.write_text(json.dumps(verdict, ensure_ascii=False), encoding="utf-8")
        os.replace(draft, run_dir / VERDICT_FILE)


def read_verdict(run_dir: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((run_dir / VERDICT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and {"state", "headline", "finding"} <= found.keys() else None


def write_findings(run_dir: Path, findings: Sequence[Mapping[str, Any]]) -> bool:
    """Appends what is new or has changed, and withdraws what is no longer found. False where another process analyses
    this run, or where it cannot be written to: whoever reads computes the findings anyway."""
    with analysis_lock(run_dir) as mine:
        if not mine:
            return False
        before = {entry.get("id"): entry for entry in read_findings(run_dir)}
        now = {entry["id"]: dict(entry) for entry in findings}
        gone = [{"id": each, "withdrawn": True} for each, entry in before.items() if _stands(each, entry, now)]
        changed = [*gone, *(entry for each, entry in now.items() if before.get(each) != entry)]
        try:
            with open(run_dir / FINDINGS_FILE, "a", encoding="utf-8") as file:
                file.writelines(json.dumps(entry, ensure_ascii=False) + "\n" for entry in changed)
        except OSError:
            return False
        return True


def _stands(each: Any, entry: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    return each not in now and not entry.get("withdrawn")


@contextmanager
def analysis_lock(run_dir: Path, file: str = LOCK_FILE) -> Iterator[bool]:
    """Whether this process may analyse the run now. Given up by leaving, and by the system when the process dies."""
    try:
        descriptor = os.open(run_dir / file, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        yield False
        return
    try:
        yield _locked(descriptor)
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """True also where the file system knows no locks: two writers of equal lines do no harm."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
