"""`neural debug` of small torch scripts in processes of their own, asked over their own port."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from commands import AS_SCRIPT, environment
from waiting import eventually

TRAIN = """
import hashlib, random, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
random.seed(7)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(4 * 6 * 6, 3)

    def forward(self, x):
        return self.fc(self.drop(torch.relu(self.conv1(x))).flatten(1))


model = Net()
data = DataLoader(TensorDataset(torch.randn(64, 1, 8, 8), torch.randint(0, 3, (64,))), batch_size=8, shuffle=True)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(int(sys.argv[1])):
    for x, y in data:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        time.sleep(float(sys.argv[2]))
digest = hashlib.sha256()
for tensor in (*model.state_dict().values(), torch.get_rng_state()):
    digest.update(tensor.numpy().tobytes())
digest.update(repr(random.getstate()).encode())
print("done", digest.hexdigest(), loss.item(), flush=True)
sys.exit(3)
"""
NAN = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(50):
    optimizer.zero_grad()
    x = torch.full((8, 4), float("nan")) if step == 20 else torch.randn(8, 4)
    model(x).pow(2).mean().backward()
    optimizer.step()
print("reached the end")
"""
DEAD = """
import sys, time
import torch
from torch import nn
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
with torch.no_grad():
    model[0].bias[:6] = -100.0
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
until = time.monotonic() + 120
step = 0
while time.monotonic() < until:
    step += 1
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    time.sleep(0.005)
    import os
    if os.path.exists("stop"):
        break
print("done", flush=True)
"""


class Real:
    """A command in a process of its own, its output in files, its server asked by curl."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder, self.run_dir = folder, folder / "run"
        self._out, self._err = folder / f"{words[0]}.out", folder / f"{words[0]}.err"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-c", AS_SCRIPT, *words],
                cwd=folder, env=environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            )  # fmt: skip

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def url(self) -> str:
        self.wait_for(r"serving on (http://\S+)")
        found = re.search(r"serving on (http://\S+)", self.err)
        assert found is not None
        return found[1]

    def wait_for(self, pattern: str, timeout_s: float = 60.0) -> None:
        try:
            eventually(lambda: re.search(pattern, self.err + self.out) or self.process.poll() is not None, timeout_s)
        finally:
            assert re.search(pattern, self.err + self.out), self.err

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The answer to what one of the seeds' curl lines asks; fails where it is a refusal."""
        words = ["curl", "-sS", "--fail-with-body", "--max-time", "30", "-X", method, self.url + path]
        words += [] if body is None else ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
        told = subprocess.run(words, capture_output=True, text=True, check=False)
        assert told.returncode == 0, (told.stdout, told.stderr, self.err)
        return json.loads(told.stdout)

    def paused(self) -> dict[str, Any]:
        """The place of the pause, once there is one."""
        state: dict[str, Any] = {}

        def looked() -> bool:
            state.clear()
            state.update(self.ask("GET", "/api/state"))
            return bool(state["state"] == "paused")

        eventually(looked)
        return state

    @property
    def server_pid(self) -> int:
        return int(json.loads((self.run_dir / "server.json").read_text())["pid"])

    def end(self, timeout_s: float = 90.0) -> int:
        return self.process.wait(timeout_s)


@contextmanager
def real(folder: Path, *words: str) -> Iterator[Real]:
    made = Real(folder, *words)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            with suppress(OSError, ValueError, KeyError):
                os.kill(made.server_pid, signal.SIGCONT)
            made.process.send_signal(signal.SIGCONT)
            made.process.kill()  # its viewer learns of it and ends
        made.process.wait(30)


def plain(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "train.py", *args], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
