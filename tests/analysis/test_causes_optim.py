"""Causes of the step size: named when an experiment or the ledger proves them, and only then."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import MadeRun, made_run

from neuraldbg.analysis.catalogue import catalogue
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Call, Finding, Kind, Severity
from neuraldbg.trace import open_trace

RATES = ("learning_rate_too_high", "learning_rate_too_low", "momentum_too_high", "weight_decay_too_high",
         "missing_warmup", "missing_gradient_clipping")  # fmt: skip


def told(folder: Path, write: Callable[[MadeRun], None], *ids: str) -> dict[str, Finding]:
    """What some causes say of a run that is written here."""
    with made_run(folder / "run") as run:
        write(run)
        run.end(steps=100)
    with open_trace(run.directory) as trace:
        evidence = Evidence(trace)
        found = [finding for id in ids for finding in catalogue()[id].find(evidence)]
    return {finding.kind: finding for finding in found}


def arm(last: float | None, *, swings: float = 0.1, updates: int = 100) -> dict[str, Any]:
    return {"first": 1.0, "last": last, "min": last, "updates": updates, "diverged": last is None, "swings": swings,
            "curve": []}  # fmt: skip


def overfit(run: MadeRun, final: float | None, arms: dict[str, dict[str, Any]], **fields: Any) -> None:
    given = {"optimizer": "SGD", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "backwards": 1, "rows": 32,
             "grad_norm": 1.0, "batches": 5, "from_initial": True, "at_step": 0, **fields}  # fmt: skip
    run.writer.fact("probe", name="overfit", run_first_loss=1.0, final_loss=final, arms=arms, **given)


def test_a_rate_whose_tenth_learns_is_too_high(tmp_path: Path) -> None:
    def write(run: MadeRun) -> None:
        overfit(run, None, {"own": arm(None), "lr_x0.1": arm(0.05), "warmup": arm(None)})

    found = told(tmp_path, write, *RATES)
    assert list(found) == ["learning_rate_too_high"]
    assert found["learning_rate_too_high"].severity is Severity.CRITICAL
    assert found["learning_rate_too_high"].evidence["loss_after_run"] == "not finite"


def test_a_healthy_run_that_a_smaller_rate_overfits_better_is_not_warned_about(tmp_path: Path) -> None:
    """Noisy labels: the run stays at the floor, and every arm memorises the few batches."""

    def write(run: MadeRun) -> None:
        overfit(run, 0.6, {"own": arm(0.2, swings=0.4), "lr_x0.1": arm(0.05)})

    assert told(tmp_path, write, *RATES) == {}


def test_a_loss_that_can_fall_for_ever_decides_nothing(tmp_path: Path) -> None:
    def write(run: MadeRun) -> None:
        overfit(run, 1.0, {"own": arm(0.9), "lr_x0.1": arm(-50.0), "lr_x100": arm(-1e4)})

    assert told(tmp_path, write, *RATES) == {}


def test_full_rate_after_a_warm_up_means_only_the_start_was_at_fault(tmp_path: Path) -> None:
    def write(run: MadeRun) -> None:
        overfit(run, 1.1, {"own": arm(1.05), "lr_x0.1": arm(0.02), "warmup": arm(0.01)}, optimizer="RMSprop")

    assert list(told(tmp_path, write, *RATES)) == ["missing_warmup"]


def test_a_warm_up_that_does_not_last_leaves_the_rate_too_high(tmp_path: Path) -> None:
    def write(run: MadeRun) -> None:
        arms = {"own": arm(1.0), "lr_x0.1": arm(0.002), "warmup": arm(0.3, swings=0.4)}
        overfit(run, 1.0, arms, optimizer="AdamW")

    assert list(told(tmp_path, write, *RATES)) == ["learning_rate_too_high"]


def test_momentum_is_blamed_before_the_rate_when_it_is_near_one(tmp_path: Path) -> None:
    def write(run: MadeRun) -> None:
        arms = {"own": arm(0.15, swings=0.5), "momentum_0.9": arm(0.001), "lr_x0.1": arm(0.002)}
        overfit(run, 0.99, arms, momentum=0.999)

    assert list(told(tmp_path, write, *RATES)) == ["momentum_too_high"]


def test_usual_momentum_is_not_blamed(tmp_path: Path) -> None:
    def write(run: MadeRun) -> None:
        overfit(run, 0.99, {"own": arm(None), "momentum_0.9": arm(0.01), "lr_x0.1": arm(0.01)}, momentum=0.95)

    assert list(told(tmp_path, write, *RATES)) == ["learning_rate_too_high"]


def test_decay_is_blamed_when_its_absence_cures(tmp_path: Path) -> None:
    def write(run: MadeRun) -> None:
        arms = {"own": arm(0.97), "weight_decay_0": arm(0.02), "lr_x0.1": arm(0.93)}
        overfit(run, 0.98, arms, weight_decay=0.3)

    found = told(tmp_path, write, *RATES)
    assert list(found) == ["weight_decay_too_high"]
    assert found["weight_decay_too_high"].evidence["weight_decay"] == 0.3


def small_updates(run: MadeRun, ratio: float) -> None:
    model = run.model()
    weight = run.parameter("fc.weight", (8, 8), model)
    for step in range(10):
        run.stats(weight, Kind.PARAMETER, step, l2=10.0)
        run.stats(weight, Kind.UPDATE, step, l2=10.0 * ratio)


def test_a_rate_that_moves_nothing_is_too_low(tmp_path: Path) -> None:
    def write(run: MadeRun) -> None:
        small_updates(run, 1e-6)
        overfit(run, 0.999, {"own": arm(0.9999, swings=0.0), "lr_x100": arm(0.99), "lr_x10000": arm(0.05)})

    assert list(told(tmp_path, write, *RATES)) == ["learning_rate_too_low"]


def test_a_rate_too_low_by_six_orders_is_found_too(tmp_path: Path) -> None:
    def write(run: MadeRun) -> None:
        small_updates(run, 1e-8)
        overfit(run, 0.999, {"own": arm(0.9999, swings=0.0), "lr_x10000": arm(0.99), "lr_x1000000": arm(0.2)})

    assert "1,000,000 times it" in told(tmp_path, write, *RATES)["learning_rate_too_low"].summary


def test_a_faster_arm_alone_does_not_make_a_rate_too_low(tmp_path: Path) -> None:
    """Nearly every healthy run overfits one batch sooner at a higher rate."""

    def write(run: MadeRun) -> None:
        small_updates(run, 1e-3)
        overfit(run, 0.78, {"own": arm(0.8, swings=0.0), "lr_x10": arm(0.02), "lr_x100": arm(0.3)})

    assert told(tmp_path, write, *RATES) == {}


def two_optimizers(run: MadeRun, *ratios: float) -> None:
    """Each moves its own weight, in turn."""
    model = run.model()
    weights = [run.parameter(f"{name}.weight", (8, 8), model) for name in ("body", "head")]
    made = [run.optimizer("Adam", name=f"{name}_opt", lr=lr, holds=(weight,))
            for name, lr, weight in zip(("body", "head"), (1e-3, 3.0), weights, strict=True)]  # fmt: skip
    for step in range(20):
        turn = step % 2
        run.stats(weights[turn], Kind.PARAMETER, step, l2=10.0)
        run.stats(weights[turn], Kind.UPDATE, step, l2=10.0 * ratios[turn])
        run.call(Call.STEP, step, made[turn], value=0.1)
    overfit(run, None, {"own": arm(None), "lr_x0.1": arm(0.05)})


def test_of_two_optimizers_the_one_with_the_large_updates_is_named(tmp_path: Path) -> None:
    found = told(tmp_path, lambda run: two_optimizers(run, 0.001, 0.4), "learning_rate_too_high")
    one = found["learning_rate_too_high"]
    assert (one.evidence["optimizer"], one.evidence["lr"]) == ("head_opt", 3.0)
    assert "of 3 in head_opt" in one.summary


def test_of_two_optimizers_alike_none_is_named(tmp_path: Path) -> None:
    found = told(tmp_path, lambda run: two_optimizers(run, 0.2, 0.4), "learning_rate_too_high")
    assert "optimizer" not in found["learning_rate_too_high"].evidence


def test_updates_of_half_the_weights_warn_by_themselves(tmp_path: Path) -> None:
    found = told(tmp_path, lambda run: small_updates(run, 0.8), "learning_rate_too_high")
    assert found["learning_rate_too_high"].severity is Severity.WARNING


def test_large_first_updates_do_not(tmp_path: Path) -> None:
    def write(run: MadeRun) -> None:
        weight = run.parameter("fc.weight", (8, 8), run.model())
        for step, ratio in enumerate([4e9, 0.6, 0.2, 0.1, 0.1]):
            run.stats(weight, Kind.PARAMETER, step, l2=10.0)
            run.stats(weight, Kind.UPDATE, step, l2=10.0 * ratio)

    assert told(tmp_path, write, "learning_rate_too_high") == {}


def blown_up(run: MadeRun, final: float) -> None:
    for step in range(100):
        run.scalar("loss", step, 500.0 if step == 1 else 1.0 - step / 200)
    overfit(run, final, {"own": arm(None), "lr_x0.1": arm(0.3), "lr_x0.01": arm(0.35)}, run_updates=200)


def test_a_run_that_blew_up_and_stays_behind_a_smaller_rate_is_warned_about(tmp_path: Path) -> None:
    found = told(tmp_path, lambda run: blown_up(run, 0.5), *RATES)["learning_rate_too_high"]
    assert (found.severity, found.evidence["probe_loss_lr_x0.1"]) == (Severity.WARNING, 0.3)


def test_a_run_that_blew_up_and_ended_lower_than_a_smaller_rate_is_not(tmp_path: Path) -> None:
    assert told(tmp_path, lambda run: blown_up(run, 0.25), *RATES) == {}


# -- clipping ----------------------------------------------------------------------------------------------------------


def loop(run: MadeRun, order: list[Call], *, norm: float = 5.0, limit: float = 1.0, steps: int = 30) -> None:
    optimizer = run.optimizer("SGD")
    for step in range(steps):
        for call in order:
            values = {"value": norm, "aux": limit} if call is Call.CLIP else {"value": 0.1}
            run.call(call, step, optimizer if call is Call.STEP else -1, **values)


def test_clipping_after_the_step_is_misplaced(tmp_path: Path) -> None:
    order = [Call.ZERO_GRAD, Call.BACKWARD, Call.STEP, Call.CLIP]
    found = told(tmp_path, lambda run: loop(run, order), "gradient_clip_misuse")
    assert "after the optimizer" in found["gradient_clip_misuse"].summary


def test_clipping_where_it_belongs_is_fine(tmp_path: Path) -> None:
    order = [Call.ZERO_GRAD, Call.BACKWARD, Call.CLIP, Call.STEP]
    assert told(tmp_path, lambda run: loop(run, order), "gradient_clip_misuse") == {}


def test_a_look_at_the_norm_without_a_limit_may_come_anywhere(tmp_path: Path) -> None:
    order = [Call.ZERO_GRAD, Call.BACKWARD, Call.STEP, Call.CLIP]
    assert told(tmp_path, lambda run: loop(run, order, limit=math.inf), "gradient_clip_misuse") == {}


def test_a_limit_far_below_the_norm_is_misuse(tmp_path: Path) -> None:
    order = [Call.BACKWARD, Call.CLIP, Call.STEP]
    found = told(tmp_path, lambda run: loop(run, order, norm=3.0, limit=1e-4), "gradient_clip_misuse")
    assert found["gradient_clip_misuse"].severity is Severity.CRITICAL


def test_adam_does_not_mind_the_scale(tmp_path: Path) -> None:
    def write(run: MadeRun) -> None:
        optimizer = run.optimizer("Adam")
        for step in range(30):
            run.call(Call.BACKWARD, step)
            run.call(Call.CLIP, step, value=3.0, aux=1e-4)
            run.call(Call.STEP, step, optimizer, value=1e-3)

    assert told(tmp_path, write, "gradient_clip_misuse")["gradient_clip_misuse"].severity is Severity.INFO


def test_a_limit_on_every_entry_is_misuse_where_its_absence_cures(tmp_path: Path) -> None:
    def write(run: MadeRun) -> None:
        loop(run, [Call.BACKWARD, Call.CLIP, Call.STEP], norm=math.nan, limit=1e-4)
        overfit(run, 0.9, {"own": arm(0.95), "unclipped": arm(0.1)})

    assert told(tmp_path, write, "gradient_clip_misuse")["gradient_clip_misuse"].severity is Severity.CRITICAL


def test_a_limit_on_every_entry_that_the_run_learns_under_is_fine(tmp_path: Path) -> None:
    def write(run: MadeRun) -> None:
        loop(run, [Call.BACKWARD, Call.CLIP, Call.STEP], norm=math.nan, limit=1e-2)
        overfit(run, 0.3, {"own": arm(0.4), "unclipped": arm(0.1)})

    assert told(tmp_path, write, "gradient_clip_misuse") == {}


def test_a_likelihood_below_zero_that_one_gradient_ends_wants_clipping(tmp_path: Path) -> None:
    def write(run: MadeRun) -> None:
        for step in range(100):
            run.scalar("grad_norm", step, 500.0 if step == 15 else 1.0)
            run.scalar("loss", step, 1.0 - step / 10 if step < 16 else 30.0 if step < 20 else math.nan)
        overfit(run, None, {"own": arm(-2.0, swings=0.4), "lr_x0.1": arm(-1.9)})

    found = told(tmp_path, write, *RATES)
    assert [(one.kind, one.severity) for one in found.values()] == [("missing_gradient_clipping", Severity.CRITICAL)]


def test_a_rare_gradient_that_ends_a_good_run_wants_clipping(tmp_path: Path) -> None:
    def write(run: MadeRun) -> None:
        for step in range(100):
            run.scalar("grad_norm", step, 500.0 if step == 60 else 1.0)
            run.scalar("loss", step, 1.0 - step / 100 if step < 61 else 30.0 if step < 70 else math.nan)
        overfit(run, None, {"own": arm(0.1)})

    found = told(tmp_path, write, *RATES)["missing_gradient_clipping"]
    assert (found.step, found.severity) == (60, Severity.CRITICAL)


def test_a_spike_that_passes_is_no_more_than_information(tmp_path: Path) -> None:
    def write(run: MadeRun) -> None:
        for step in range(100):
            run.scalar("grad_norm", step, 500.0 if step == 60 else 1.0)
            run.scalar("loss", step, 30.0 if step == 61 else 1.0 - step / 110)
        overfit(run, 0.1, {"own": arm(0.1)})

    assert told(tmp_path, write, *RATES) == {}


# -- schedules ---------------------------------------------------------------------------------------------------------


def scheduled(run: MadeRun, rates: list[float], taken: list[int], kind: str = "StepLR", **settings: Any) -> None:
    """`taken` = after which updates the scheduler steps; -1 = before the first."""
    optimizer = run.optimizer("SGD", lr=rates[0])
    base = [settings.pop("base", rates[0])]
    about = {"class": kind, "settings": settings, "milestones": [], "base_rates": base, "source": None}
    run.writer.fact("scheduler", optimizer=optimizer, **about)
    for _ in range(taken.count(-1)):
        run.call(Call.SCHEDULER, 0, optimizer)
    for step, rate in enumerate(rates):
        run.call(Call.STEP, step, optimizer, value=rate)
        for _ in range(taken.count(step)):
            run.call(Call.SCHEDULER, step + 1, optimizer)


def schedule(folder: Path, rates: Any, taken: list[int], kind: str = "StepLR", **settings: Any) -> Finding | None:
    found = told(folder, lambda run: scheduled(run, list(rates), taken, kind, **settings), "scheduler_misuse")
    return found.get("scheduler_misuse")


def test_a_scheduler_that_never_steps(tmp_path: Path) -> None:
    found = schedule(tmp_path, [0.1] * 60, [])
    assert found is not None
    assert "never stepped" in found.summary


def test_a_schedule_of_epochs_stepped_by_batches(tmp_path: Path) -> None:
    rates = 0.1 * 0.3 ** (np.arange(400) // 5)
    found = schedule(tmp_path, rates, list(range(400)), step_size=5, gamma=0.3)
    assert found is not None
    assert (found.step, found.severity) == (5, Severity.CRITICAL)


def test_one_cycle_stepped_by_batches_is_right(tmp_path: Path) -> None:
    rates = 0.1 * np.concatenate([np.linspace(0.04, 1, 120), np.cos(np.linspace(0, np.pi, 280)) / 2 + 0.5])
    assert schedule(tmp_path, rates, list(range(400)), "OneCycleLR", total_steps=400) is None


def test_a_warm_up_and_a_decay_stepped_by_epochs_are_right(tmp_path: Path) -> None:
    rates = np.repeat(0.1 * 0.5 ** np.arange(10), 40)
    assert schedule(tmp_path, rates, list(range(39, 400, 40)), step_size=1, gamma=0.5) is None


def test_a_plan_over_all_updates_stepped_by_epochs(tmp_path: Path) -> None:
    found = schedule(tmp_path, [0.004] * 400, list(range(39, 400, 40)), "OneCycleLR", total_steps=400)
    assert found is not None
    assert found.evidence["planned_steps"] == 400


def test_a_function_that_falls_over_all_updates_stepped_by_epochs(tmp_path: Path) -> None:
    for number, shape in enumerate((lambda k: 1 - k / 400, lambda k: 0.5 + 0.5 * np.cos(np.pi * k / 400))):
        rates = 0.1 * shape(np.arange(400) // 40)
        found = schedule(tmp_path / str(number), rates, list(range(39, 400, 40)), "LambdaLR")
        assert found is not None
        assert found.evidence["planned_steps"] == pytest.approx(400)


def test_a_function_that_falls_over_the_epochs_is_right(tmp_path: Path) -> None:
    rates = 0.1 * (1 - np.arange(400) // 40 / 10)
    assert schedule(tmp_path, rates, list(range(39, 400, 40)), "LambdaLR") is None


def test_a_long_plan_that_was_cut_short_is_right(tmp_path: Path) -> None:
    rates = 0.05 * (np.cos(np.arange(400) // 40 / 1000) + 1)
    assert schedule(tmp_path, rates, list(range(39, 400, 40)), "CosineAnnealingLR", T_max=1000) is None


def test_a_cosine_of_epochs_stepped_by_batches_swings(tmp_path: Path) -> None:
    rates = 0.05 * (np.cos(np.pi * np.arange(400) / 10) + 1)
    found = schedule(tmp_path, rates, list(range(400)), "CosineAnnealingLR", T_max=10)
    assert found is not None
    assert "swings" in found.summary


def test_warm_restarts_swing_on_purpose(tmp_path: Path) -> None:
    rates = 0.05 * (np.cos(np.pi * (np.arange(400) % 40) / 40) + 1)
    assert schedule(tmp_path, rates, list(range(400)), "CosineAnnealingWarmRestarts", T_0=40) is None


def test_a_warm_up_of_updates_stepped_by_epochs(tmp_path: Path) -> None:
    rates = 0.1 * (np.arange(400) // 40 + 1) / 100
    found = schedule(tmp_path, rates, list(range(39, 400, 40)), "LambdaLR", base=0.1)
    assert found is not None
    assert (found.severity, round(float(found.evidence["steps_to_full_rate"]))) == (Severity.WARNING, 100)


def test_a_warm_up_of_epochs_that_the_run_nearly_ends_is_right(tmp_path: Path) -> None:
    rates = 0.1 * (np.arange(400) // 40 + 1) / 20
    assert schedule(tmp_path, rates, list(range(39, 400, 40)), "LambdaLR", base=0.1) is None


def test_a_scheduler_before_the_optimizer(tmp_path: Path) -> None:
    found = schedule(tmp_path, [0.1] * 60, [-1, 19, 39])
    assert found is not None
    assert "before the optimizer" in found.summary
