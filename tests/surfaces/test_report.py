"""The report reads well at 80 columns. The golden files are what a person sees; look at them when they change.

To write them again: NEURALDBG_GOLDEN=write python -m pytest tests/surfaces/test_report.py
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import neural
from made_runs import MadeRun, made_run, train

from neuraldbg.analysis.summary import summarise
from neuraldbg.records import Call, Kind, Phase
from neuraldbg.surfaces.reports.text import text_report
from neuraldbg.trace import open_trace

GOLDEN = Path(__file__).parents[1] / "golden"


def healthy(run: MadeRun) -> None:
    train(run)
    run.end(steps=50)


def broken(run: MadeRun) -> None:
    train(run, nan_from=33)
    run.writer.fact(
        "note", level="warning", text="gradients are watched every 4th step: every step would cost 3 % more"
    )
    run.writer.fact("note", level="info", text="the loss is computed inside the model")
    run.end(steps=50, exit_code=1, error="ValueError: loss is NaN, giving up")


def killed(run: MadeRun) -> None:
    train(run, steps=20)


def gpt(run: MadeRun) -> None:
    """Many layers with long names, two optimizers, numbers at the edge of what fits."""
    model = run.model("gpt", "GPT", parameters=124_439_808)
    parts = (
        ("ln_1", "LayerNorm", (768,)),
        ("attn.c_attn", "Linear", (2304, 768)),
        ("mlp.c_fc", "NonDynamicLinear", (3072, 768)),
    )
    for block in range(12):
        for name, op, shape in parts:
            layer = run.module(f"transformer.h.{block}.{name}", op, model)
            weight = run.parameter(f"transformer.h.{block}.{name}.weight", shape, model)
            run.stats(layer, Kind.ACTIVATION, 2, mean=-1.2345e-7 * block, std=12345.678)
            run.stats(weight, Kind.GRADIENT, 2, Phase.BACKWARD, l2=1.5e-9, inf_count=int(block == 7))
            run.span(layer, Phase.FORWARD, 2, 123.4)
            run.span(layer, Phase.BACKWARD, 2, 1234.5)
    for name, lr in (("adamw", 6e-4), ("sgd", 0.1)):
        optimizer = run.optimizer(name.upper(), name=name, lr=lr)
        run.call(Call.STEP, 2, optimizer)
    for step in range(3):
        run.scalar("loss", step, 10.9 - step)
    run.writer.fact("accumulation", backwards_per_update=4)
    run.end(steps=2, duration_s=7830)


def test_what_was_tried_stands_in_the_report_with_what_came_of_it(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        broken(run)
    arms = [
        {"intervention": "lr x0.1", "verdict": verdict, "causes": causes, "patch": patch, "metric": metric}
        for verdict, causes, patch, metric in (
            ("no_effect", ["lr_too_high"], None, {"name": "loss", "control": "inf", "arm": "inf"}),
            ("harm", [], None, {"name": "loss", "control": 2.0, "arm": 3.0}),
            ("verified", ["missing_zero_grad"], "--- a", {"name": "loss", "control": 4.628, "arm": 0.3245}),
        )
    ]
    (run.directory / "whatif.json").write_text(json.dumps({"control": {}, "arms": arms, "notes": []}))
    with open_trace(run.directory) as trace:
        text = text_report(summarise(trace, alive=False), run_dir=run.directory)
    assert (
        "Tried the suggested patch for missing_zero_grad: cures it, loss 4.63 -> 0.325 "
        "lr x0.1 for lr_too_high: no effect, loss not finite -> not finite lr x0.1: does harm, loss 2 -> 3 "
    ) in " ".join(text.split())


def nothing(run: MadeRun) -> None:
    run.end()


@pytest.mark.parametrize("story", [healthy, broken, killed, gpt, nothing], ids=lambda story: str(story.__name__))
def test_the_report_is_as_in_its_golden_file(
    tmp_path: Path, story: Callable[[MadeRun], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with made_run(tmp_path / "neuraldbg_runs" / "20260102-030405-train") as run:
        story(run)
    with open_trace(run.directory) as trace:
        text = text_report(summarise(trace, alive=False), run_dir=run.directory)
    assert max(len(line) for line in text.splitlines()) <= 80
    golden = GOLDEN / f"report_{story.__name__}.txt"
    if os.environ.get("NEURALDBG_GOLDEN") == "write":
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_the_command_prints_the_same_text(place: Path) -> None:
    run_dir = place / "neuraldbg_runs" / "good"
    with open_trace(run_dir) as trace:
        expected = text_report(summarise(trace), run_dir=run_dir)
    shown = neural("report", "good", cwd=place)
    assert shown.stderr == ""
    assert _without_run_line(shown.stdout) == _without_run_line(expected)
    assert "\x1b" not in shown.stdout


def _without_run_line(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("Run ")]


def test_a_terminal_of_another_century_gets_ascii(place: Path) -> None:
    shown = neural("report", "broken", cwd=place, PYTHONIOENCODING="ascii")
    assert shown.returncode == 0
    assert shown.stdout.isascii()
    assert "##" in shown.stdout


def test_a_loss_over_many_decades_is_drawn_on_a_log_scale_and_says_so(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        for step in range(8):
            run.scalar("loss", step, 10.0**-step if step < 7 else float("-inf"))
        run.end()
    with open_trace(run.directory) as trace:
        text = text_report(summarise(trace), run_dir=run.directory)
    assert "Loss       █▇▆▅▃▂▁!  1.00 -> -Inf (log)" in text


@pytest.mark.parametrize(
    ("budget", "later", "said"), [("1%", 0.031, True), ("1%", 0.011, False), ("full", 0.3, False), ("off", 0.02, False)]
)
def test_a_budget_that_was_not_kept_is_said(tmp_path: Path, budget: str, later: float, said: bool) -> None:
    with made_run(tmp_path / "run", budget=budget) as run:
        train(run, steps=5)
        run.writer.fact("overhead", ratio=0.04, ratio_after_start=later, sampled_steps=20, total_steps=500)
        run.end(steps=500)
    with open_trace(run.directory) as trace:
        text = " ".join(text_report(summarise(trace), run_dir=run.directory).split())
    assert f"4.0 % ({later * 100:.1f} % after the first 20 updates" in text
    assert ("; the 1% allowed was not kept)" in text) is said
    assert ("after the first 20 updates and more: by our own clock alone)" in text) is (budget == "full")


def test_dropped_rows_and_damage_are_said(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        train(run, steps=5)
        run.writer.fact("dropped", rows={"stats": 1200, "spans": 3})
        run.end(steps=5)
    for file in run.directory.glob("rank-00000/segment-*"):
        file.write_bytes(file.read_bytes()[:-10])
    with open_trace(run.directory) as trace:
        text = text_report(summarise(trace), run_dir=run.directory)
    assert "Warning    rows were dropped: 1,200 of stats, 3 of spans" in text
    assert "the trace is damaged: " in text
