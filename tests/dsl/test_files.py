"""Every program of the corpus: read, formatted, built, trained one step, and written as code that computes the same."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from corpus import FILES, ROOT, batch_for, train_one_step

from neuraldbg.dsl import parse, parse_file
from neuraldbg.dsl.build.model_code import class_name
from neuraldbg.dsl.build.torch_model import build, script
from neuraldbg.dsl.check import check
from neuraldbg.dsl.formatting import format_text

each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def test_there_are_forty_of_them() -> None:
    assert len(FILES) >= 40


@each_file
def test_it_trains_one_step_with_the_parameters_that_were_counted(file: Path) -> None:
    graphs, _ = check(parse_file(file))
    assert graphs
    for graph in graphs:
        model, told = train_one_step(graph, str(file))
        assert math.isfinite(told["loss"])
        assert sum(p.numel() for p in model.parameters()) == graph.parameters
        unreached = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
        assert unreached == []


@each_file
def test_formatting_keeps_the_meaning_and_settles_at_once(file: Path) -> None:
    text = file.read_text()
    once = format_text(text)
    assert format_text(once) == once
    assert parse(once).to_dicts() == parse(text).to_dicts()
    assert parse(once).research == parse(text).research


@each_file
def test_the_written_code_computes_what_the_built_model_does(file: Path) -> None:
    for graph in check(parse_file(file))[0]:
        built = build(graph, str(file))
        written: dict[str, Any] = {"__name__": "written"}
        exec(compile(script(graph, str(file)), "written.py", "exec", dont_inherit=True), written)
        torch.manual_seed(3)
        ours = built.make().eval()
        torch.manual_seed(3)
        theirs = written[class_name(graph.network.name)]().eval()
        *inputs, _ = batch_for(graph, built, count=2)
        with torch.no_grad():
            assert torch.equal(ours(*inputs), theirs(*inputs))


@pytest.mark.parametrize("name", ["gpt_decoder.neural", "multi_input.neural", "tabular.neural"])
def test_the_written_code_runs_by_itself(name: str, tmp_path: Path) -> None:
    graph = check(parse_file(ROOT / "tests" / "programs" / "dsl" / name))[0][0]
    text = script(graph, name)
    assert "neuraldbg" not in text
    (tmp_path / "model.py").write_text(text.replace("epochs=3", "epochs=1").replace("epochs=20", "epochs=1"))
    done = subprocess.run([sys.executable, "model.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "'epoch': 1" in done.stdout
    assert ("val_loss" in done.stdout) == (graph.network.training.get("validation_split") is not None)
    checked = subprocess.run([sys.executable, "-m", "ruff", "check", "--select=E9,F", "model.py"], cwd=tmp_path)
    assert checked.returncode == 0
