"""Importing does nothing: no thread, file, port or framework; and it works on a bare node and without Unix."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from house import FRAMEWORK_ROOMS, FRAMEWORKS, FRONTS, LEAN_ROOMS, MAY_IMPORT, ROOT, all_imports, modules

OPTIONAL = ["msgspec", "yaml", "psutil", "pynvml", "rich", "click", "fastapi", "uvicorn", "websockets", "safetensors"]
PLATFORM_ONLY = ["fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "msvcrt", "winreg"]

IMPORTER = """
import importlib, json, os, socket, sys, threading, warnings

warnings.simplefilter("error")
asked = json.loads(sys.stdin.read())
written, failed = [], {}

def watch(event, arguments):
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        written.append(str(arguments[0]))
    elif event in ("socket.bind", "socket.connect", "subprocess.Popen", "os.fork", "os.mkdir"):
        written.append(event)

def hide(names):
    for name in list(sys.modules):
        if name.partition(".")[0] in names:
            del sys.modules[name]
    for name in names:
        sys.modules[name] = None  # makes `import name` raise ModuleNotFoundError

def bring(names, failures):
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in asked["absent"]:
                failures[name] = repr(error)
        except Exception as error:
            failures[name] = repr(error)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    bring(asked["preload"], {})
hide(asked["hidden"])
if asked["no_unix_sockets"] and hasattr(socket, "AF_UNIX"):
    del socket.AF_UNIX
threads, loaded = set(threading.enumerate()), set(sys.modules)
sys.addaudithook(watch)
bring(asked["modules"], failed)
report = {
    "failed": failed,
    "written": list(written),
    "threads": [each.name for each in set(threading.enumerate()) - threads],
    "loaded": sorted({name.partition(".")[0] for name in set(sys.modules) - loaded}),
}
sys.stdout.write("\\n" + json.dumps(report) + "\\n")
"""


def imported(
    names: list[str], *, hidden: list[str] | None = None, preload: list[str] | None = None, path: Path = ROOT
) -> dict[str, Any]:
    """What importing `names`, one after the other in a fresh process, did."""
    asked = {
        "modules": names,
        "hidden": hidden or [],
        "preload": preload or [],
        "no_unix_sockets": "fcntl" in (hidden or []),
        "absent": sorted(FRAMEWORKS - {"torch"}),
    }
    done = subprocess.run(
        [sys.executable, "-B", "-c", IMPORTER],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        cwd=path,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def foreign_imports(*rooms: str) -> list[str]:
    """What our modules import of others at module level: loaded beforehand, it cannot be taken for our doing."""
    found = {
        each.target
        for module, each in all_imports()
        if each.top not in ("neuraldbg", "neural") and not (each.lazy or each.typing_only)
        if not rooms or module.room in rooms
    }
    return sorted(each for each in found if each.partition(".")[0] not in PLATFORM_ONLY)


def importable(rooms: set[str] | frozenset[str] | None = None) -> list[str]:
    names = [each.name for each in modules().values() if rooms is None or each.room in rooms]
    return [name for name in names if name.rpartition(".")[2] != "__main__"]


def test_what_an_import_does_is_seen(tmp_path: Path) -> None:
    (tmp_path / "busy_sample.py").write_text(
        "import threading\nopen(__file__ + '.out', 'w').close()\n"
        "threading.Thread(target=threading.Event().wait, daemon=True, name='left').start()\nimport fcntl\n"
    )
    report = imported(["busy_sample"], hidden=PLATFORM_ONLY, path=tmp_path)
    assert "fcntl" in report["failed"]["busy_sample"]
    assert report["written"] == [str(tmp_path / "busy_sample.py.out")]
    assert report["threads"] == ["left"]


def test_importing_neuraldbg_is_light() -> None:
    report = imported(["neuraldbg"])
    assert report["failed"] == {}
    assert report["written"] == report["threads"] == []
    assert set(report["loaded"]) & {*FRAMEWORKS, "fastapi", "uvicorn", "rich"} == set()


def test_no_framework_comes_with_the_rooms_that_show() -> None:
    report = imported(importable({*MAY_IMPORT, *FRONTS} - FRAMEWORK_ROOMS - {"neural"}))
    assert report["failed"] == {}
    assert set(report["loaded"]) & FRAMEWORKS == set()


def test_importing_any_module_does_nothing_also_without_unix() -> None:
    report = imported(importable(), hidden=PLATFORM_ONLY, preload=foreign_imports())
    assert report["failed"] == {}
    assert report["written"] == report["threads"] == []


def test_a_bare_node_can_record() -> None:
    without_framework = imported(["neuraldbg", "neuraldbg.trace", "neuraldbg.capture"], hidden=OPTIONAL)
    assert without_framework["failed"] == {}
    assert set(without_framework["loaded"]) & FRAMEWORKS == set()
    report = imported(importable(LEAN_ROOMS), hidden=OPTIONAL, preload=foreign_imports("capture"))
    assert report["failed"] == {}
