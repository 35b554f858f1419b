"""The examples of the page about clusters run as they stand, as far as one machine goes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import ROOT, environment, neural
from recorded import rows_and_facts
from waiting import eventually

from neuraldbg.errors import NeuralDbgError
from neuraldbg.store.importing import import_run
from neuraldbg.store.manifest import open_dataset
from neuraldbg.store.places import open_place
from neuraldbg.trace import open_trace

SCRIPT = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


def neural_on_path(folder: Path) -> str:
    """The console script, as an installation has it."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    script = bin_folder / "neural"
    script.write_text(f"#!{sys.executable}\nfrom neuraldbg.surfaces.cli import main\nmain()\n")
    script.chmod(0o755)
    return f"{bin_folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.slow
def test_the_slurm_script_runs_as_one_task_and_ships_to_a_folder(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    env = environment(STORE=f"file://{tmp_path}/store", PATH=neural_on_path(tmp_path))
    words = ["bash", str(ROOT / "examples" / "slurm" / "train.sbatch"), "train.py"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    report = neural("report", "store/local", "--json", cwd=tmp_path, NEURALDBG_CACHE_DIR=str(tmp_path / "cache"))
    assert json.loads(report.stdout)["run"]["steps"] == 30


@pytest.mark.slow
def test_the_ray_example_runs_without_ray(tmp_path: Path) -> None:
    words = [sys.executable, str(ROOT / "examples" / "ray_train.py"), str(tmp_path / "runs")]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    report = neural("report", "runs/0", "--json", cwd=tmp_path, NEURALDBG_CACHE_DIR=str(tmp_path / "cache"))
    assert json.loads(report.stdout)["run"]["steps"] == 200


# waits for the viewer as long as it takes, where the examples have a fixed time
PATIENT = """#!/bin/bash
for _ in $(seq 600); do grep -qs '"complete": true' neuraldbg_runs/*/shipping.json && exit; /bin/sleep 0.1; done
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["slurm", "pod"])
def test_a_warning_ends_the_training_and_the_rest_is_shipped(tmp_path: Path, where: str) -> None:
    """Slurm warns all processes, Kubernetes only the first; `ship_every` is an hour."""
    (tmp_path / "train.py").write_text(SCRIPT.replace("range(30)", "iter(int, 1)"))
    store = f"file://{tmp_path}/store"
    env = environment(STORE=store, PATH=neural_on_path(tmp_path), NEURALDBG_SHIP_EVERY="3600")
    (tmp_path / "bin" / "sleep").write_text(PATIENT)
    (tmp_path / "bin" / "sleep").chmod(0o755)
    words = ["bash", str(ROOT / "examples" / "slurm" / "train.sbatch"), "train.py"]
    if where == "pod":
        (container,) = pods_of("job.yaml")[0]["containers"]
        shell, said = container["command"], container["args"]
        words = [*shell, *said[: said.index("--out")], "--out", f"{store}/local", "train.py"]
    process = subprocess.Popen(words, cwd=tmp_path, env=env, start_new_session=True, stderr=subprocess.PIPE)
    assert process.stderr is not None
    eventually(lambda: any(trained(run) > 20 for run in (tmp_path / "neuraldbg_runs").glob("*-train")))
    os.killpg(process.pid, signal.SIGTERM) if where == "slurm" else process.terminate()
    said_last = process.stderr.read().decode()
    assert process.wait(100) == 128 + signal.SIGTERM, said_last
    process.stderr.close()
    (run,) = (tmp_path / "neuraldbg_runs").iterdir()
    back = import_run(open_dataset(open_place(tmp_path / "store" / "local")), tmp_path / "back")
    assert rows_and_facts(back) == rows_and_facts(run)
    assert "Verdict" in said_last


def trained(run: Path) -> int:
    try:
        with open_trace(run) as trace:
            return trace.last_step or 0
    except NeuralDbgError:
        return 0


def pods_of(name: str) -> list[dict[str, Any]]:
    told = yaml.safe_load((ROOT / "examples" / "kubernetes" / name).read_text())["spec"]
    replicas = told.get("pytorchReplicaSpecs", {"": told})
    return [one["template"]["spec"] for one in replicas.values()]


@pytest.mark.parametrize(("name", "pods"), [("job.yaml", 1), ("pytorchjob.yaml", 2)])
def test_the_pods_call_the_debugger_with_options_it_has(name: str, pods: int) -> None:
    from neuraldbg.surfaces.cli.debug import command

    assert len(pods_of(name)) == pods
    for pod in pods_of(name):
        (container,) = pod["containers"]
        words = container["args"]
        assert words[:2] == ["neural", "debug"]
        known = {name for option in command.params for name in option.opts}
        assert {word for word in words if word.startswith("--")} <= known
        mounts, volumes = container["volumeMounts"], pod["volumes"]
        assert [one["name"] for one in mounts] == [one["name"] for one in volumes]
        assert container["workingDir"] == mounts[0]["mountPath"]
