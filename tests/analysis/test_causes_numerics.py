"""What the first NaN proves, what half precision loses, and what is healthy all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from nan_programs import EXPLODING, PROGRAMS
from torch import nn
from watching import trace_of, watching

from neuraldbg.analysis.diagnose import Judgement, diagnose
from neuraldbg.records import Diagnosis, Severity

MINE = {
    "log_of_zero",
    "division_by_zero",
    "undefined_gradient_at_zero",
    "exp_overflow",
    "fp16_overflow",
    "fp16_underflow",
    "loss_scale_issue",
    "fully_masked_attention",
    "nan_in_input",
    "all_labels_masked",
    "update_lost_to_rounding",
    "nan_loss",
    "inf_loss",
    "nan_gradient",
    "nan_activation",
}


@pytest.fixture(autouse=True)
def _no_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run is asked at its end takes a second and is tested elsewhere."""
    monkeypatch.setattr("neuraldbg.capture.torch.probes.runner.MOST_SECONDS", 0.0)


def judged(folder: Path, run: Callable[[], object], budget: float | None = 0.01) -> Judgement:
    with watching(folder, budget=budget):
        run()
    with trace_of(folder) as trace:
        judgement = diagnose(trace)
    assert not MINE & judgement.failed.keys()
    return judgement


def loud(judgement: Judgement) -> dict[str, Diagnosis]:
    return {one.finding.kind: one for one in judgement.loud if one.finding.kind in MINE}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_first_cause_is_the_operation_that_made_it(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    judgement = judged(tmp_path, lambda: program.run(tmp_path))
    first = judgement.loud[0].finding
    assert (first.kind, first.step) == (program.cause, program.update)
    assert (first.confidence or 0) > 0.9
    assert first.layer == program.layer
    if program.line is not None:
        assert first.source == f"train.py:{program.line}"
    assert {one.kind for one in judgement.loud[0].chain} & {"nan_loss", "inf_loss", "nan_gradient"}


def test_a_run_that_diverged_is_not_blamed_on_an_operation(tmp_path: Path) -> None:
    found = loud(judged(tmp_path, lambda: EXPLODING.run(tmp_path)))
    assert not found.keys() - {"nan_loss", "inf_loss", "nan_gradient", "nan_activation"}
    assert found["nan_loss"].finding.severity is Severity.CRITICAL


# -- small trainings in half precision --------------------------------------------------------------------------------


def likelihood(rate: float, *, bad_row: bool = False) -> None:
    """Binary cross entropy written out with logarithms; `bad_row`: one probability is zero whatever the weights are."""
    torch.manual_seed(0)
    x = torch.randn(240, 12)
    y = (x[:, :3].sum(1) > 0).float()
    possible = torch.ones(240)
    possible[70] = 0.0 if bad_row else 1.0
    y[70] = 1.0
    net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid())
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    for step in range(24):
        rows = torch.arange(10 * step, 10 * step + 10) % 240
        p = net(x[rows]).squeeze(1) * possible[rows]
        loss = -(y[rows] * torch.log(p) + (1 - y[rows]) * torch.log(1 - p)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_a_logarithm_of_zero_after_huge_updates_is_their_consequence(tmp_path: Path) -> None:
    first, *_ = judged(tmp_path, lambda: likelihood(2.0)).loud
    assert first.finding.kind == "learning_rate_too_high"
    assert "log_of_zero" in {each.kind for each in first.chain}


def test_a_row_that_is_zero_by_itself_is_not_laid_to_the_rate(tmp_path: Path) -> None:
    first, *_ = judged(tmp_path, lambda: likelihood(0.02, bad_row=True)).loud
    assert (first.finding.kind, first.finding.step) == ("log_of_zero", 7)


def regression(
    dtype: torch.dtype, optimizer: Callable[[nn.Module], torch.optim.Optimizer], scale: float = 1.0, steps: int = 24
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).to(dtype)
    made = optimizer(model)
    for _ in range(steps):
        x = torch.randn(2048, 8).to(dtype)
        made.zero_grad()
        nn.functional.mse_loss(model(x) * scale, (x.sum(1, keepdim=True) * scale).to(dtype)).backward()
        made.step()


def sgd(rate: float) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: torch.optim.SGD(model.parameters(), lr=rate)


def adam(rate: float, eps: float = 1e-8) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: torch.optim.Adam(model.parameters(), lr=rate, eps=eps)


def test_gradients_that_float16_flushes_to_zero(tmp_path: Path) -> None:
    found = loud(judged(tmp_path, lambda: regression(torch.float16, sgd(0.5), scale=0.005)))
    assert "fp16_underflow" in found
    assert found["fp16_underflow"].finding.evidence["zero_share_float32"] < 0.1


def test_gradients_that_float16_holds(tmp_path: Path) -> None:
    assert "fp16_underflow" not in loud(judged(tmp_path, lambda: regression(torch.float16, sgd(0.05))))


def test_zeros_of_dead_units_are_no_underflow(tmp_path: Path) -> None:
    def dead() -> None:
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).half()
        model[0].bias.data.fill_(-1000)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(5):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(torch.randn(64, 8).half()), torch.ones(64, 1).half()).backward()
            optimizer.step()

    assert "fp16_underflow" not in loud(judged(tmp_path, dead))


def test_an_epsilon_that_is_zero_in_float16(tmp_path: Path) -> None:
    first = judged(tmp_path, lambda: regression(torch.float16, adam(1e-3), steps=4)).loud[0].finding
    assert (first.kind, first.step) == ("fp16_underflow", 0)
    assert first.evidence["eps"] == 1e-8


def test_updates_that_bfloat16_rounds_away(tmp_path: Path) -> None:
    found = loud(judged(tmp_path, lambda: regression(torch.bfloat16, adam(1e-5))))
    assert found["update_lost_to_rounding"].finding.evidence["unchanged_share"] > 0.8


@pytest.mark.parametrize(("dtype", "rate"), [(torch.bfloat16, 1e-2), (torch.float32, 1e-5)])
def test_updates_that_arrive(dtype: torch.dtype, rate: float, tmp_path: Path) -> None:
    assert "update_lost_to_rounding" not in loud(judged(tmp_path, lambda: regression(dtype, adam(rate))))


# -- loss scaling -----------------------------------------------------------------------------------------------------


def scaled(order: str, *, init_scale: float = 65536.0, enabled: bool = True) -> None:
    """`order`: c = clip, u = unscale, s = scaler.step, o = optimizer.step, then update."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, enabled=enabled)
    for _ in range(12):
        optimizer.zero_grad()
        scaler.scale(nn.functional.mse_loss(model(torch.randn(16, 8)), torch.ones(16, 1))).backward()
        for act in order:
            if act == "c":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            elif act == "u":
                scaler.unscale_(optimizer)
            elif act == "s":
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()


@pytest.mark.parametrize("order", ["cs", "cus", "o"])
def test_gradients_used_while_still_scaled(order: str, tmp_path: Path) -> None:
    assert "loss_scale_issue" in loud(judged(tmp_path, lambda: scaled(order)))


@pytest.mark.parametrize("order", ["ucs", "s", "us"])
def test_loss_scaling_as_documented(order: str, tmp_path: Path) -> None:
    assert loud(judged(tmp_path, lambda: scaled(order))) == {}


def test_a_scaler_that_is_switched_off_scales_nothing(tmp_path: Path) -> None:
    assert loud(judged(tmp_path, lambda: scaled("cs", enabled=False))) == {}


def test_a_few_skipped_updates_are_what_a_scaler_is_for(tmp_path: Path) -> None:
    assert loud(judged(tmp_path, lambda: scaled("s", init_scale=2.0**127))) == {}


# -- labels -----------------------------------------------------------------------------------------------------------


def labelled(masked: Callable[[int], float], reduction: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(30):
        target = torch.randint(0, 5, (20,))
        target[: int(20 * masked(step))] = -100
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(20, 8)), target, reduction=reduction).backward()
        optimizer.step()


def test_a_batch_without_any_label_makes_the_mean_nan(tmp_path: Path) -> None:
    first = judged(tmp_path, lambda: labelled(lambda step: 1.0 if step == 25 else 0.5, "mean")).loud[0].finding
    assert (first.kind, first.step) == ("all_labels_masked", 25)
    assert first.evidence["ignore_index"] == -100


def test_batches_without_labels_teach_nothing(tmp_path: Path) -> None:
    found = loud(judged(tmp_path, lambda: labelled(lambda step: 1.0, "sum")))
    assert found["all_labels_masked"].finding.severity is Severity.CRITICAL


def test_a_rare_batch_without_labels_is_only_mentioned(tmp_path: Path) -> None:
    assert loud(judged(tmp_path, lambda: labelled(lambda step: 1.0 if step == 25 else 0.5, "sum"))) == {}


def test_partly_masked_labels_are_ordinary(tmp_path: Path) -> None:
    assert loud(judged(tmp_path, lambda: labelled(lambda step: 0.9, "mean"))) == {}
