"""`--gradients`, `--dead-neurons` and `--anomalies` on a real training: what is measured, judged and shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forkserver import ForkServer

from neuraldbg.capture.budget import FIRST_IN_FULL
from neuraldbg.capture.focus import kinds_of
from neuraldbg.records import Kind, SiteKind
from neuraldbg.trace import Trace, open_trace
from neuraldbg.trace.tables import KIND_CODE

TRAINING = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
data, weights = torch.randn(320, 8), torch.randn(8, 1)
for step in range(40):
    inputs = data[step * 8 : step * 8 + 8] * (1000.0 if step == 35 else 1.0)
    optimizer.zero_grad()
    loss = nn.functional.smooth_l1_loss(model(inputs), inputs @ weights / 1000 if step == 35 else inputs @ weights)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
"""


def debugged(server: ForkServer, place: Path, *words: str) -> tuple[Path, str]:
    (place / "train.py").write_text(TRAINING)
    result = server.neural("debug", "--headless", "--budget", "full", "--out", "run", *words, "train.py", cwd=place)
    assert result.code == 0, result.stderr
    return place / "run", result.stderr


def steps_with(trace: Trace, kind: Kind) -> set[int]:
    """Steps at which layers, not parameters, have statistics of a kind."""
    table: dict[str, Any] = trace.table("stats", ("step", "site", "kind"))
    modules = [site.id for site in trace.sites if site.kind is SiteKind.MODULE]
    rows = (table["kind"] == KIND_CODE[kind]) & np.isin(table["site"], modules)
    return set(table["step"][rows].tolist())


@pytest.mark.parametrize(
    ("words", "activations", "gradients"),
    [
        ((), 40, 40),
        (("--gradients",), FIRST_IN_FULL, 40),
        (("--dead-neurons",), 40, FIRST_IN_FULL),
        (("--anomalies",), 40, 40),
        (("--gradients", "--dead-neurons"), 40, 40),
    ],
)
def test_after_the_first_updates_only_the_group_is_measured(
    torch_server: ForkServer, tmp_path: Path, words: tuple[str, ...], activations: int, gradients: int
) -> None:
    run_dir, shown = debugged(torch_server, tmp_path, *words)
    with open_trace(run_dir) as trace:
        assert steps_with(trace, Kind.ACTIVATION) == set(range(activations))
        assert steps_with(trace, Kind.GRADIENT) == set(range(gradients))
        assert trace.run.settings.get("focus", []) == [word[2:].replace("-", "_") for word in words]
    assert ("nothing else was looked for" in " ".join(shown.split())) is bool(words)


def test_anomalies_are_listed_exported_and_kept(torch_server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("anomaly_sensitivity: 0.98\n")
    run_dir, shown = debugged(torch_server, tmp_path, "--anomalies", "--export", "session.json")
    assert "samples are unlike those before them" in " ".join(shown.split())
    assert "step 35, 0: " in shown
    told = json.loads((tmp_path / "session.json").read_text())["anomalies"]
    assert told["sensitivity"] == 0.98
    assert (35, "0") in [(each["step"], each["layer"]) for each in told["found"]]
    assert json.loads((run_dir / "anomalies.json").read_text())["samples"] == told["samples"]
    again = torch_server.neural("report", "run", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["anomalies"] == told


def test_groups_that_are_unknown_restrict_nothing() -> None:
    assert kinds_of(["gradients", "anomalies"]) == kinds_of([]) == kinds_of(["colours"])
