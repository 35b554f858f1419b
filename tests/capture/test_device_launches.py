"""How often a kernel is looked up, launched and told where tensors lie: counted by kernels that only take notes."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from neuraldbg.capture import kernels
from neuraldbg.capture.kernels.device import LEAST, PARTIALS, DevicePass


class Notes:
    """Stands where Triton's kernels do. A launch through Triton gives what is launched directly from then on."""

    FIELDS = 8

    def __init__(self) -> None:
        self.looked_up: list[dict[str, Any]] = []
        self.launched: list[tuple[int, tuple[Any, ...]]] = []
        self.finished: list[list[int]] = []
        self.refuses = False
        self.measure_pass = _Subscript(self._through_triton)
        self.finish = _Subscript(self._finish)

    def _through_triton(self, grid: tuple[int, ...], *args: Any, **named: Any) -> Any:
        self.looked_up.append(named)
        self.launched.append((grid[0], args))
        return _Subscript(self._direct)

    def _direct(self, grid: tuple[int, ...], *args: Any, stream: int) -> None:
        if self.refuses:
            raise TypeError("function takes exactly 7 arguments")
        self.launched.append((grid[0], args[:7]))

    def _finish(self, grid: tuple[int, ...], jobs: torch.Tensor, *_: Any, BLOCK: int) -> None:  # noqa: N803
        self.finished.append(jobs[: 4 * grid[0]].tolist())


class _Subscript:
    def __init__(self, call: Any) -> None:
        self._call = call

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **named: self._call(grid, *args, **named)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    found = Notes()
    monkeypatch.setitem(sys.modules, "neuraldbg.capture.kernels.triton_pass", found)  # type: ignore[arg-type]
    monkeypatch.setattr(kernels, "triton_pass", found, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, raising=False)
    return found


def a_pass() -> DevicePass:
    """As on a device, but for where its own memory is."""
    made = DevicePass(torch.device("cpu"))
    made._direct = made._on_cuda = True
    return made


def measure_together(passes: DevicePass, tensors: list[torch.Tensor], first_row: int = 0) -> None:
    plan = passes.plan_for(tensors)
    assert plan is not None
    passes.measure_all(plan, first_row)


def test_a_kernel_is_looked_up_once_for_each_type(notes: Notes) -> None:
    passes = a_pass()
    for dtype in (torch.float32, torch.bfloat16):
        for _ in range(5):
            assert passes.measure(torch.zeros(1000, dtype=dtype), 0)
    assert [named["WIDTH"] for named in notes.looked_up] == [4, 2]
    assert len(notes.launched) == 10


def test_arguments_are_the_same_whichever_way_it_is_launched(notes: Notes) -> None:
    passes, tensor = a_pass(), torch.zeros(300_000)
    for _ in range(2):
        passes.measure(tensor, 0)
        passes._used = 0
    (first, one), (second, other) = notes.launched
    assert first == second == -(-300_000 // (2 * LEAST))
    assert one[:2] == (tensor.data_ptr(), 300_000)
    assert all(a is b or a == b for a, b in zip(one, other, strict=True))


def test_a_triton_that_wants_other_arguments_is_asked_its_own_way(notes: Notes) -> None:
    passes, tensor = a_pass(), torch.zeros(1000)
    passes.measure(tensor, 0)
    notes.refuses = True
    assert [passes.measure(tensor, row) for row in (1, 2)] == [True, True]
    assert len(notes.looked_up) == 3
    assert passes._jobs == [row_part for row in range(3) for row_part in (row, row, 1, 1000)]


def test_parameters_take_one_launch_and_their_table_is_sent_once(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    passes, sent = a_pass(), list[int]()
    send = passes._sent
    monkeypatch.setattr(passes, "_sent", lambda numbers: (sent.append(len(numbers)), send(numbers))[1])
    tensors = [torch.zeros(5 + place) for place in range(148)]
    for _ in range(3):
        measure_together(passes, tensors, 10)
        passes.finish_into(torch.zeros((200, 9)))
    assert len(notes.launched) == 3
    assert len(sent) == 2, "the table, and what is to be finished"
    assert notes.finished[0] == notes.finished[2]
    assert notes.finished[0][:8] == [10, 0, 1, 5, 11, 1, 1, 6]


def test_a_tensor_that_lies_elsewhere_gets_a_new_table(notes: Notes) -> None:
    passes = a_pass()
    tensors = [torch.zeros(64), torch.zeros(64)]
    measure_together(passes, tensors)
    moved = [tensors[0], torch.zeros(64)]
    measure_together(passes, moved)
    tables = [args[2][:2].tolist() for _, args in notes.launched]
    assert tables == [[one.data_ptr() for one in group] for group in (tensors, moved)]


def test_how_a_group_is_cut_is_asked_once_and_not_for_every_tensor(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, asked = a_pass(), list[int]()
    piece_of = passes._piece_of
    monkeypatch.setattr(passes, "_piece_of", lambda group: (asked.append(len(group)), piece_of(group))[1])
    assert passes.plan_for([torch.zeros(8) for _ in range(100)] + [torch.zeros(8, dtype=torch.bfloat16)])
    assert asked == [100, 1]


def test_without_room_nothing_is_launched(notes: Notes) -> None:
    passes = a_pass()
    passes._used = PARTIALS
    assert not passes.measure(torch.zeros(8), 0)
    assert notes.launched == passes._jobs == []


def test_a_group_that_fails_half_way_leaves_no_jobs(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = a_pass()
    passes.measure(torch.zeros(8), 0)
    kept = list(passes._jobs)
    launch, calls = passes._launch, list[Any]()

    def second_fails(*args: Any, **named: Any) -> None:
        calls.append(args)
        if len(calls) == 2:
            raise RuntimeError("no")
        launch(*args, **named)

    monkeypatch.setattr(passes, "_launch", second_fails)
    with pytest.raises(RuntimeError):
        measure_together(passes, [torch.zeros(8), torch.zeros(8, dtype=torch.bfloat16)], 1)
    assert (passes._jobs, passes._used) == (kept, 1)


def test_what_cannot_be_measured_together_has_no_plan(notes: Notes) -> None:
    passes, one = a_pass(), torch.zeros(64)
    assert passes.plan_for([one, one.clone()]) is not None
    assert passes.plan_for([one, one[1:]]) is None, "begins at an odd address"
    assert passes.plan_for([one, one.to_sparse()]) is None, "has no address"
    assert passes.plan_for([one, torch.zeros(64, device="meta")]) is None
    assert passes.plan_for([one], [torch.zeros(64)]) is not None
    for other in (torch.zeros(32), torch.zeros(64, dtype=torch.float64), torch.zeros(8, 8)):
        assert passes.plan_for([one], [other]) is None, "not alike"


def test_a_tensor_that_is_another_one_now_is_planned_anew(notes: Notes) -> None:
    """At the same address: a parameter whose `.data` was replaced."""
    passes, memory = a_pass(), torch.zeros(64)
    as_it_was, as_it_is = passes.plan_for([memory]), passes.plan_for([memory.view(torch.int32)])
    assert as_it_was is not None
    assert as_it_is is not None
    assert as_it_was is passes.plan_for([memory])
    assert (as_it_was.launches[0].dtype, as_it_is.launches[0].dtype) == (torch.float32, torch.int32)
    assert passes.plan_for([memory[::2]]) is None


def test_asking_for_a_known_plan_reads_no_tensor_again(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    passes, tensors = a_pass(), [torch.zeros(5 + place) for place in range(148)]
    plan = passes.plan_for(tensors)
    monkeypatch.setattr(passes, "_planned", lambda *_: pytest.fail("planned twice"))
    assert passes.plan_for(list(tensors)) is plan
