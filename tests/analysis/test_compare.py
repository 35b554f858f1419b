"""Two runs are compared where both have something, and nowhere else."""

from __future__ import annotations

from pathlib import Path

from made_runs import MadeRun, made_run, train

from neuraldbg.analysis.compare import Comparison, compare_sessions, on_one_axis
from neuraldbg.records import Kind, Phase
from neuraldbg.surfaces.reports.session import session_object
from neuraldbg.trace import open_trace


def compared(a: MadeRun, b: MadeRun) -> Comparison:
    with open_trace(a.directory) as first, open_trace(b.directory) as second:
        return compare_sessions(session_object(first), session_object(second), traces=(first, second))


def test_a_run_agrees_with_its_twin(tmp_path: Path) -> None:
    with made_run(tmp_path / "a") as a, made_run(tmp_path / "b") as b:
        for run in (a, b):
            train(run, steps=20, nan_from=12)
            run.end(steps=20)
    found = compared(a, b)
    assert found.loss_differs_from is None
    assert found.divergence is None
    assert found.divergence_searched
    assert found.only_in_a == found.only_in_b == found.changed_params == ()


def test_runs_of_different_length_are_compared_where_both_have_steps(tmp_path: Path) -> None:
    with made_run(tmp_path / "a") as a, made_run(tmp_path / "b") as b:
        train(a, steps=20)
        train(b, steps=8)
    found = compared(a, b)
    assert (found.a.steps, found.b.steps) == (20, 8)
    assert found.loss_differs_from is None
    assert found.loss[19][2] is None
    assert len(found.loss) == 20


def test_the_first_layer_that_differs_is_named_with_its_step(tmp_path: Path) -> None:
    with made_run(tmp_path / "a") as a, made_run(tmp_path / "b") as b:
        for run, late_value in ((a, 10.0), (b, 11.0)):
            model = run.model()
            first, second = run.module("first", "Linear", model), run.module("second", "Linear", model)
            for step in range(4):
                run.stats(first, Kind.ACTIVATION, step)
                run.stats(second, Kind.ACTIVATION, step, l2=late_value if step >= 2 else 10.0)
                run.stats(first, Kind.ACTIVATION, step, Phase.EVAL, l2=late_value)
            run.end()
    found = compared(a, b).divergence
    assert found is not None
    assert (found.layer, found.kind, found.step, found.field, found.a, found.b) == (
        "second", "activation", 2, "l2", 10.0, 11.0,
    )  # fmt: skip


def test_layers_that_only_one_run_has_are_listed(tmp_path: Path) -> None:
    with made_run(tmp_path / "a") as a, made_run(tmp_path / "b") as b:
        for run, extra in ((a, "dropout"), (b, "norm")):
            model = run.model()
            run.module("fc", "Linear", model, parameters=10 if extra == "norm" else 20)
            run.module(extra, "Layer", model)
            run.end()
    found = compared(a, b)
    assert (found.only_in_a, found.only_in_b) == (("dropout",), ("norm",))
    assert found.changed_params == (("fc", 20, 10),)


def test_sessions_alone_compare_without_layers(tmp_path: Path) -> None:
    with made_run(tmp_path / "a") as a:
        train(a, steps=5, nan_from=3)
    with open_trace(a.directory) as trace:
        session = session_object(trace)
    found = compare_sessions(session, session)
    assert not found.divergence_searched
    assert found.a.final_loss is not None
    assert found.loss_differs_from is None


def test_a_run_without_a_loss_compares_too(tmp_path: Path) -> None:
    with made_run(tmp_path / "a") as a, made_run(tmp_path / "b") as b:
        a.end()
        b.end()
    found = compared(a, b)
    assert found.loss == ()
    assert found.a.final_loss is None


def test_curves_share_one_axis() -> None:
    curve_a, curve_b = on_one_axis([(0, 1.0, 5.0), (1, 3.0, None), (2, 5.0, None), (3, 7.0, None)], 2)
    assert curve_a == [2.0, 6.0]
    assert curve_b == [5.0, None]
