"""The same network with the same weights on several backends: do the outputs agree, and where does the time go?

A plain function that answers with records. Each backend runs in a process of its own: Keras has one backend a process,
and frameworks in one process share their threads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from neuraldbg.dsl.build.backends import need_backend
from neuraldbg.dsl.build.onnx_model import TOLERANCE, difference
from neuraldbg.errors import BackendMissing

REPEATS, WARMUP, BATCH = 20, 3, 16
PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class LayerTime:
    layer: str
    mean_s: float
    std_s: float
    calls: int


@dataclass(frozen=True, slots=True)
class BackendResult:
    """One backend. `layers` is empty where it cannot tell layers apart, `layers_from` how it does; `difference` is that
    of its outputs to the first backend's, as a part of the largest of them."""

    backend: str
    network: str
    mean_s: float
    std_s: float
    repeats: int
    difference: float
    layers: tuple[LayerTime, ...] = ()
    layers_from: str | None = None

    def profile(self) -> dict[str, Any]:
        """As `ComparativeProfiler.add_backend_profile` takes it."""
        layers = {each.layer: (each.mean_s, each.std_s, each.calls) for each in self.layers}
        layers = layers or {self.network: (self.mean_s, self.std_s, self.repeats)}
        stats = {
            name: {"mean_time": mean, "std_time": std, "total_time": mean * calls, "call_count": calls}
            for name, (mean, std, calls) in layers.items()
        }
        return {"layer_stats": stats, "summary": {"total_time": self.mean_s * self.repeats}}


@dataclass(frozen=True, slots=True)
class Comparison:
    network: str
    batch: int
    results: tuple[BackendResult, ...] = field(default_factory=tuple)

    @property
    def agree(self) -> bool:
        return all(each.difference <= TOLERANCE for each in self.results)

    @property
    def fastest(self) -> str:
        return min(self.results, key=lambda each: each.mean_s).backend

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "agree": self.agree, "fastest": self.fastest}


def compare_backends(
    path: str, backends: tuple[str, ...], *, network: str | None = None, batch: int = BATCH, repeats: int = REPEATS
) -> list[Comparison]:
    """Every network of the file, or the one named, on each backend. `BackendMissing` for one that is not here."""
    from neuraldbg.dsl.check import check
    from neuraldbg.dsl.program import parse_file

    wanted = tuple(dict.fromkeys(need_backend(each) for each in backends))
    graphs, _ = check(parse_file(path), only=network)
    found = []
    for graph in graphs:
        name = graph.network.name
        asked = {"path": os.path.abspath(path), "network": name, "batch": batch, "repeats": repeats}
        found.append(Comparison(name, batch, _each(asked, wanted)))
    return found


def _each(asked: dict[str, Any], backends: tuple[str, ...]) -> tuple[BackendResult, ...]:
    results: list[BackendResult] = []
    expected: Any = None
    with tempfile.TemporaryDirectory(prefix="neuraldbg-") as folder:
        for backend in backends:
            told = _in_a_process({**asked, "backend": backend}, Path(folder) / f"{backend}.npy")
            outputs = np.load(Path(folder) / f"{backend}.npy")
            expected = outputs if expected is None else expected
            layers = tuple(LayerTime(**each) for each in told["layers"])
            numbers = (told["mean_s"], told["std_s"], asked["repeats"], difference(expected, outputs))
            results.append(BackendResult(backend, asked["network"], *numbers, layers, told["layers_from"]))
    return tuple(results)


def _in_a_process(asked: dict[str, Any], outputs: Path) -> dict[str, Any]:
    code = "from neuraldbg.dsl.train.backend_run import main; main()"
    parent = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join([parent, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("KERAS_BACKEND", None)
    command = [sys.executable, "-c", code, json.dumps({**asked, "outputs": str(outputs)})]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise BackendMissing(f"{asked['network']} did not run on {asked['backend']}: {why}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer
