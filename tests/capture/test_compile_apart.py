"""Kernels compiled by a child, for a device that need not be there: `make interpreted` brings Triton and its ptxas."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neuraldbg.capture.kernels import apart

PROGRAM = Path(__file__).with_name("pretended_gpu.py")
ROOT = PROGRAM.parents[2]


def has_compiler() -> bool:
    found = importlib.util.find_spec("triton")
    return found is not None and (Path(str(found.origin)).parent / "backends" / "nvidia" / "bin" / "ptxas").exists()


needs_compiler = pytest.mark.skipif(not has_compiler(), reason="no triton, or it was taken its ptxas")


def measured(cache: Path, *troubles: str) -> dict[str, Any]:
    search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": search, "TRITON_CACHE_DIR": str(cache)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, str(PROGRAM), *troubles]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def compiled(cache: Path) -> dict[str, int]:
    return {str(path.relative_to(cache)): path.stat().st_mtime_ns for path in cache.rglob("*.cubin")}


def interpreter(folder: Path, name: str, code: str) -> str:
    made = folder / name
    made.write_text(f"#!/bin/sh\n{code}\n", encoding="utf-8")
    made.chmod(0o755)
    return str(made)


@needs_compiler
def test_a_child_compiles_what_triton_then_finds(tmp_path: Path) -> None:
    first = measured(tmp_path / "apart", "none")
    assert first["ours"] == [{**first["ours"][0], "works": True, "children": 2, "found": [True, True]}]
    made = compiled(tmp_path / "apart")
    assert len(made) == 3  # the user's is one of them
    again = measured(tmp_path / "apart", "none")
    assert again["ours"] == [{**first["ours"][0], "children": 0}]
    assert compiled(tmp_path / "apart") == made
    within = measured(tmp_path / "within", "in process")
    assert within["ours"] == [{**first["ours"][0], "works": False, "children": 0, "found": [False, False]}]
    assert compiled(tmp_path / "within").keys() == made.keys()


@needs_compiler
def test_kernels_of_the_user_are_compiled_as_ever(tmp_path: Path) -> None:
    said = measured(tmp_path)
    assert said == {"ours": [], "user": {**said["user"], "children": 0, "found": [False]}, "hook": False}


@needs_compiler
def test_without_a_child_triton_compiles_as_ever(tmp_path: Path) -> None:
    troubles = [
        interpreter(tmp_path, "python-fails", "exit 3"),
        interpreter(tmp_path, "python-does-nothing", "exit 0"),
        "patience:" + interpreter(tmp_path, "python-hangs", "exec sleep 60"),
        interpreter(tmp_path, "train", "exit 0"),  # somebody's program with Python in it
        str(tmp_path / "python-is-gone"),
        "no interpreter",
    ]
    said = measured(tmp_path / "cache", *troubles)["ours"]
    assert [one["works"] for one in said] == [False] * len(troubles)
    assert [one["found"] for one in said] == [[False, False]] + [[False]] * (len(troubles) - 1)
    assert [one["children"] for one in said] == [1] * len(troubles)
    assert [len(one["hashes"]) for one in said] == [2] * len(troubles)


class Kernel:
    """As of a Triton that is not known."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def compile(self, *args: Any, **named: Any) -> str:
        self.asked.append((*args, named))
        return "kernel"

    def _do_compile(self, key: str) -> str:
        return self.compile(key, options={})


def test_another_triton_is_asked_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart._CompileApart, "works", True)
    kernel = Kernel()
    apart.compile_apart(kernel)
    assert [kernel._do_compile("a"), kernel._do_compile("b")] == ["kernel", "kernel"]
    assert kernel.asked == [("a", {"options": {}}), ("b", {"options": {}})]
    assert not apart._CompileApart.works


def test_a_kernel_that_is_never_compiled_stays_as_it_is() -> None:
    interpreted = type("Interpreted", (), {})()
    apart.compile_apart(interpreted)
    assert vars(interpreted) == {}
