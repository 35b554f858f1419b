"""Real trainings under `neural debug`: recorded ones, and one that goes on with its page open."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEURAL = [sys.executable, "-c", "from neuraldbg.surfaces.cli import main; main()"]
PATIENCE_S = 120
SCRIPT = """
import sys, time
import torch
from torch import nn

torch.manual_seed(0)
lr, steps, crash_at, nap = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
blocks = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(3)))
model = nn.Sequential(blocks, nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
inputs = torch.randn(512, 32)
targets = inputs[:, :1] * 3 + inputs[:, 1:2].sin() + 0.1 * torch.randn(512, 1)
for step in range(steps):
    batch = torch.randint(0, 512, (32,))
    loss = nn.functional.mse_loss(model(inputs[batch]), targets[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 19:
        torch.save(model.state_dict(), "model.pt")
    time.sleep(nap)
    if step == crash_at:
        raise RuntimeError("the loader gave up")
"""


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1", **changes}


def started(folder: Path, name: str, words: Sequence[str], *options: str, **changes: str) -> subprocess.Popen[str]:
    script = folder / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    command = [*NEURAL, "debug", "--budget", "full", "--out", str(folder / name), *options, str(script), *words]
    return subprocess.Popen(
        command, cwd=folder, env=environment(**changes), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, encoding="utf-8",
    )  # fmt: skip


def record(folder: Path) -> dict[str, Path]:
    """A healthy run, one whose learning rate is far too high, and one that crashed."""
    wanted = {
        "healthy": (["0.01", "40", "-1", "0"], 0),
        "diverging": (["9", "40", "-1", "0"], 0),
        "crashed": (["0.01", "40", "25", "0"], 1),
    }
    for name, (words, code) in wanted.items():
        training = started(folder, name, words, "--headless")
        _, said = training.communicate(timeout=PATIENCE_S)
        assert training.returncode == code, said
    return {name: folder / name for name in wanted}


def report(run: Path, file: Path) -> None:
    """`neural report --format html`."""
    command = [*NEURAL, "report", str(run), "--format", "html", "-o", str(file)]
    subprocess.run(command, env=environment(), check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE_S)


@contextmanager
def going_on(folder: Path) -> Iterator[str]:
    """The address of the page of a training that lasts until we are done with it."""
    training = started(folder, "live", ["0.01", "100000", "-1", "0.02"], "--port", "8350")
    drain: threading.Thread | None = None
    try:
        assert training.stderr is not None
        address, until = None, time.monotonic() + PATIENCE_S
        while address is None and time.monotonic() < until:
            line = training.stderr.readline()
            assert line, "the training ended before its page was there"
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            address = found and found.group()
        assert address is not None
        drain = threading.Thread(target=training.stderr.read)
        drain.start()
        yield address
    finally:
        training.send_signal(signal.SIGINT)
        try:
            training.wait(30)
        except subprocess.TimeoutExpired:
            training.kill()
            training.wait()
        if drain is not None:
            drain.join()
        if training.stderr is not None:
            training.stderr.close()


@contextmanager
def viewing(*runs: Path, port: int = 8450, cwd: Path | None = None, **changes: str) -> Iterator[str]:
    """`neural view` of recorded runs."""
    server = subprocess.Popen(
        [*NEURAL, "view", "--port", str(port), *map(str, runs)], cwd=cwd or runs[0].parent, env=environment(**changes),
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, encoding="utf-8",
    )  # fmt: skip
    try:
        assert server.stderr is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", server.stderr.readline())
        assert found is not None
        yield found.group()
    finally:
        server.terminate()
        server.wait(30)
        if server.stderr is not None:
            server.stderr.close()


def without(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"no {what}: CI has to have it", pytrace=False)
    pytest.skip(f"no {what}")
