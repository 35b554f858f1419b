"""`neural export --format repro`: the folder alone makes the step again, gradients included, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from forkserver import ForkServer
from whatif_command import neural

HEAD = """
from collections import namedtuple
import torch
from torch import nn
F = nn.functional
torch.manual_seed(0)
"""
LOOP = """
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(12):
    optimizer.zero_grad()
    {loss}.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
"""
CHANNELS_LAST = (
    HEAD
    + "model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten())\n"
    + "model = model.to(memory_format=torch.channels_last)\n"
    + LOOP.format(loss="model(torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)).square().mean()")
)
OWN_CLASSES = (
    HEAD
    + """
Pair = namedtuple("Pair", ["links", "x"])

class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)

    def forward(self, pair):
        hidden = self.body(torch.sparse.mm(pair.links, pair.x))
        return {"inner": [hidden.mean()], "hidden": hidden, "loss": hidden.square().mean()}

model = Graph()
links = torch.eye(8).roll(1, 0).to_sparse()
"""
    + LOOP.format(loss='model(Pair(links, torch.randn(8, 4)))["loss"]')
)
NOT_A_NUMBER = (
    HEAD
    + "model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))\n"
    + LOOP.format(loss="F.mse_loss(model(torch.randn(8, 4) / (0 if step == 5 else 1)), torch.zeros(8, 1))")
)
PILED_UP = """
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
for step in range(12):
    out = model(torch.randn(8, 4))
    scaler.scale(F.mse_loss(out, torch.ones(8, 2))).backward(retain_graph=True)
    scaler.scale(out.square().mean()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
"""
PROGRAMS = {
    "channels_last": CHANNELS_LAST,
    "own_classes": OWN_CLASSES,
    "not_a_number": NOT_A_NUMBER,
    "piled_up": HEAD + PILED_UP,
}


def bundled(folder: Path, server: ForkServer, step: int, *target: str) -> Path:
    done = server.neural("debug", "--headless", "--record", "full", "--out", "run", *target, cwd=folder)
    assert done.code == 0, done.stderr
    told = neural(folder, "export", "run", "--format", "repro", "--step", str(step), "-o", "step", "--json")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["proof"] == "proved identical"
    return folder / "step"


def fresh(bundle: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Without neuraldbg on the path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "repro.py", *words]
    return subprocess.run(command, cwd=bundle, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_outputs_losses_and_gradients_come_out_the_same(name: str, tmp_path: Path, torch_server: ForkServer) -> None:
    (tmp_path / "train.py").write_text(PROGRAMS[name])
    again = fresh(bundled(tmp_path, torch_server, 5, "train.py"))
    assert again.returncode == 0, again.stdout + again.stderr
    assert "NOT" not in again.stdout
    assert "parameters: identical" in again.stdout


TWO_NETWORKS = (
    HEAD
    + """
maker, judge = nn.Linear(4, 8), nn.Linear(8, 1)
of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3)
of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3)
ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
for turn in range(6):
    judge.zero_grad()
    made = maker(torch.randn(16, 4))
    F.binary_cross_entropy_with_logits(judge(made.detach()), zeros).backward()
    of_judge.step()
    maker.zero_grad()
    made = made if turn % 2 else maker(torch.randn(16, 4))
    F.binary_cross_entropy_with_logits(judge(made), ones).backward()
    of_maker.step()
"""
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "said"), [(5, "parameters: identical"), (7, "not compared; part of them went through a pass of a step")]
)
def test_a_loss_behind_two_networks_is_of_the_second(
    step: int, said: str, tmp_path: Path, torch_server: ForkServer
) -> None:
    (tmp_path / "train.py").write_text(TWO_NETWORKS)
    again = fresh(bundled(tmp_path, torch_server, step, "train.py"))
    assert again.returncode == 0, again.stdout + again.stderr
    assert "loss" in again.stdout
    assert said in again.stdout


PACKAGE = (
    "from .shape import WIDTH\n"
    + HEAD
    + "rows = [float(line) for line in open('data.txt')]\nmodel = nn.Linear(WIDTH, 1)\n"
    + LOOP.format(loss="model(torch.randn(len(rows), WIDTH)).square().mean()")
    + "open('done.txt', 'w').write('done')\n"
)


@pytest.mark.slow
def test_of_a_package_that_reads_data_it_says_where_to_run_it(tmp_path: Path, torch_server: ForkServer) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "shape.py").write_text("WIDTH = 4\n")
    (tmp_path / "pack" / "train.py").write_text(PACKAGE)
    (tmp_path / "data.txt").write_text("1\n2\n3\n")
    bundle = bundled(tmp_path, torch_server, 5, "-m", "pack.train")
    (tmp_path / "done.txt").unlink()
    alone = fresh(bundle)
    assert alone.returncode == 1
    assert "No such file" in alone.stderr
    assert "where its data lies: python repro.py PROJECT" in alone.stderr
    again = fresh(bundle, str(tmp_path))
    assert again.returncode == 0, again.stdout + again.stderr
    assert "parameters: identical" in again.stdout
    assert not (tmp_path / "done.txt").exists()
    assert "has no pack/train.py" in fresh(bundle, str(tmp_path / "pack")).stderr


@pytest.mark.slow
def test_a_wrong_gradient_or_a_script_that_builds_nothing_is_no_success(
    tmp_path: Path, torch_server: ForkServer
) -> None:
    (tmp_path / "train.py").write_text(PROGRAMS["piled_up"])
    bundle = bundled(tmp_path, torch_server, 5, "train.py")
    told = json.loads((bundle / "step.json").read_text())
    told["begun"] = {}  # what was piled up before
    (bundle / "step.json").write_text(json.dumps(told))
    again = fresh(bundle)
    assert again.returncode == 1
    assert "NOT identical (0/weight" in again.stdout
    (bundle / "source" / "train.py").write_text("import sys\nsys.exit(0)\n")
    ended = fresh(bundle)
    assert ended.returncode == 1
    assert "before its models were there" in ended.stderr
