"""Gradients summed over several batches: right when each loss is divided by their number, or by their labels."""

from __future__ import annotations

from pathlib import Path

from made_runs import MadeRun
from test_causes_optim import arm, overfit, told

from neuraldbg.records import Severity


def windows(run: MadeRun, factor: float, valid: list[int], count: int = 4) -> None:
    run.writer.fact("accumulation", backwards_per_update=len(valid), updates_by_backwards={str(len(valid)): 100})
    size = len(valid)
    for step in range(count):
        run.writer.fact("accumulation_window", step=step, backwards=size, sources=[0] * size, factors=[factor] * size,
                        kinds=["NllLoss"] * size, reductions=["mean"] * size, valids=valid)  # fmt: skip


def test_a_sum_of_means_that_blows_up_is_not_scaled(tmp_path: Path) -> None:
    def write(run: MadeRun) -> None:
        windows(run, 1.0, [8] * 16)
        overfit(run, None, {"own": arm(None), "scaled": arm(0.01), "lr_x0.1": arm(0.02)}, backwards=16)

    found = told(tmp_path, write, "gradient_accumulation_not_scaled")["gradient_accumulation_not_scaled"]
    assert (found.severity, found.evidence["backwards_per_update"]) == (Severity.CRITICAL, 16.0)


def test_a_sum_of_means_that_learns_is_information(tmp_path: Path) -> None:
    def write(run: MadeRun) -> None:
        windows(run, 1.0, [8] * 4)
        overfit(run, 0.1, {"own": arm(0.05), "scaled": arm(0.2)}, backwards=4)

    found = told(tmp_path, write, "gradient_accumulation_not_scaled")["gradient_accumulation_not_scaled"]
    assert found.severity is Severity.INFO


def test_losses_divided_by_their_number_are_scaled(tmp_path: Path) -> None:
    assert told(tmp_path, lambda run: windows(run, 0.25, [8] * 4), "gradient_accumulation_not_scaled") == {}


def test_means_over_unequal_counts_are_imbalanced(tmp_path: Path) -> None:
    found = told(tmp_path, lambda run: windows(run, 0.25, [500, 16, 20, 480]), "accumulation_token_imbalance")
    assert found["accumulation_token_imbalance"].evidence["largest_imbalance"] == 500 / 16


def test_one_short_window_at_the_end_of_an_epoch_is_not(tmp_path: Path) -> None:
    def write(run: MadeRun) -> None:
        windows(run, 0.25, [32, 32, 32, 32], count=5)
        windows(run, 0.25, [32, 32, 32, 8], count=1)

    assert told(tmp_path, write, "accumulation_token_imbalance") == {}
