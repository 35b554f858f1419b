"""The summary of a run says what was measured, and nothing else."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from made_runs import MadeRun, made_run, train

from neuraldbg.analysis.diagnose import Judgement
from neuraldbg.analysis.summary import RunSummary, summarise
from neuraldbg.analysis.verdict import Facts, judge
from neuraldbg.records import Call, Diagnosis, Finding, Kind, Phase, RunInfo, Severity, SiteKind
from neuraldbg.trace import TraceWriter, open_trace


def summary_of(run: Path, *, alive: bool | None = None) -> RunSummary:
    with open_trace(run) as trace:
        return summarise(trace, alive=alive)


def test_a_trained_run_is_told_in_numbers(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        train(run, steps=50)
        run.end(steps=50)
    summary = summary_of(run.directory)
    assert (summary.steps, summary.steps_kind, summary.accumulation) == (50, "update", 1)
    assert [(m.name, m.type, m.parameters, m.in_optimizer) for m in summary.models] == [("model", "Net", 54_400, True)]
    assert [(o.type, o.lr, o.updates) for o in summary.optimizers] == [("Adam", 0.001, 50)]
    assert summary.loss_kinds == ("cross_entropy",)
    assert len(summary.series["loss"]) == 50
    assert summary.overhead.ratio == pytest.approx(0.0093)
    assert summary.verdict.state == "healthy"
    assert summary.verdict.headline.startswith("50 updates, loss 2.30 -> 0.198, no NaN or Inf seen; ")
    assert "checks found nothing" in summary.verdict.headline


def test_a_layer_gathers_its_own_numbers_and_those_of_its_parameters(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        train(run, steps=5)
        run.end(steps=5)
    layers = {layer.path: layer for layer in summary_of(run.directory).layers}
    assert list(layers) == ["conv1", "act", "fc"]
    fc = layers["fc"]
    assert "Linear_1" in fc.aliases
    assert "fc1" in fc.aliases
    assert (fc.params, fc.flops, fc.memory_bytes) == (54_080, 1000, 4096)
    assert (fc.forward_ms, fc.backward_ms) == (pytest.approx(0.5), pytest.approx(2.0))
    assert fc.grad_l2 == pytest.approx(0.3)
    assert fc.update_ratio == pytest.approx(0.02 / 20)
    assert set(fc.stats) == {"activation", "parameter", "parameter_gradient", "update"}
    assert fc.stats["activation"].mean == pytest.approx(0.25)
    assert layers["act"].params is None
    assert layers["act"].grad_l2 is None
    assert layers["act"].update_ratio is None


def test_the_first_nan_is_placed(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        train(run, steps=50, nan_from=33)
        run.end(steps=50)
    summary = summary_of(run.directory)
    bad = [layer for layer in summary.layers if layer.first_bad_step is not None]
    assert [(layer.path, layer.first_bad_step, layer.bad_word, layer.bad_kind) for layer in bad] == [
        ("fc", 33, "NaN", "activation")
    ]
    assert summary.verdict.state == "critical"
    assert "(since step 33" in summary.verdict.headline


@pytest.mark.parametrize("first", [Severity.WARNING, Severity.CRITICAL])
def test_a_verdict_is_as_grave_as_the_finding_it_tells(first: Severity) -> None:
    told, other = Finding("missing_zero_grad", first, "this"), Finding("nan_loss", Severity.CRITICAL, "and that")
    verdict = judge(facts_of(), Judgement((Diagnosis(told), Diagnosis(other)), 114, {}, {}))
    assert (verdict.state, verdict.headline) == ("critical", "this" if first is Severity.CRITICAL else "and that")


@pytest.mark.parametrize(("share", "state"), [(0.02, "healthy"), (0.4, "undecided")])
def test_a_small_part_that_nobody_uses_leaves_a_run_healthy(share: float, state: str) -> None:
    still = Finding("parameters_not_updating", Severity.INFO, "it rests", evidence={"share_of_weights": share})
    assert judge(facts_of(), Judgement((Diagnosis(still),), 114, {}, {})).state == state


def facts_of() -> Facts:
    run = RunInfo("run", ("train.py",), None, {}, "2026-01-01T00:00:00Z", ended=True)
    return Facts(run, True, None, 50, 50, 50, None, None, 1, (), ())


def test_of_two_layers_that_broke_in_one_step_the_first_is_named(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        model = run.model()
        late, early = run.module("late", "Linear", model), run.module("early", "Linear", model)
        run.stats(early, Kind.ACTIVATION, 3, inf_count=1)
        run.stats(late, Kind.ACTIVATION, 3, nan_count=1)
        run.call(Call.STEP, 3)
        run.end(steps=4)
    assert "first Inf at step 3 in early (activation)" in summary_of(run.directory).verdict.headline


def test_statistics_of_training_count_before_those_of_evaluation(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        model = run.model()
        layer = run.module("fc", "Linear", model)
        run.stats(layer, Kind.ACTIVATION, 0, Phase.FORWARD, mean=1.0)
        run.stats(layer, Kind.ACTIVATION, 9, Phase.EVAL, mean=2.0)
        run.end()
    (found,) = summary_of(run.directory).layers
    assert found.stats["activation"].mean == 1.0


def test_containers_without_numbers_are_left_out_but_an_unused_layer_is_not(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        model = run.model()
        run.module("", "Net", model)
        run.module("block", "Sequential", model)
        run.module("block.0", "Linear", model)
        run.parameter("block.0.weight", (4, 4), model)
        run.module("unused", "Dropout", model)
        run.end()
    assert [layer.path for layer in summary_of(run.directory).layers] == ["block.0", "unused"]


def test_a_model_that_is_itself_a_layer_is_listed(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        model = run.model("model", "Linear", parameters=20)
        weight = run.parameter("weight", (4, 5), model)
        run.stats(model, Kind.ACTIVATION, 0)
        run.stats(weight, Kind.GRADIENT, 0, l2=2.0)
        run.end()
    (layer,) = summary_of(run.directory).layers
    assert (layer.path, layer.params, layer.grad_l2) == ("model", 20, 2.0)


def test_a_nan_in_the_input_is_not_lost_with_the_container(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        model = run.model("net")
        run.module("fc", "Linear", model)
        run.stats(model, Kind.INPUT, 0, nan_count=3)
        run.call(Call.STEP, 0)
        run.end(steps=1)
    assert "first NaN at step 0 in net (input)" in summary_of(run.directory).verdict.headline


def test_raw_tensors_are_layers_of_their_own(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        weight = run.site("W1", SiteKind.PARAMETER, shape=(4, 5), parameters=20)
        run.stats(weight, Kind.GRADIENT, 0, Phase.BACKWARD, l2=2.0)
        run.stats(weight, Kind.PARAMETER, 0, Phase.UPDATE, l2=10.0)
        run.stats(weight, Kind.UPDATE, 0, Phase.UPDATE, l2=1.0)
        run.call(Call.STEP_MANUAL, 0)
        run.end(steps=1)
    summary = summary_of(run.directory)
    (layer,) = summary.layers
    assert (layer.path, layer.params, layer.grad_l2, layer.update_ratio) == ("W1", 20, 2.0, 0.1)
    assert summary.verdict.headline.startswith("1 update, no model was seen, no NaN or Inf seen")


def test_spawned_workers_train_together_and_the_parent_tells_the_end(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as worker:
        worker.writer.fact("run", backend="pytorch", versions={"torch": "2.13.0"}, child=True)
        train(worker, steps=5)
        worker.writer.fact("end", steps=5)
    for child in (True, False):
        with TraceWriter(worker.directory, threaded=False) as writer:
            process = MadeRun(worker.directory, writer)
            writer.fact("run", backend="pytorch", versions={}, child=child)
            if child:
                train(process, steps=4)
            else:
                process.end(exit_code=3, duration_s=9.0)
    summary = summary_of(worker.directory)
    assert (summary.steps, summary.run.exit_code, summary.run.duration_s) == (9, 3, 9.0)
    assert (summary.run.backend, summary.run.versions["torch"]) == ("pytorch", "2.13.0")
    assert [step for step, _ in summary.series["loss"]] == sorted([*range(5), *range(4)])


def test_several_optimizers_have_their_own_lr_and_count(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        run.model("netD"), run.model("netG")
        d = run.optimizer("Adam", name="optD", lr=0.1)
        g = run.optimizer("RMSprop", name="optG", lr=0.2)
        for step in range(0, 6, 2):
            run.call(Call.STEP, step, d)
            run.call(Call.STEP, step + 1, g)
        run.scalar("lr", 0, 0.05)
        run.scalar("lr.optG", 1, 0.07)
        run.end(steps=6)
    summary = summary_of(run.directory)
    assert [(o.name, o.lr, o.updates) for o in summary.optimizers] == [("optD", 0.05, 3), ("optG", 0.07, 3)]
    assert summary.steps == 6


class TestHeadlines:
    def test_no_model(self, tmp_path: Path) -> None:
        with made_run(tmp_path / "run") as run:
            run.end()
        assert summary_of(run.directory).verdict.headline.startswith("no model was seen: nothing of this script")

    def test_told_by_hand(self, tmp_path: Path) -> None:
        with made_run(tmp_path / "run") as run:
            run.span(run.site("fc1", SiteKind.MODULE, op="fc"), Phase.FORWARD, 0, duration_ms=1.0)
            run.end()
        verdict = summary_of(run.directory).verdict
        assert (verdict.state, verdict.headline) == (
            "undecided",
            "no model was seen: this run holds what was told by hand",
        )

    def test_never_trained(self, tmp_path: Path) -> None:
        with made_run(tmp_path / "run") as run:
            model = run.model()
            for _ in range(3):
                run.call(Call.PASS, 0, model)
            run.end()
        expected = "3 forward passes, no backward and no update: this script did not train"
        assert summary_of(run.directory).verdict.headline == expected

    def test_backward_without_an_update(self, tmp_path: Path) -> None:
        with made_run(tmp_path / "run") as run:
            run.model()
            for _ in range(4):
                run.call(Call.BACKWARD, 0)
            run.end()
        summary = summary_of(run.directory)
        assert summary.verdict.headline.startswith("4 backward passes and no update seen")
        assert (summary.steps, summary.steps_kind) == (4, "backward")

    def test_crashed(self, tmp_path: Path) -> None:
        with made_run(tmp_path / "run") as run:
            train(run, steps=3)
            run.end(exit_code=1, error="ValueError: no more data", steps=3)
        verdict = summary_of(run.directory).verdict
        assert verdict.state == "critical"
        assert "ValueError: no more data" in verdict.headline

    def test_its_own_exit_code(self, tmp_path: Path) -> None:
        with made_run(tmp_path / "run") as run:
            run.end(exit_code=3)
        headline = summary_of(run.directory).verdict.headline
        assert headline.startswith("the script exited with code 3; no model was seen")

    def test_interrupted(self, tmp_path: Path) -> None:
        with made_run(tmp_path / "run") as run:
            train(run, steps=3)
            run.end(exit_code=130, error="KeyboardInterrupt")
        assert summary_of(run.directory).verdict.headline.startswith("interrupted from the keyboard; 3 updates")

    @pytest.mark.parametrize(
        ("alive", "words"),
        [
            (False, "the process was killed before it ended"),
            (True, "still running"),
            (None, "no end was recorded (killed, or still running)"),
        ],
    )
    def test_no_end(self, tmp_path: Path, alive: bool | None, words: str) -> None:
        with made_run(tmp_path / "run") as run:
            train(run, steps=3)
        assert summary_of(run.directory, alive=alive).verdict.headline.startswith(f"{words}; 3 updates")

    def test_a_model_in_no_optimizer(self, tmp_path: Path) -> None:
        with made_run(tmp_path / "run") as run:
            train(run, steps=3, holds_parameters=False)
            run.end(steps=3)
        assert "model 'model' was trained on but is in no optimizer" in summary_of(run.directory).verdict.headline

    def test_nothing_is_said_of_optimizers_whose_parameters_are_unknown(self, tmp_path: Path) -> None:
        with made_run(tmp_path / "run") as run:
            train(run, steps=3, holds_parameters=False)
            run.optimizer("Adam", name="optimizer", unknown_parameters=2)
            run.end(steps=3)
        summary = summary_of(run.directory)
        assert summary.models[0].in_optimizer is None
        assert "no optimizer" not in summary.verdict.headline

    def test_loss_alone_goes_bad(self, tmp_path: Path) -> None:
        with made_run(tmp_path / "run") as run:
            run.model()
            for step, value in enumerate((1.0, math.inf, math.nan)):
                run.scalar("loss", step, value)
                run.call(Call.STEP, step)
            run.end(steps=3)
        assert "(since step 1)" in summary_of(run.directory).verdict.headline

    def test_one_update_and_one_loss(self, tmp_path: Path) -> None:
        with made_run(tmp_path / "run") as run:
            run.model()
            run.scalar("loss", 0, 1234.5)
            run.call(Call.STEP, 0)
            run.end(steps=1)
        assert summary_of(run.directory).verdict.headline.startswith("1 update, loss 1234, no NaN or Inf seen")
