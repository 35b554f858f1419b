"""The tensor inspector: what it keeps, what it lets go, what it raises an alert for, what it finds piling up."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest
import torch

from neuraldbg.debug import AlertSeverity, DebugSession
from neuraldbg.errors import NotRecorded
from neuraldbg.trace import open_trace

Make = Callable[..., DebugSession]


def test_the_look_of_the_original_example(session: DebugSession) -> None:
    number = session.tensor_inspector_mut().inspect_tensor(
        np.linspace(0.0, 1.0, 1000), "my_tensor", "layer_1", "forward"
    )
    info = session.tensor_inspector().get_tensor_info(number)
    assert info is not None
    assert (info.id, info.name, info.layer_name, info.operation) == (number, "my_tensor", "layer_1", "forward")
    assert (info.stats.mean, info.stats["median"]) == (pytest.approx(0.5), pytest.approx(0.5))
    assert info.distribution is not None
    assert session.tensor_inspector.get_tensor_info(number + 1 if number else 0) is None


def test_the_oldest_go_and_the_newest_never_does(make_session: Make) -> None:
    session = make_session(max_tracked_tensors=5)
    numbers = [session.tensor_inspector.inspect_tensor(np.full(3, float(i)), f"t{i}") for i in range(12)]
    kept = [one.id for one in session.tensor_inspector.get_tensors()]
    assert kept == numbers[-5:]
    assert session.tensor_inspector.evicted == 7
    with pytest.raises(NotRecorded, match="newest 5"):
        session.tensor_inspector.compare_tensors(numbers[0], numbers[-1])  # type: ignore[arg-type]


def test_a_tensor_is_compared_with_itself_a_step_earlier_though_it_has_changed_since(session: DebugSession) -> None:
    weight = torch.ones(4)
    session.tensor_inspector.inspect_tensor(weight, "weight", "fc1", "parameter")
    weight += 2.0
    session.tensor_inspector.inspect_tensor(weight, "weight", "fc1", "parameter")
    found = session.tensor_inspector.compare_steps("weight")
    assert (found.mae, found.max_diff, found.cosine_similarity) == (2.0, 2.0, pytest.approx(1.0))
    with pytest.raises(NotRecorded, match="did you mean 'weight'"):
        session.tensor_inspector.compare_steps("wieght")


def test_a_tensor_of_another_layer_or_operation_is_not_the_one_a_step_earlier(session: DebugSession) -> None:
    inspect = session.tensor_inspector.inspect_tensor
    for step in range(2):
        for at, layer in enumerate(("fc1", "fc2")):
            inspect(np.full(4, 10.0 * at + step), "weight", layer, "parameter")
            inspect(np.full(4, 1e-3), "weight", layer, "gradient")
    assert session.tensor_inspector.compare_steps("weight").max_diff == 0.0
    inspect(np.full(4, 12.0), "weight", "fc2", "parameter")
    assert session.tensor_inspector.compare_steps("weight").max_diff == 1.0
    inspect(np.full(4, 12.0), "alone", "fc1")
    inspect(np.full(4, 12.0), "alone", "fc2")
    with pytest.raises(NotRecorded, match="no two values of 'alone'"):
        session.tensor_inspector.compare_steps("alone")


def test_copies_are_bounded_in_bytes_and_the_error_says_what_to_do(make_session: Make) -> None:
    session = make_session(max_kept_bytes=80_000)
    inspect = session.tensor_inspector.inspect_tensor
    first = inspect(np.zeros(2_000), "a")
    for _ in range(9):
        last = inspect(np.ones(2_000), "a")
    large = inspect(np.ones(10_000), "large")
    assert first is not None
    assert last is not None
    assert large is not None
    for gone in (first, large):
        with pytest.raises(NotRecorded, match="max_kept_bytes"):
            session.tensor_inspector.compare_tensors(gone, last)


def test_every_alert_comes_with_its_severity_and_place(session: DebugSession) -> None:
    inspect = session.tensor_inspector.inspect_tensor
    inspect(np.array([1.0, np.nan]), "x", "fc1", "forward")
    inspect(np.array([1.0, np.inf]), "y", "fc2", "forward")
    inspect(np.array([2e10]), "z", "fc3", "forward")
    inspect(np.full(4, 1e-9), "g", "fc4", "gradient")
    inspect(np.full(4, 1e3), "h", "fc5", "backward")
    inspect(np.zeros((2, 3)), "s", "fc6")
    inspect(np.zeros((3, 2)), "s", "fc6")
    inspect(np.zeros((9, 2)), "s", "fc6")
    found = [(one.kind, one.severity.name, one.layer) for one in session.tensor_inspector.alerts]
    assert found == [
        ("NaNValues", "Critical", "fc1"),
        ("InfiniteValues", "Critical", "fc2"),
        ("ExtremeValues", "Warning", "fc3"),
        ("VanishingGradients", "Warning", "fc4"),
        ("ExplodingGradients", "Warning", "fc5"),
        ("ShapeMismatch", "Warning", "fc6"),
        ("ShapeMismatch", "Info", "fc6"),
    ]
    assert len(session.tensor_inspector.get_alerts(AlertSeverity.Critical)) == 2


def test_healthy_tensors_raise_no_alert(session: DebugSession) -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        session.tensor_inspector.inspect_tensor(draw.standard_normal((8, 16)), "activation", "fc1", "forward")
        session.tensor_inspector.inspect_tensor(draw.standard_normal((8, 16)) * 1e-3, "grad", "fc1", "gradient")
    assert session.tensor_inspector.alerts == []


def test_a_large_tensor_is_a_memory_alert(make_session: Make) -> None:
    session = make_session(large_tensor_bytes=1000)
    session.tensor_inspector.inspect_tensor(np.zeros(200), "big")
    assert [one.kind for one in session.tensor_inspector.alerts] == ["MemoryUsage"]


def test_tensors_that_pile_up_are_a_leak_and_those_that_go_are_not(session: DebugSession) -> None:
    kept, parameter = [], torch.zeros(100)
    for _ in range(12):
        history, passing = torch.ones(1000), np.ones(1000)
        session.tensor_inspector.inspect_tensor(history, "history", "fc1")
        session.tensor_inspector.inspect_tensor(passing, "passing", "fc1")
        session.tensor_inspector.inspect_tensor(parameter, "weight", "fc1", "parameter")
        kept.append(history)
        del passing, history
    gc.collect()
    report = session.tensor_inspector.memory_report()
    assert [(leak["name"], leak["alive"], leak["bytes"]) for leak in report["leaks"]] == [("history", 12, 48_000)]
    assert report["alive_tensors"] == 13
    kept.clear()
    gc.collect()
    assert session.tensor_inspector.memory_report()["leaks"] == []


def test_looks_are_rows_of_the_trace_that_everything_reads(session: DebugSession) -> None:
    for step in range(3):
        session.tensor_inspector.inspect_tensor(np.full((2, 2), float(step)), "out", "fc1", "forward")
        session.tensor_inspector.inspect_tensor(np.full(4, 0.5), "weight", "fc1", "parameter")
    directory = session.stop().run_dir
    assert directory is not None
    with open_trace(directory) as trace:
        assert trace.history("fc1", kind="activation")["mean"].tolist() == [0.0, 1.0, 2.0]
        assert trace.history("fc1.weight", kind="parameter")["l2"].tolist() == [1.0] * 3
        assert trace.run.ended


def test_sampling_looks_at_whole_steps_and_always_at_the_first(make_session: Make) -> None:
    session = make_session(sampling_rate=0.1)
    taken = {name: [] for name in "ab"}  # type: dict[str, list[bool]]
    for _ in range(30):
        for name in "ab":
            taken[name].append(session.tensor_inspector.inspect_tensor(np.ones(2), name) is not None)
    assert taken["a"] == taken["b"]
    assert [index for index, one in enumerate(taken["a"]) if one] == [0, 10, 20]
    assert [one.step for one in session.tensor_inspector.get_tensors(name="a")] == [0, 10, 20]


def test_a_part_that_is_switched_off_does_nothing(make_session: Make) -> None:
    session = make_session(enable_tensor_inspection=False, enable_gradient_debugging=False)
    assert session.tensor_inspector.inspect_tensor(np.ones(2), "a") is None
    assert session.gradient_debugger.record_gradient_flow("a", [1.0]) is None
    report = session.stop()
    assert (report.tracked_tensors, report.gradients) == (0, None)


def test_forgetting_keeps_what_is_newer(session: DebugSession) -> None:
    for step in range(4):
        session.set_step(step)
        session.tensor_inspector.inspect_tensor(np.ones(1), "a")
    session.tensor_inspector.clear(older_than=2)
    assert [one.step for one in session.tensor_inspector.get_tensors()] == [2, 3]
    session.clear()
    assert session.tensor_inspector.get_tensors() == []


def test_sparse_and_broadcast_tensors_are_looked_at_like_any_other(session: DebugSession) -> None:
    inspect = session.tensor_inspector.inspect_tensor
    sparse = torch.sparse_coo_tensor([[5], [7]], [3.0], (5_000, 5_000), check_invariants=True)
    for _ in range(2):
        assert inspect(sparse, "embedding.grad", "embedding", "gradient")
        assert inspect(np.broadcast_to(np.float32(2.0), (10**6, 10**6)), "mask")
    assert session.tensor_inspector.compare_steps("mask").mse == 0.0
    with pytest.raises(NotRecorded, match="0 of it are kept"):
        session.tensor_inspector.compare_steps("embedding.grad")
