"""What `neural debug model.neural` finds: a healthy network reads healthy; a finding has a line, and a patch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "programs" / "dsl"
AS_SCRIPT = "import sys; sys.argv[0] = 'neural'; from neuraldbg.surfaces.cli import main; main()"


def debugged(name: str, text: str, cwd: Path) -> dict[str, Any]:
    (cwd / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", AS_SCRIPT, "debug", name, "--headless", "--export", "session.json"]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    session: dict[str, Any] = json.loads((cwd / "session.json").read_text())
    return session


def patched(session: dict[str, Any], kind: str, text: str) -> str:
    """The file after the first patch of a finding."""
    finding = next(each for each in session["findings"] if each["kind"] == kind)
    patch = next(each["patch"] for each in finding["suggestions"] if each["patch"])
    gone = [line[1:] for line in patch.splitlines() if line.startswith("-") and not line.startswith("---")]
    come = [line[1:] for line in patch.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert (len(gone), len(come)) == (1, 1)
    assert text.count(gone[0] + "\n") == 1
    return text.replace(gone[0] + "\n", come[0] + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("program", ["vae", "autoencoder", "gan", "seq2seq"])
def test_a_healthy_network_reads_healthy(program: str, tmp_path: Path) -> None:
    session = debugged("model.neural", (PROGRAMS / f"{program}.neural").read_text(), tmp_path)
    assert session["verdict"]["state"] == "healthy", session["verdict"]
    assert [finding["kind"] for finding in session["findings"] if finding["severity"] != "info"] == []


FAST = """network Fast {
    input: (16,)
    layers:
        Dense(32, activation="relu")
        Dense(32, activation="relu")
        Output(4, activation="softmax")
    loss: "sparse_categorical_crossentropy"
    optimizer: SGD(learning_rate=40.0)
    train { epochs: 3 batch_size: 64 }
}
"""


@pytest.mark.slow
def test_a_rate_that_is_too_high_is_found_on_its_line_and_the_patch_mends_it(tmp_path: Path) -> None:
    session = debugged("fast.neural", FAST, tmp_path)
    first = session["findings"][0]
    assert (first["kind"], first["source"]) == ("learning_rate_too_high", "fast.neural:8")
    again = debugged("fast.neural", patched(session, "learning_rate_too_high", FAST), tmp_path)
    assert again["verdict"]["state"] == "healthy", again["verdict"]


@pytest.mark.slow
def test_a_softmax_that_was_left_out_is_told_and_taken_out_of_the_file(tmp_path: Path) -> None:
    text = FAST.replace("40.0", "0.1")
    session = debugged("fast.neural", text, tmp_path)
    found = {finding["kind"]: finding for finding in session["findings"]}
    assert found["softmax_before_cross_entropy"]["source"] == "fast.neural:6"
    assert found["softmax_before_cross_entropy"]["severity"] == "info"
    mended = patched(session, "softmax_before_cross_entropy", text)
    assert "        Output(4)\n" in mended
    again = debugged("fast.neural", mended, tmp_path)
    assert "softmax_before_cross_entropy" not in {finding["kind"] for finding in again["findings"]}
