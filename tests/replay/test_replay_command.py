"""`neural replay`: after the run is over, or was killed, any tensor of any step, proved to be the one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from whatif_command import neural

from neuraldbg.replay.scratch import differences, look

SCRIPT = """
import json, os, signal, sys, time
import numpy as np
import torch
from torch import nn

width = json.load(open("settings.json"))["width"]
open("log.txt", "a").write("begun\\n")
model = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 3))
model[4].bias.requires_grad_(False)
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
truth = {}

def keep(module, _, output):
    truth[f"output {step}"] = output.detach().numpy().copy()
    output.register_hook(lambda g, step=step: truth.__setitem__(f"gradient {step}", g.numpy().copy()))

if not os.environ.get("NO_TRUTH"):
    model[0].register_forward_hook(keep)
for step in range(130):
    truth[f"weight {step}"] = model[0].weight.detach().numpy().copy()
    x = torch.randn(16, 8) + float(np.random.rand())
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step == 120 and "die" in sys.argv:
        np.savez("truth.npz", **truth)
        time.sleep(3)
    if step == 125 and "die" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
np.savez("truth.npz", **truth)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without a seed, recorded to its end."""
    return recorded(tmp_path_factory.mktemp("project"))


def recorded(folder: Path, *args: str, script: str = SCRIPT) -> Path:
    (folder / "train.py").write_text(script)
    (folder / "settings.json").write_text('{"width": 16}')
    neural(folder, "debug", "--headless", "--record", "full", "--out", "run", "train.py", *args)
    return folder


def replay(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return neural(folder, "replay", "run", *words)


def answer(folder: Path, *words: str) -> dict[str, Any]:
    done = replay(folder, "--json", *words)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("what", "step"), [("output", 3), ("gradient", 77), ("weight", 129)])
def test_a_tensor_that_was_never_stored_comes_back_bit_for_bit(project: Path, what: str, step: int) -> None:
    before = look(project)
    saved = project / "run" / "saved.npy"
    told = answer(project, "--step", str(step), "--layer", "0", "--what", what, "--save", str(saved))
    assert told["proof"] == "proved identical"
    assert told["checked"] > 0
    with np.load(project / "truth.npz") as truth:
        assert np.array_equal(np.load(saved), truth[f"{what} {step}"])
    assert [path for path in differences(before, look(project)) if not path.startswith("run/")] == []


def test_it_says_the_same_in_words(project: Path) -> None:
    done = replay(project, "--step", "5", "--layer", "4")
    assert "4 output at step 5: 16 x 3 float32" in done.stdout
    assert "proved identical" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--step", "500"], "steps 0 to 129 are recorded"),
        (["--step", "5", "--layer", "00"], "did you mean '0'?"),
        (["--step", "5", "--layer", "2", "--what", "weight"], "'2' has no weight at step 5; it has output"),
        (["--step", "5", "--what", "wieght"], "did you mean 'weight'?"),
        (["--step", "5", "--save", "x.pt", "--layer", "0"], "ends in .safetensors or .npy"),
        (["--step", "-1"], "-1"),
    ],
)
def test_what_cannot_be_answered_says_why(project: Path, words: list[str], said: str) -> None:
    done = replay(project, *words)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_run_without_a_recording_is_told_how_to_make_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\ntorch.nn.Linear(2, 2)(torch.zeros(1, 2))\n")
    neural(tmp_path, "debug", "--headless", "--record", "off", "--out", "run", "train.py")
    done = replay(tmp_path, "--step", "0")
    assert done.returncode == 2
    assert "--record full" in done.stderr


def test_a_killed_run_is_replayed_up_to_what_was_written(tmp_path: Path) -> None:
    recorded(tmp_path, "die")
    saved = tmp_path / "run" / "saved.npy"
    told = answer(tmp_path, "--step", "120", "--layer", "0", "--what", "gradient", "--save", str(saved))
    assert told["proof"] == "proved identical"
    with np.load(tmp_path / "truth.npz") as truth:
        assert np.array_equal(np.load(saved), truth["gradient 120"])


def test_a_changed_script_or_model_is_refused_by_name(tmp_path: Path) -> None:
    recorded(tmp_path)
    (tmp_path / "settings.json").write_text('{"width": 24}')
    done = replay(tmp_path, "--step", "5")
    assert done.returncode == 2
    assert "parameter 0.weight [16, 8] float32 is now 0.weight [24, 8] float32" in done.stderr
    (tmp_path / "train.py").write_text(SCRIPT + "# edited\n")
    done = replay(tmp_path, "--step", "5")
    assert done.returncode == 2
    assert "changed since the run was recorded: train.py" in done.stderr


def test_a_changed_script_that_lies_elsewhere_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    script = tmp_path / "train.py"
    plain = CLOSURE.replace("LBFGS(model.parameters(), max_iter=3)", "SGD(model.parameters(), lr=0.1)")
    script.write_text(plain.replace("optimizer.step(closure)", "closure()\n    optimizer.step()"))
    neural(tmp_path / "here", "debug", "--headless", "--out", "run", "../train.py")
    assert "proved identical" in replay(tmp_path / "here", "--step", "2").stdout
    script.write_text(script.read_text() + "# edited\n")
    done = replay(tmp_path / "here", "--step", "2")
    assert done.returncode == 2
    assert f"changed since the run was recorded: {script}" in done.stderr


def test_one_flipped_bit_of_the_recording_is_noticed(tmp_path: Path) -> None:
    recorded(tmp_path)
    state = sorted((tmp_path / "run" / "record").glob("state-*.safetensors"))[0]
    data = bytearray(state.read_bytes())
    data[-3] ^= 1
    state.write_bytes(bytes(data))
    done = replay(tmp_path, "--step", "5")
    assert done.returncode == 6
    assert "not identical since update 0" in done.stdout


CLOSURE = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
x, y = torch.randn(16, 4), torch.randn(16, 1)

def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss

for _ in range(5):
    optimizer.step(closure)
"""


def test_an_optimizer_that_calls_the_model_itself_is_refused(tmp_path: Path) -> None:
    recorded(tmp_path, script=CLOSURE)
    done = replay(tmp_path, "--step", "2")
    assert done.returncode == 2
    assert "closure" in done.stderr


def test_a_step_is_exported_and_made_again_by_a_fresh_process(project: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "step"
    done = neural(project, "export", "run", "--format", "repro", "--step", "42", "-o", str(bundle))
    assert done.returncode == 0, done.stderr
    assert "proved identical" in done.stdout
    kinds = {file.suffix for file in bundle.rglob("*") if file.is_file()}
    assert kinds == {".py", ".json", ".safetensors"}
    (bundle / "source" / "settings.json").write_text('{"width": 16}')
    again = fresh(bundle)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "loss" in again.stdout
    assert "NOT" not in again.stdout
    damaged = bundle / "weights.safetensors"
    data = bytearray(damaged.read_bytes())
    data[-2] ^= 64
    damaged.write_bytes(bytes(data))
    assert "NOT identical" in fresh(bundle).stdout


def fresh(bundle: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "repro.py"]
    return subprocess.run(command, cwd=bundle, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "said"), [([], "needs a --step"), (["--step", "500"], "steps 0 to 129 are recorded")]
)
def test_a_step_that_is_not_there_is_not_exported(project: Path, words: list[str], said: str) -> None:
    done = neural(project, "export", "run", "--format", "repro", *words)
    assert done.returncode == 2
    assert said in done.stderr
