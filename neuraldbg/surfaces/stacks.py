"""Whole stacks of ranks that stand still, by py-spy where it is installed: the viewer takes them from outside, so that
a rank that holds the interpreter and cannot speak for itself is seen as well. The ranks are read, not stopped."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from neuraldbg.analysis.ranks import Process

PATIENCE_S = 20.0  # for one rank
ENOUGH_S = 60.0  # for all
MOST_RANKS = 64
DEEPEST = 60
NOT_THERE = "py-spy is not installed: after `pip install py-spy` a hang is told with the whole stacks of its ranks"
ELSEWHERE = "it runs on another host"
TOO_LONG = "the others took too long"


def py_spy() -> str | None:
    """Beside our own interpreter, or wherever the shell would find it."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def take_stacks(
    ranks: Iterable[Process], step: int, *, first: int = 0, find: Callable[[], str | None] = py_spy
) -> dict[str, Any]:
    """What every rank does, thread by thread, innermost first; for one that could not be looked at, why. `first`: the
    rank that the others wait for, before those of this host."""
    tool = find()
    if tool is None:
        return {"step": step, "by": None, "why_not": NOT_THERE, "ranks": {}}
    until = time.monotonic() + ENOUGH_S
    found = {}
    for one in sorted(ranks, key=lambda one: (one.rank != first, one.host != socket.gethostname()))[:MOST_RANKS]:
        found[str(one.rank)] = _of(tool, one) if time.monotonic() < until else {"pid": one.pid, "why_not": TOO_LONG}
    return {"step": step, "by": "py-spy", "why_not": None, "ranks": found}


def _of(tool: str, one: Process) -> dict[str, Any]:
    if one.host != socket.gethostname() or one.pid is None:
        return {"pid": one.pid, "why_not": ELSEWHERE}
    command = [tool, "dump", "--nonblocking", "--json", "--subprocesses", "--pid", str(one.pid)]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        threads = json.loads(told.stdout) if told.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return {"pid": one.pid, "why_not": f"{type(error).__name__}: {error}"}
    if not isinstance(threads, list):
        return {"pid": one.pid, "why_not": _complaint(told.stderr)}
    mine = [_thread(each) for each in threads if each.get("pid") != os.getpid()]
    return {"pid": one.pid, "threads": sorted(mine, key=lambda each: (each["pid"] != one.pid, not each["main"]))}


def _thread(told: Mapping[str, Any]) -> dict[str, Any]:
    frames = [f"{each['name']} ({each['filename']}:{each['line']})" for each in told["frames"][:DEEPEST]]
    main = told.get("thread_name") == "MainThread"
    return {"pid": told["pid"], "name": told.get("thread_name"), "main": main, "frames": frames}


def _complaint(text: str) -> str:
    """Its own words; that a container or the kernel forbids it is the usual reason."""
    said = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "py-spy said nothing")
    hint = "; it needs ptrace: the same user, `--cap-add SYS_PTRACE` in a container, or root"
    return said + (hint if "ermission" in said or "perm" in said.lower() else "")
