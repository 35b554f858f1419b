"""Marks on a device: none is used again while somebody needs it, and what was launched late is told apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from made_runs import made_run  # noqa: E402

from neuraldbg import open_trace  # noqa: E402
from neuraldbg.analysis.profile_report import profile_of  # noqa: E402
from neuraldbg.capture.torch.attach import Options, TorchCapture  # noqa: E402
from neuraldbg.capture.torch.device import DeviceQueue  # noqa: E402
from neuraldbg.records import Phase  # noqa: E402
from neuraldbg.trace import TraceWriter, create_run  # noqa: E402
from neuraldbg.trace.rundir import new_run_info  # noqa: E402


class Mark:
    """An event whose moment is given, on a device that is told when to pass it."""

    def __init__(self, at_ms: float, *, passed: bool = False) -> None:
        self.at_ms, self.passed = at_ms, passed

    def query(self) -> bool:
        return self.passed

    def elapsed_time(self, end: Mark) -> float:
        return end.at_ms - self.at_ms


def test_a_mark_is_used_again_once_everything_that_needs_it_is_told() -> None:
    queue, told = DeviceQueue(), []
    marks = [Mark(float(at)) for at in range(4)]
    for start, end in ((0, 1), (1, 2), (2, 3)):  # the end of one stretch is the beginning of the next
        queue.elapsed(marks[start], marks[end], told.append)
    marks[0].passed = marks[1].passed = True
    queue.poll()
    assert told == [1_000_000]
    needed = [marks[1], marks[2], marks[3]]
    del marks
    assert queue._free() is not None  # the first one
    assert queue._free() is None  # the second is the beginning of a stretch that is not over
    needed[1].passed = needed[2].passed = True
    queue.poll()
    assert told == [1_000_000] * 3
    del needed
    free = [queue._free() for _ in range(4)]
    assert len({id(one) for one in free if one is not None}) == 3  # each once, though two were told twice
    assert free[3] is None


class Device:
    """Marks that are all passed or all not; times are told when asked."""

    def __init__(self, real: Any) -> None:
        self._real, self._waiting = real, []  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def mark(self) -> Mark:
        return Mark(0.0)

    def elapsed(self, start: Mark, end: Mark, deliver: Any) -> None:
        self._waiting.append(lambda: deliver(int(start.elapsed_time(end) * 1e6)))

    def finish_sync(self) -> None:
        while self._waiting:
            self._waiting.pop(0)()


def test_calls_that_the_device_came_to_too_early_are_counted_apart(tmp_path: Path) -> None:
    run = create_run(new_run_info(("train.py",), script="train.py", budget="full"), out=tmp_path / "run")
    delivered: list[int] = []
    with TraceWriter(run) as writer:
        capture = TorchCapture(lambda: writer, Options(budget=None, strict=True, profile=True))
        capture.core.device = Device(capture.core.device)  # type: ignore[assignment]
        launches = capture.core.clock.launches  # type: ignore[attr-defined]
        launches.called(7, (Mark(0.0), Mark(2.0)), delivered.append)
        launches.called(7, (Mark(0.0, passed=True), Mark(9.0)), delivered.append)
        launches.called(7, (Mark(0.0), Mark(4.0)), delivered.append)
        capture.close()
    assert delivered == [2_000_000, 9_000_000, 4_000_000]
    with open_trace(run) as trace:
        (fact,) = trace.facts("launches")
    assert fact["layers"] == [{"site": 7, "calls": 3, "ahead": 2, "ahead_ns": 6_000_000}]


def launched(folder: Path, ahead: int) -> dict[str, Any]:
    """The profile of ten calls of 3 ms each, of which so many were launched ahead and took 1 ms."""
    with made_run(folder) as run:
        model = run.model()
        fc = run.module("fc", "Linear", model)
        for step in range(10):
            run.span(fc, Phase.FORWARD, step, 3.0)
            run.scalar("step_time_s", step, 0.004)
        row = {"site": fc, "calls": 10, "ahead": ahead, "ahead_ns": ahead * 1_000_000}
        run.writer.fact("launches", layers=[row])
        run.end(steps=10)
    with open_trace(folder) as trace:
        return profile_of(trace)


def test_a_device_that_waits_for_the_host_is_named(tmp_path: Path) -> None:
    late = launched(tmp_path / "late", ahead=2)
    assert (late["layers"][0]["late_share"], late["layers"][0]["device_ms"]) == (0.8, 1.0)
    (waiting,) = [one for one in late["bottlenecks"] if "waits for the host" in one["summary"]]
    assert (waiting["type"], waiting["details"]["late_layers"]) == ("underutilization", 1)
    assert "torch.compile" in waiting["recommendation"]


def test_a_device_that_is_kept_busy_is_not(tmp_path: Path) -> None:
    told = launched(tmp_path / "busy", ahead=9)
    assert told["layers"][0]["late_share"] == pytest.approx(0.1)
    assert not [one for one in told["bottlenecks"] if "waits for the host" in one["summary"]]


def test_on_the_host_nothing_is_launched(tmp_path: Path) -> None:
    with made_run(tmp_path / "host") as run:
        run.span(run.module("fc", "Linear", run.model()), Phase.FORWARD, 0, 3.0)
    with open_trace(tmp_path / "host") as trace:
        (row,) = profile_of(trace)["layers"]
    assert (row["device_ms"], row["late_share"]) == (None, None)
