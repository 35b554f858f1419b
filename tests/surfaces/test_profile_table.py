"""A profile on a terminal of 80 columns: also of runs that have no steps, no layers, or no memory left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from made_runs import MadeRun, made_run, train

from neuraldbg.analysis.profile_report import profile_of
from neuraldbg.surfaces.terminal.profile_table import lines_of
from neuraldbg.trace import open_trace


def shown(folder: Path, make: Callable[[MadeRun], None]) -> list[str]:
    with made_run(folder / "run") as run:
        make(run)
    with open_trace(folder / "run") as trace:
        lines = [line for line, _ in lines_of(profile_of(trace), 80)]
    assert max(map(len, lines)) <= 80
    return lines


def test_memory_that_ran_out_is_said_first_even_in_the_first_step(tmp_path: Path) -> None:
    def ran_out(run: MadeRun) -> None:
        train(run, steps=2)
        row = {"site": 1, "saved_bytes": 5_000_000, "allocated_bytes": None}
        sizes = dict.fromkeys(("parameter_bytes", "gradient_bytes", "optimizer_bytes", "rss_bytes"), 1000)
        run.writer.fact("out_of_memory", error="CUDA out of memory", phase="forward", layers=[row], **sizes)

    text = "\n".join(shown(tmp_path, ran_out))
    assert "high   memory: memory ran out in the forward: CUDA out of memory" in text
    assert "checkpoint conv1, which keeps most" in " ".join(text.split())
    assert "Nothing stands out" not in text


def test_too_few_steps_are_not_judged(tmp_path: Path) -> None:
    text = "\n".join(shown(tmp_path, lambda run: train(run, steps=2)))
    assert "What holds a training back is told of 5 timed steps or more." in text


def test_layers_that_were_only_told_are_shown(tmp_path: Path) -> None:
    def told(run: MadeRun) -> None:
        stats = {"mean_time": 0.25, "std_time": 0.001, "max_time": 0.5, "call_count": 1200}
        run.writer.fact("profiling_data", layer_stats={"encoder." * 12 + "fc": stats, "conv": {"mean_time": None}})

    lines = shown(tmp_path, told)
    assert lines[0] == "No update of a model was seen: there are no steps and no phases"
    assert lines[3].split() == ["..encoder.encoder.encoder.encoder.fc", "1,200", "250", "1.00", "500"]
    assert lines[4].split() == ["conv", "-", "-", "-", "-"]


def test_a_run_in_which_nothing_was_timed_says_so(tmp_path: Path) -> None:
    assert shown(tmp_path, lambda run: None)[1].startswith("Nothing was timed: no forward pass")
