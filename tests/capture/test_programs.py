"""Programs as people write them: the right models, optimizers, loss kinds and steps, and the same results bit for
bit."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from programs.truth import TRUTHS, Truth

IDS = [truth.name for truth in TRUTHS]


def _result(output: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("RESULT ")) for line in output.splitlines() if line.startswith("RESULT ")]


@pytest.fixture(scope="session")
def debugged(torch_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs a program plainly and under the debugger, once per session and way of running it."""
    cache: dict[str, Any] = {}

    def run(truth: Truth) -> Any:
        if truth.name not in cache:
            folder = tmp_path_factory.mktemp("program")
            plain = torch_server.python(str(truth.path), *truth.args, cwd=folder, timeout=120)
            options = ("--headless", "--export", str(folder / "session.json"), "--out", str(folder / "run"))
            watched = torch_server.neural("debug", *options, str(truth.path), *truth.args, cwd=folder, timeout=120)
            session = json.loads((folder / "session.json").read_text())
            cache[truth.name] = (plain, watched, session, folder / "run")
        return cache[truth.name]

    return run


@pytest.mark.parametrize("truth", TRUTHS, ids=IDS)
def test_results_are_identical_bit_for_bit(truth: Truth, debugged: Any) -> None:
    plain, watched, _, _ = debugged(truth)
    assert watched.code == plain.code == 0, watched.stderr
    assert _result(plain.stdout), "the program prints a RESULT"
    assert _result(watched.stdout) == _result(plain.stdout)
    assert watched.stdout == plain.stdout


@pytest.mark.parametrize("truth", TRUTHS, ids=IDS)
def test_models_optimizers_loss_and_steps_are_found(truth: Truth, debugged: Any) -> None:
    _, watched, session, _ = debugged(truth)
    run = session["run"]
    assert sorted((m["name"], m["class"]) for m in run["models"]) == sorted(truth.models)
    assert [(o["name"].split("#")[0], o["class"], o["updates"]) for o in run["optimizers"]] == list(truth.optimizers)
    assert sorted(run["loss"]) == sorted(truth.loss)
    assert run["steps"] == truth.steps
    if truth.accumulation is not None:
        assert run["accumulation"] == truth.accumulation
    assert "stopped watching" not in watched.stderr


@pytest.mark.parametrize("truth", TRUTHS, ids=IDS)
def test_the_ledger_counts_what_the_program_did(truth: Truth, debugged: Any) -> None:
    from neuraldbg import open_trace
    from neuraldbg.records import Call
    from neuraldbg.trace.tables import CALL_CODE

    *_, run_dir = debugged(truth)
    with open_trace(run_dir) as trace:
        codes = trace.table("calls", columns=["call"])["call"].tolist()

    def count(call: Call) -> int:
        return codes.count(CALL_CODE[call])

    assert count(Call.BACKWARD) == truth.backwards
    assert count(Call.STEP_SKIPPED) == truth.skipped
    assert bool(count(Call.STEP_MANUAL)) == truth.manual
    expected = {
        Call.PASS_TRAIN: truth.train_passes,
        Call.PASS_EVAL: truth.eval_passes,
        Call.PASS_ORPHAN: truth.orphan_passes,
    }
    for call, passes in expected.items():
        assert passes is None or count(call) == passes, call
    if "compiled" not in truth.program:  # compiling runs autograd.grad of its own
        assert count(Call.AUTOGRAD_GRAD) == truth.grad_calls


@pytest.mark.parametrize("truth", TRUTHS, ids=IDS)
def test_loaders_processes_and_the_place_of_the_loss_are_known(truth: Truth, debugged: Any) -> None:
    from neuraldbg import open_trace

    *_, run_dir = debugged(truth)
    with open_trace(run_dir) as trace:
        loaders = {(fact["name"], fact["workers"]) for fact in trace.facts("loader")}
        assert loaders == set(truth.loaders)
        assert len(trace.ranks) == truth.processes
        assert trace.run.steps_kind == truth.steps_kind
        if trace.facts("loss"):
            assert any(fact["in_model"] for fact in trace.facts("loss")) == truth.in_model


@pytest.mark.parametrize("truth", TRUTHS, ids=IDS)
def test_layers_have_statistics_times_and_lines(truth: Truth, debugged: Any) -> None:
    *_, session, _ = debugged(truth)
    if not truth.models:
        return
    layers = [layer for layer in session["layers"] if layer["params"]]
    assert layers, "layers with parameters are listed"
    if "compiled" in truth.program:
        return
    for what in ("activation", "gradient", "source"):
        assert any(_has(layer, what) for layer in layers), what
    assert any(layer["time_ms"]["forward"] for layer in layers), "layers were timed"


def _has(layer: dict[str, Any], what: str) -> bool:
    return bool(layer["stats"].get(what)) if what != "source" else True
