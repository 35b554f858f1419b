"""What `neural replay` shows and saves of a tensor is the tensor, however it lies in memory, or a reason."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from forkserver import ForkServer
from safetensors.numpy import load_file
from whatif_command import neural

SCRIPT = """
import numpy as np
import torch
from torch import nn
torch.manual_seed(0)

class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)

    def forward(self, links, x):
        return torch.sparse.mm(links, self.body(x)).view(2, 3, 4).transpose(0, 2)

class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.turned, self.head = Turned(), nn.Linear(2, 1)

    def forward(self, links, x):
        return self.head(self.turned(links, x))

model = Whole()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
truth = {}
model.turned.register_forward_hook(lambda _, __, output: truth.update(turned=output.detach().numpy().copy()))
links = torch.eye(6).to_sparse()
for step in range(4):
    optimizer.zero_grad()
    model(links, torch.randn(6, 4)).square().mean().backward()
    if step == 0:
        import later
    optimizer.step()
np.savez("truth.npz", **truth)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, torch_server: ForkServer) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "later.py").write_text("import time\ntime.sleep(2.5)\nimport last\n")  # beyond the first file of the tape
    (folder / "last.py").write_text("RATE = 1\n")
    done = torch_server.neural("debug", "--headless", "--record", "full", "--out", "run", "train.py", cwd=folder)
    assert done.code == 0, done.stderr
    return folder


def test_what_is_saved_and_shown_is_in_the_order_of_its_shape(project: Path) -> None:
    saved = project / "run" / "saved.safetensors"
    words = ("replay", "run", "--step", "3", "--layer", "turned", "--save", str(saved), "--slice", "1, :2")
    done = neural(project, *words, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    with np.load(project / "truth.npz") as truth:
        assert np.array_equal(load_file(saved)["tensor"], truth["turned"])
        part = truth["turned"][1, :2]
    assert told["proof"] == "proved identical"
    assert told["tensor"]["slice_shape"] == [2, 2]
    assert np.array_equal(np.array(told["tensor"]["values"], np.float32), part.reshape(-1))
    shown = neural(project, *words).stdout
    assert "Part       1, :2: 2 x 2" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--layer", "turned", "--what", "input", "--slice", "0"], "sparse or complex: only its shape is known"),
        (["--layer", "turned", "--slice", "0, 1, 2, 3, 4"], "does not fit the shape"),
        (["--layer", "turned", "--slice", "one"], "'one' is no part of a slice"),
        (["--slice", "0"], "--slice needs a --layer"),
    ],
)
def test_a_part_that_is_not_there_is_refused(project: Path, words: list[str], said: str) -> None:
    done = neural(project, "replay", "run", "--step", "3", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_was_imported_late_and_changed_since_is_named(project: Path) -> None:
    before = (project / "last.py").read_text()
    (project / "last.py").write_text("RATE = 2\n")
    try:
        done = neural(project, "replay", "run", "--step", "3")
    finally:
        (project / "last.py").write_text(before)
    assert done.returncode == 2
    assert "changed since the run was recorded: last.py" in done.stderr


def test_a_bundle_that_cannot_be_written_is_told_in_one_line(project: Path) -> None:
    done = neural(project, "export", "run", "--format", "repro", "--step", "2", "-o", "train.py/step")
    assert done.returncode == 2
    assert "cannot write train.py/step" in done.stderr
    assert "Traceback" not in done.stderr
