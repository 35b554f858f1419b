"""Scores the debugger on the programs of this folder: is the fault seen, named first and placed, is health left alone.

    python benchmarks/faults/score.py [--group loop] [--only missing_zero_grad] [--jobs 2] [--json FILE] [--patches]

Every program runs alone in an empty folder under `neural debug --headless --export`. Only findings of severity warning
or above count, for credit and for false alarms alike. `--patches` also applies the first suggested patch and runs the
patched program: under the debugger where that is quick, to see that the finding is gone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PATIENCE_S = 180
QUICK = 200  # updates: a program that makes no more is debugged once more when it is patched
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass
class Score:
    """What the debugger said about one program, held against the truth."""

    name: str
    truth: dict[str, Any]
    findings: list[dict[str, Any]] | None
    seconds: float
    log: str = ""
    patched: str | None = None
    symptoms: frozenset[str] = frozenset()
    causes: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loud = [one for one in self.findings or [] if one["severity"] != "info"]
        self.causes = [one for one in self.loud if one["kind"] not in self.symptoms]
        self.right = {self.truth["fault"], *self.truth.get("accept", [])}

    @property
    def faulty(self) -> bool:
        return self.truth["fault"] is not None

    @property
    def detected(self) -> bool:
        return bool(self.loud)

    def within(self, first: int) -> bool:
        return any(one["kind"] in self.right for one in self.causes[:first])

    @property
    def hit(self) -> dict[str, Any] | None:
        return next((one for one in self.causes[:3] if one["kind"] in self.right), None)

    @property
    def tried(self) -> bool:
        return self.patched in ("cures", "does not cure")

    @property
    def layer_right(self) -> bool | None:
        wanted = self.truth.get("layer")
        if not wanted:
            return None
        return self.hit is not None and any(_inside(str(self.hit["layer"]), path) for path in wanted)

    @property
    def step_right(self) -> bool | None:
        wanted = self.truth.get("first_bad_step")
        if wanted is None or self.hit is None or self.hit["step"] is None:
            return None
        return abs(int(self.hit["step"]) - int(wanted)) <= int(self.truth.get("tol") or 5)

    @property
    def line_right(self) -> bool | None:
        wanted = self.truth.get("line")
        if wanted is None or self.hit is None:
            return None
        said = str(self.hit["source"] or "").rpartition(":")[2]
        return said.isdigit() and abs(int(said) - int(wanted)) <= 2

    @property
    def word(self) -> str:
        if self.findings is None:
            return "NO REPORT"
        if not self.faulty:
            return "FALSE ALARM" if self.loud else "quiet"
        if self.within(1):
            return "first"
        if self.within(3):
            return "in three"
        return "other cause" if self.causes else "symptom only" if self.loud else "MISSED"


def _inside(said: str, path: str) -> bool:
    parts, wanted = said.split("."), path.split(".")
    return any(parts[i : i + len(wanted)] == wanted for i in range(len(parts) - len(wanted) + 1))


def programs(group: str | None, only: set[str]) -> list[tuple[Path, dict[str, Any]]]:
    found = []
    for listing in sorted(HERE.glob("*/truth.json")):
        if group and listing.parent.name not in group.split(","):
            continue
        for truth in json.loads(listing.read_text()):
            script = listing.parent / truth["script"]
            if not only or script.stem in only:
                found.append((script, truth))
    return found


def debug(script: Path, text: str, *, symptoms: frozenset[str], truth: dict[str, Any], patches: bool) -> Score:
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        copy = Path(folder, script.name)
        copy.write_text(text)
        began = time.monotonic()
        log, session = _debugged(copy)
        took = time.monotonic() - began
        findings = None if session is None else session["findings"]
        score = Score(f"{script.parent.name}/{script.stem}", truth, findings, took, log, symptoms=symptoms)
        if patches and score.hit is not None:
            score.patched = _try_patch(score.hit, copy, again=session is not None and session["run"]["steps"] <= QUICK)
        return score


def _debugged(script: Path) -> tuple[str, dict[str, Any] | None]:
    out = Path(script.parent, "session.json")
    out.unlink(missing_ok=True)
    neural = str(Path(sys.executable).with_name("neural"))
    log = _run([neural, "debug", "--headless", "--export", str(out), str(script)], str(script.parent))
    return log, json.loads(out.read_text()) if out.exists() else None


def _run(command: list[str], folder: str) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "ran too long"
    return (done.stdout + done.stderr)[-2000:]


def _try_patch(hit: dict[str, Any], script: Path, *, again: bool) -> str:
    """Apply the first patch that is offered and run the program again: "runs", or "cures" and "does not cure" where it
    is debugged `again`."""
    patch = next((each["patch"] for each in hit["suggestions"] if each["patch"]), None)
    if patch is None:
        return "none"
    applied = subprocess.run(
        ["patch", "-p0", "--forward"], input=patch, text=True, cwd=script.parent, capture_output=True, check=False
    )
    if applied.returncode:
        return "does not apply"
    environment = {**os.environ, **ENVIRONMENT}
    done = subprocess.run(
        [sys.executable, script.name], cwd=script.parent, env=environment, capture_output=True, check=False
    )
    if done.returncode:
        return "crashes"
    session = _debugged(script)[1] if again else None
    if session is None:
        return "runs"
    left = [one for one in session["findings"] if one["kind"] == hit["kind"] and one["severity"] != "info"]
    return "does not cure" if left else "cures"


def share(values: list[bool | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{100 * sum(known) / len(known):.0f} % ({sum(known)} of {len(known)})" if known else "-"


def table(scores: list[Score]) -> list[tuple[str, str]]:
    faulty = [one for one in scores if one.faulty]
    healthy = [one for one in scores if not one.faulty]
    mechanical = [one for one in faulty if one.truth.get("mechanical") and one.patched is not None]
    return [
        ("programs (faulty, healthy)", f"{len(faulty)}, {len(healthy)}"),
        ("a report came out", share([one.findings is not None for one in scores])),
        ("fault detected", share([one.detected for one in faulty])),
        ("right cause first", share([one.within(1) for one in faulty])),
        ("right cause among the first three", share([one.within(3) for one in faulty])),
        ("right layer, where there is one", share([one.layer_right for one in faulty])),
        ("first bad step within tolerance", share([one.step_right for one in faulty])),
        ("source line within two", share([one.line_right for one in faulty])),
        (
            "patch applies and runs, where mechanical",
            share([one.patched in ("runs", "cures", "does not cure") for one in mechanical]),
        ),
        ("patch cures, where that was tried", share([one.patched == "cures" for one in mechanical if one.tried])),
        ("healthy programs with an alarm", share([one.detected for one in healthy])),
    ]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--group")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--patches", action="store_true")
    options = parser.parse_args()
    from neuraldbg.analysis.catalogue import catalogue

    symptoms = frozenset(one.id for one in catalogue().values() if one.sort == "symptom")
    chosen = programs(options.group, {name for name in options.only.split(",") if name})

    def one(item: tuple[Path, dict[str, Any]]) -> Score:
        script, truth = item
        score = debug(script, script.read_text(), symptoms=symptoms, truth=truth, patches=options.patches)
        said = ", ".join(each["kind"] for each in score.loud[:4])
        where = "".join(
            mark
            for mark, right in (("L", score.layer_right), ("S", score.step_right), ("#", score.line_right))
            if right is False
        )
        print(
            f"{score.name:48} {score.word:12} {where:3} {score.patched or '':8} {score.seconds:5.1f}  {said}",
            flush=True,
        )
        return score

    with ThreadPoolExecutor(options.jobs) as pool:
        scores = list(pool.map(one, chosen))
    print("\n| measure | value |\n| --- | --- |")
    for name, value in table(scores):
        print(f"| {name} | {value} |")
    if options.json:
        rows = [{"name": s.name, "word": s.word, "said": [f["kind"] for f in s.loud], "log": s.log} for s in scores]
        options.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
