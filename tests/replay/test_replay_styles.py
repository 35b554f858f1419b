"""`neural replay` of trainings of many styles: what can be made again is, what cannot is refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from whatif_command import neural

TWO_NETWORKS = """
import numpy as np
import torch
from torch import nn

F = nn.functional
maker = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
judge = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(16, 1))
of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3)
of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3)
ones, zeros, truth = torch.ones(16, 1), torch.zeros(16, 1), {}
for turn in range(20):
    judge.zero_grad()
    F.binary_cross_entropy_with_logits(judge(torch.randn(16, 8)), ones).backward()
    made = maker(torch.randn(16, 4))
    truth[f"maker {2 * turn}"] = made.detach().numpy().copy()
    made.register_hook(lambda g, turn=turn: truth.__setitem__(f"gradient {2 * turn}", g.numpy().copy()))
    F.binary_cross_entropy_with_logits(judge(made.detach()), zeros).backward()
    truth[f"judge {2 * turn}"] = judge[0].weight.grad.numpy().copy()
    of_judge.step()
    maker.zero_grad()
    F.binary_cross_entropy_with_logits(judge(made), ones).backward()
    of_maker.step()
np.savez("truth.npz", **truth)
"""

GRAPH = """
import numpy as np
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self, size, out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, out) * 0.3)

    def forward(self, x, links):
        return torch.sparse.mm(links, x @ self.weight)

class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Layer(6, 8), Layer(8, 3)

    def forward(self, x, links):
        return self.second(torch.relu(self.first(x, links)), links)

ends = torch.randint(0, 30, (2, 90))
links = torch.sparse_coo_tensor(ends, torch.rand(90), (30, 30)).coalesce()
x, y = torch.randn(30, 6), torch.randint(0, 3, (30,))
model = Graph()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
truth = {}
for step in range(30):
    optimizer.zero_grad()
    out = model(x, links if step % 2 else links.to_sparse_csr())
    truth[f"output {step}"] = out.detach().numpy().copy()
    nn.functional.cross_entropy(out, y).backward()
    truth[f"weight_gradient {step}"] = model.first.weight.grad.numpy().copy()
    optimizer.step()
np.savez("truth.npz", **truth)
"""

CAST = """
import numpy as np
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
truth = {}
for step in range(20):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(torch.randn(64, 8)), torch.randint(0, 3, (64,)))
    loss.backward()
    truth[f"weight_gradient {step}"] = model[0].weight.grad.numpy().copy()
    optimizer.step()
np.savez("truth.npz", **truth)
"""

BY_HAND = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    if step >= 5:
        model[0].weight.data.mul_(0.99)
"""

OTHER_PROCESSES = """
import torch
import torch.multiprocessing as mp
from torch import nn

def work(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()

if __name__ == "__main__":
    model = nn.Linear(4, 1)
    model.share_memory()
    child = mp.get_context("spawn").Process(target=work, args=(model,))
    child.start()
    child.join()
"""


def recorded(folder: Path, script: str, name: str = "train.py", *words: str) -> Path:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(script)
    done = neural(folder, "debug", "--headless", "--record", "full", "--out", "run", *(words or (name,)))
    assert done.returncode == 0, done.stderr
    return folder


def made_again(folder: Path, step: int, layer: str, what: str) -> tuple[dict[str, Any], Any]:
    saved = folder / "run" / "saved.npy"
    done = neural(
        folder, "replay", "run", "--json", "--step", str(step), "--layer", layer, "--what", what, "--save", str(saved)
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), np.load(saved)


def test_of_two_networks_with_two_optimizers_every_step_comes_back(tmp_path: Path) -> None:
    recorded(tmp_path, TWO_NETWORKS)
    with np.load(tmp_path / "truth.npz") as truth:
        for step, layer, what, name in (
            (24, "maker.3", "output", "maker"),
            (24, "maker.3", "gradient", "gradient"),  # comes with the update after it
            (30, "judge.0", "weight_gradient", "judge"),
        ):
            told, found = made_again(tmp_path, step, layer, what)
            assert told["proof"] == "proved identical"
            assert np.array_equal(found, truth[f"{name} {step}"])


def test_sparse_inputs_come_back(tmp_path: Path) -> None:
    recorded(tmp_path, GRAPH)
    with np.load(tmp_path / "truth.npz") as truth:
        for step, layer, what in ((20, "second", "output"), (21, "first", "weight_gradient")):
            told, found = made_again(tmp_path, step, layer, what)
            assert told["proof"] == "proved identical"
            assert np.array_equal(found, truth[f"{what} {step}"])


def test_a_backward_outside_of_autocast_is_made_again_outside_of_it(tmp_path: Path) -> None:
    """The models are built by a pass inside of it."""
    recorded(tmp_path, CAST)
    told, found = made_again(tmp_path, 15, "0", "weight_gradient")
    assert told["proof"] == "proved identical"
    with np.load(tmp_path / "truth.npz") as truth:
        assert np.array_equal(found, truth["weight_gradient 15"])


def test_a_package_that_is_run_as_a_module_is_replayed(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "shape.py").write_text("WIDTH = 8\n")
    script = BY_HAND.replace("step >= 5", "False").replace("import torch\n", "import torch\nfrom .shape import WIDTH\n")
    recorded(tmp_path, script, "pack/__main__.py", "-m", "pack")
    told, found = made_again(tmp_path, 12, "0", "output")
    assert told["proof"] == "proved identical"
    assert found.shape == (8, 8)
    (tmp_path / "pack" / "shape.py").write_text("WIDTH = 9\n")
    refused = neural(tmp_path, "replay", "run", "--step", "12")
    assert refused.returncode == 2
    assert "changed since the run was recorded: pack/shape.py" in refused.stderr


def test_weights_that_a_hand_moves_are_noticed(tmp_path: Path) -> None:
    recorded(tmp_path, BY_HAND)
    done = neural(tmp_path, "replay", "run", "--step", "3")
    assert "proved identical" in done.stdout
    done = neural(tmp_path, "replay", "run", "--step", "12")
    assert done.returncode == 6
    assert "not identical since update 6" in done.stdout


FED = """
import torch
from torch import nn

class Fed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.queue = nn.Linear(4, 1), []

    def forward(self, x):
        return self.body(x) * self.queue.pop()

model = Fed()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    model.queue.append(2.0)
    optimizer.zero_grad()
    try:
        model(torch.randn(8, 4)).square().mean().backward()
    except Exception:
        print("the batch is left out")
    optimizer.step()
"""


def test_a_model_that_fails_in_the_replay_is_told_with_its_error(tmp_path: Path) -> None:
    recorded(tmp_path, FED)
    done = neural(tmp_path, "replay", "run", "--step", "5")
    assert done.returncode == 2
    assert "step 5 cannot be made again: IndexError: pop from empty list" in done.stderr


def test_what_other_processes_train_is_refused_with_the_reason(tmp_path: Path) -> None:
    recorded(tmp_path, OTHER_PROCESSES)
    done = neural(tmp_path, "replay", "run", "--step", "2")
    assert done.returncode == 2
    assert "children are not recorded" in done.stderr


@pytest.mark.parametrize("words", [["--record-memory", "1MB"], []])
def test_a_state_that_does_not_fit_ends_the_recording_and_says_so(tmp_path: Path, words: list[str]) -> None:
    script = BY_HAND.replace("nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)", "nn.Linear(4, 40000), nn.Linear(40000, 1)")
    (tmp_path / "train.py").write_text(script)
    done = neural(tmp_path, "debug", "--headless", "--record", "full", *words, "--out", "run", "train.py")
    assert done.returncode == 0
    done = neural(tmp_path, "replay", "run", "--step", "3")
    assert ("--record-memory" in done.stderr) is bool(words)
    assert done.returncode == (2 if words else 0)


NETWORK = """
network Tiny {
  input: (8,)
  layers:
    Dense(16, activation="relu")
    Output(3, activation="softmax")
  loss: "categorical_crossentropy"
  optimizer: SGD(learning_rate=60.0)
  train {
    epochs: 1
    batch_size: 16
  }
}
"""


@pytest.mark.slow
def test_a_neural_file_is_replayed_and_its_cure_proved(tmp_path: Path) -> None:
    recorded(tmp_path, NETWORK, "tiny.neural")
    assert "proved identical" in neural(tmp_path, "replay", "run", "--step", "5").stdout
    done = neural(tmp_path, "whatif", "run", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["notes"] == []
    cures = {arm["intervention"]: arm["causes"] for arm in found["arms"] if arm["verdict"] == "verified"}
    assert cures["patch"] == ["learning_rate_too_high"]
    assert (tmp_path / "tiny.neural").read_text() == NETWORK
