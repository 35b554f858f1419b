#!/usr/bin/env python3
"""Check every program under benchmarks/faults against its truth.

A faulty program is run together with its repaired twin (the truth's `fix` replacements applied to its text), each as
its own process in an empty folder, one after the other. The claim that must then hold is

    better + ratio    the repaired metric is `ratio` times lower ("low") or higher ("high")
    better + margin   the repaired metric is `margin` lower ("low") or higher ("high")
    check "state"     with better + limit: the repaired metric reaches the limit and the faulty one does not
    check "crash"     the faulty program raises (`error`: text its output must hold), the repaired one does not
    check "memory"    the faulty program's peak memory is `mem_mb` (default 50) above the repaired one's
    check "time"      the faulty program takes `extra_s` (default 1) seconds longer
    fault null        healthy: no crash and the metric reaches better + limit

A faulty program that does not end in a finite number counts as infinitely bad.

    python benchmarks/faults/verify.py [--only optim,missing_detach,...] [--seed-shift 1] [--timeout 120] [--max-cpu 10]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SEED = re.compile(r"(manual_seed|random\.seed|default_rng|RandomState)\((\d+)\)")
FINAL = re.compile(r"^final (\S+) (\S+)\s*$", re.MULTILINE)
Truth = dict[str, Any]


@dataclass
class Run:
    """What one process left behind."""

    rc: int
    wall_s: float
    cpu_s: float
    rss_mb: float
    output: str

    @property
    def final(self) -> float:
        """The number of the last `final <metric> <value>` line, NaN without one."""
        found = FINAL.findall(self.output)
        try:
            return float(found[-1][1]) if found else math.nan
        except ValueError:
            return math.nan


def run_text(text: str, name: str, timeout: float) -> Run:
    """Run program text alone in a fresh folder."""
    folder = Path(tempfile.mkdtemp(prefix="faults_"))
    try:
        (folder / name).write_text(text)
        env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        log = folder / ".log"
        start = time.monotonic()
        with log.open("wb") as out:
            child = subprocess.Popen(
                [sys.executable, name], cwd=folder, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=env
            )
            status, usage = wait(child, start + timeout)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - start
        cpu = usage.ru_utime + usage.ru_stime
        return Run(child.returncode, wall, cpu, usage.ru_maxrss / 1024, log.read_text(errors="replace"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wait(child: subprocess.Popen[bytes], deadline: float) -> tuple[int, Any]:
    """Wait for a child with its resource usage; kill it at the deadline."""
    while True:
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        if pid:
            return status, usage
        if time.monotonic() > deadline:
            child.kill()
            _, status, usage = os.wait4(child.pid, 0)
            return status, usage
        time.sleep(0.02)


def repair(text: str, fixes: list[list[str]]) -> str:
    """Apply the replacements; each old text must occur exactly once."""
    for old, new in fixes:
        if text.count(old) != 1:
            raise ValueError(f"fix text occurs {text.count(old)} times: {old!r}")
        text = text.replace(old, new)
    return text


def shift_seeds(text: str, shift: int) -> str:
    return SEED.sub(lambda m: f"{m[1]}({int(m[2]) + shift})", text) if shift else text


def static_errors(truth: Truth, text: str) -> list[str]:
    """What is wrong with the entry before anything runs."""
    errors = [f"no {key!r} in the truth" for key in ("script", "fault", "notes", "line", "layer") if key not in truth]
    line = truth.get("line")
    lines = text.splitlines()
    if line is not None and not (1 <= line <= len(lines) and lines[line - 1].strip()):
        errors.append(f"line {line} is blank or outside the script")
    if truth.get("fault") is not None:
        errors += [f"no {key!r} in the truth" for key in ("fix", "first_bad_step", "mechanical") if key not in truth]
    if "check" not in truth and "better" not in truth:
        errors.append("neither 'check' nor 'better' in the truth")
    return errors


def reaches(value: float, truth: Truth) -> bool:
    limit = float(truth["limit"])
    return math.isfinite(value) and (value >= limit if truth["better"] == "high" else value <= limit)


def judge_metric(truth: Truth, bad: float, good: float) -> tuple[bool, str]:
    """The repaired metric against the faulty one."""
    if not math.isfinite(good):
        return False, f"repaired twin ends at {good}"
    high = truth["better"] == "high"
    needs = f"margin {truth['margin']}" if "margin" in truth else f"ratio {truth['ratio']}"
    if not math.isfinite(bad):
        ok = True
    elif "margin" in truth:
        ok = (good - bad if high else bad - good) >= truth["margin"]
    else:
        top, bottom = (good, bad) if high else (bad, good)
        ok = top >= truth["ratio"] * max(bottom, 1e-12)
    return ok, f"final {bad:g} -> {good:g} ({truth['better']}, {needs})"


def judge(truth: Truth, bad: Run, good: Run) -> tuple[bool, str]:
    """Whether the truth's claim about a faulty program holds, and the numbers."""
    kind = truth.get("check", "metric")
    if good.rc:
        return False, f"repaired twin crashed: {last_line(good)}"
    if kind == "crash":
        return bad.rc != 0 and truth.get("error", "") in bad.output, f"rc {bad.rc} -> {good.rc}: {last_line(bad)}"
    if bad.rc:
        return False, f"faulty program crashed: {last_line(bad)}"
    if kind == "memory":
        need = float(truth.get("mem_mb", 50))
        return bad.rss_mb - good.rss_mb >= need, f"peak {bad.rss_mb:.0f} -> {good.rss_mb:.0f} MB (needs {need:g})"
    if kind == "time":
        need = float(truth.get("extra_s", 1))
        return bad.wall_s - good.wall_s >= need, f"wall {bad.wall_s:.1f} -> {good.wall_s:.1f} s (needs {need:g})"
    if kind == "state":
        ok = reaches(good.final, truth) and not reaches(bad.final, truth)
        return ok, f"final {bad.final:g} -> {good.final:g} ({truth['better']}, limit {truth['limit']})"
    return judge_metric(truth, bad.final, good.final)


def last_line(run: Run) -> str:
    lines = run.output.strip().splitlines()
    return lines[-1][:120] if lines else "(no output)"


def verify(folder: Path, truth: Truth, options: argparse.Namespace) -> tuple[bool, str]:
    """Run one entry; whether it holds, and one line of numbers."""
    name = truth.get("script", "?")
    path = folder / name
    if not path.is_file():
        return False, "script not found"
    text = path.read_text()
    errors = static_errors(truth, text)
    if errors:
        return False, "; ".join(errors)
    try:
        twin = None if truth["fault"] is None else repair(text, truth["fix"])
    except ValueError as error:
        return False, str(error)
    first = run_text(shift_seeds(text, options.seed_shift), name, options.timeout)
    if twin is None:
        ok = first.rc == 0 and reaches(first.final, truth)
        why = f"final {first.final:g} ({truth['better']}, limit {truth['limit']})" if not first.rc else last_line(first)
        runs = [first]
    else:
        runs = [first, run_text(shift_seeds(twin, options.seed_shift), name, options.timeout)]
        ok, why = judge(truth, *runs)
    cpu = max(run.cpu_s for run in runs)
    if cpu > options.max_cpu:
        return False, f"{why}; {cpu:.1f} s CPU is over {options.max_cpu:g}"
    return ok, f"{why}; {cpu:.1f} s CPU"


def entries(only: set[str]) -> list[tuple[Path, Truth]]:
    """Every truth entry, or those whose name, group or group/name was asked for."""
    found = []
    for file in sorted(HERE.glob("*/truth.json")):
        for truth in json.loads(file.read_text()):
            stem = str(truth.get("script", "?")).removesuffix(".py")
            if not only or only & {stem, file.parent.name, f"{file.parent.name}/{stem}"}:
                found.append((file.parent, truth))
    return found


def orphans(only: set[str]) -> list[str]:
    """Programs no truth entry speaks of (looked for only when everything is checked)."""
    if only:
        return []
    known = {folder / str(truth.get("script")) for folder, truth in entries(set())}
    return [str(path.relative_to(HERE)) for path in sorted(HERE.glob("*/*.py")) if path not in known]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Check the programs under benchmarks/faults against their truth.")
    parser.add_argument("--only", default="", help="comma-separated names, groups or group/name")
    parser.add_argument("--seed-shift", type=int, default=0, help="add this to every literal seed")
    parser.add_argument("--timeout", type=float, default=120, help="seconds one process may take")
    parser.add_argument("--max-cpu", type=float, default=10, help="CPU seconds, import included, that are too many")
    return parser.parse_args()


def main() -> int:
    options = parse()
    only = {name.removesuffix(".py") for name in options.only.split(",") if name}
    chosen = entries(only)
    failed = orphans(only)
    for name in failed:
        print(f"FAIL {name}: no truth entry")
    for folder, truth in chosen:
        ok, why = verify(folder, truth, options)
        name = f"{folder.name}/{truth.get('script')}"
        print(f"{'ok  ' if ok else 'FAIL'} {name:52s} {why}", flush=True)
        if not ok:
            failed.append(name)
    print(f"{len(chosen)} entries, {len(failed)} failing{': ' if failed else ''}{', '.join(failed)}")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
