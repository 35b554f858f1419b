"""`--deterministic`: repeatable kernels for the run, for its replay and for what is tried on it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from whatif_command import neural

from neuraldbg.capture.torch.repeatable import Repeatable, fix_workspace
from neuraldbg.replay.rebuild import Rebuilt

SCRIPT = """
import json, os, torch
torch.backends.cudnn.benchmark = True
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
flags = {
    "deterministic": torch.are_deterministic_algorithms_enabled(),
    "cudnn": torch.backends.cudnn.deterministic,
    "benchmark": torch.backends.cudnn.benchmark,
    "workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
}
print(json.dumps(flags))
"""


def flags(folder: Path, *words: str) -> dict[str, Any]:
    (folder / "train.py").write_text(SCRIPT)
    done = neural(folder, "debug", "--headless", "--record", "full", "--out", "run", *words, "train.py")
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    found: dict[str, Any] = json.loads(line)
    return found


def test_it_is_switched_on_before_the_first_pass_and_kept_with_the_run(tmp_path: Path) -> None:
    wanted = {"deterministic": True, "cudnn": True, "benchmark": False, "workspace": ":4096:8"}
    assert flags(tmp_path, "--deterministic") == wanted
    assert json.loads((tmp_path / "run" / "run.json").read_text())["deterministic"] is True
    environment = json.loads((tmp_path / "run" / "record" / "names.json").read_text())["environment"]
    assert (environment["deterministic"], environment["workspace"]) == (True, ":4096:8")
    done = neural(tmp_path, "replay", "run", "--step", "2", "--json")
    assert json.loads(done.stdout)["proof"] == "proved identical"


def test_nothing_is_switched_on_unasked(tmp_path: Path) -> None:
    found = flags(tmp_path)
    assert (found["deterministic"], found["benchmark"]) == (False, True)


def test_the_configuration_switches_it_on_too(tmp_path: Path) -> None:
    (tmp_path / "neural_config.yaml").write_text("deterministic: true\n")
    assert flags(tmp_path)["deterministic"] is True


def test_closing_leaves_torch_as_it_was() -> None:
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    switched = Repeatable()
    assert torch.are_deterministic_algorithms_enabled()
    switched.close()
    assert (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark) == before


def test_what_the_user_set_for_cublas_stays() -> None:
    environment = {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    fix_workspace(environment)
    assert environment == {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}


def test_without_it_gradients_of_a_gpu_are_marked_and_outputs_judged_by_themselves() -> None:
    made = Rebuilt(7, {}, 5, varies=True)
    made.compare(7, True, output=True)
    made.compare(7, False)  # a gradient
    assert made.proof_of("output") == ("proved identical", True)
    assert made.proof_of("gradient")[0].startswith("±")
    assert made.proof_of("weight_gradient")[1] is None
    made.compare(7, False, output=True)
    said, same = made.proof_of("output")
    assert same is False
    assert "not identical since update 7, ±" in said
    assert "exact at step 5" in said


def test_a_pass_after_the_step_says_nothing_of_the_outputs_of_the_step() -> None:
    made = Rebuilt(7, {}, 5, varies=True)
    made.compare(7, True, output=True)
    made.compare(8, False, output=True)
    assert made.proof_of("output") == ("proved identical", True)
    assert made.differs_since == 8


def test_the_script_for_a_gpu_holds_on_the_host(tmp_path: Path) -> None:
    benchmark = Path(__file__).parents[2] / "benchmarks" / "gpu" / "replay.py"
    command = [sys.executable, str(benchmark), "--device", "cpu", "--small", "--only", "cnn"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert found["ok"] is True, found
    assert found["cnn"]["deterministic"]["57"]["checked"] > 0
