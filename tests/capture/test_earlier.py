"""Values before an update: all of them where they fit, in turns where they do not, in memory that is used again."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from watching import trace_of, watching

from neuraldbg.capture.torch import earlier
from neuraldbg.capture.torch.earlier import EarlierValues
from neuraldbg.records import Kind
from neuraldbg.trace.tables import KIND_CODE

PIECES = 10


def given(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """The same tensor with other data."""

    def change(value: torch.Tensor) -> torch.Tensor:
        value.data = make(value.data)
        return value

    return change


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "written to": lambda value: value.add_(1),
    "moved elsewhere": given(lambda data: data.clone() + 2),
    "another size": given(lambda data: torch.arange(float(data.numel() + 1))),
    "another shape, there": given(lambda data: data.reshape(1, -1)),
    "transposed, there": given(lambda data: torch.randn(4, 6).t()),
    "narrower, there": given(
        lambda data: data.contiguous().flatten().view(torch.int8)[: data.numel()].reshape(data.shape)
    ),
    "a part": given(lambda data: torch.randn(20)[::2]),
    "another tensor": lambda value: value.clone(),
}


def parameters(elements: int) -> list[torch.Tensor]:
    return [torch.full((elements,), float(number)) for number in range(PIECES)]


def test_a_small_model_is_copied_whole_and_into_the_same_memory() -> None:
    values, kept = parameters(8), EarlierValues(under_budget=True)
    first = kept.take(values)
    assert all(copy is not None and torch.equal(copy, value) for copy, value in zip(first, values, strict=True))
    values[3].add_(1.0)
    assert torch.equal(first[3], torch.full((8,), 3.0))
    again = kept.take(values)
    assert [copy.data_ptr() for copy in again] == [copy.data_ptr() for copy in first]
    assert torch.equal(again[3], values[3])


def test_parameters_of_a_large_model_take_turns_under_a_budget() -> None:
    quarter = earlier.TURN_BYTES // 4 // 4  # elements: four of them fill a turn
    values, kept = [torch.empty(quarter, device="meta") for _ in range(PIECES)], EarlierValues(under_budget=True)
    turns = [kept._turn(values)[0] for _ in range(5)]
    assert turns[:3] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
    assert {at for turn in turns for at in turn} == set(range(PIECES))


def test_where_every_step_is_measured_the_first_ones_are_copied() -> None:
    large = earlier.FULL_BYTES // 4 // 4
    values, kept = [torch.empty(large, device="meta") for _ in range(PIECES)], EarlierValues(under_budget=False)
    assert [kept._turn(values) for _ in range(2)] == [([0, 1, 2, 3], False)] * 2


def test_a_parameter_that_no_turn_can_hold_is_left_out_and_told() -> None:
    values = [torch.empty(earlier.TURN_BYTES, device="meta"), torch.empty(8, device="meta")]
    kept = EarlierValues(under_budget=True)
    assert kept._turn(values) == ([1], True)
    assert kept.too_large


def test_a_parameter_of_another_shape_gets_memory_of_its_own() -> None:
    kept, value = EarlierValues(under_budget=True), torch.ones(4)
    kept.take([value])
    value.data = torch.ones(6)
    (copy,) = kept.take([value])
    assert copy is not None
    assert copy.shape == (6,)


@settings(max_examples=60, deadline=None)
@drawn(st.lists(st.tuples(st.sampled_from(sorted(CHANGES)), st.integers(0, PIECES - 1)), max_size=12))
def test_copies_are_what_the_parameters_were_whatever_happens_to_them(changes: list[tuple[str, int]]) -> None:
    """The same ones are copied by a plan; one that lies elsewhere or is another tensor now must not follow it."""
    values, kept = parameters(8), EarlierValues(under_budget=False)
    kept.take(values)
    for change, at in changes:
        values[at] = CHANGES[change](values[at])
        copies = kept.take(values)
        assert all(copy is not None and torch.equal(copy, value) for copy, value in zip(copies, values, strict=True))
        assert all(copy.dtype == value.dtype for copy, value in zip(copies, values, strict=True))


def test_a_plan_keeps_no_parameter_alive() -> None:
    values, kept = parameters(8), EarlierValues(under_budget=False)
    kept.take(values)
    copy = weakref.ref(kept.take(values)[-1])
    gone = weakref.ref(values.pop())
    assert gone() is None
    assert copy() is None
    assert len(kept.take(values)) == PIECES - 1


def in_turns(monkeypatch: pytest.MonkeyPatch, values: list[torch.Tensor], room: int) -> EarlierValues:
    monkeypatch.setattr(earlier, "TURN_BYTES", room)
    assert sum(value.nbytes for value in values) > room
    return EarlierValues(under_budget=True)


def memory_of(copies: list[torch.Tensor | None]) -> set[int]:
    return {copy.untyped_storage().data_ptr() for copy in copies if copy is not None}


def test_turns_use_one_piece_of_memory_whatever_their_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [torch.randn(size) for size in (100, 7, 350, 33, 1, 250, 0, 500, 64)]
    kept, places, seen = in_turns(monkeypatch, values, 2048), set(), set()
    for _ in range(12):
        copies = kept.take(values)
        assert all(copy is None or torch.equal(copy, value) for copy, value in zip(copies, values, strict=True))
        seen |= {at for at, copy in enumerate(copies) if copy is not None}
        places |= memory_of(copies)
        values[0].add_(1.0)
        del copies  # as after the update
    assert len(places) == 1
    assert seen == set(range(len(values)))


def test_copies_that_somebody_holds_are_not_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer that steps another one inside of its own step."""
    values = parameters(64)
    kept = in_turns(monkeypatch, values, 600)
    outer = kept.take(values)
    before = [None if copy is None else copy.clone() for copy in outer]
    inner = kept.take([value + 100 for value in values])
    assert not memory_of(outer) & memory_of(inner)
    assert all(a is None or torch.equal(a, b) for a, b in zip(outer, before, strict=True))


def test_a_turn_copies_other_layouts_and_types_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    values = [image, torch.randn(6, 4).t(), torch.randn(5, dtype=torch.float64), torch.randn(9)[::2], torch.ones(4000)]
    copies = in_turns(monkeypatch, values, 8192).take(values)
    assert copies[-1] is None
    for copy, value in zip(copies[:-1], values[:-1], strict=True):
        assert copy is not None
        assert torch.equal(copy, value)
        assert copy.dtype == value.dtype
    assert copies[0] is not None
    assert copies[0].stride() == image.stride()


def test_threads_that_train_at_once_get_memory_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch lets go of the interpreter while one of them is in the middle of its turn."""
    models = [[torch.full((600,), float(number)) for _ in range(12)] for number in range(4)]
    kept = in_turns(monkeypatch, models[0], 12_000)
    wrong: list[object] = []

    def train(values: list[torch.Tensor]) -> None:
        try:
            for _ in range(300):
                copies = kept.take(values)
                wrong.extend(c for c, v in zip(copies, values, strict=True) if c is not None and not torch.equal(c, v))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=train, args=(values,)) for values in models]
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switching)
    assert not wrong


def test_what_is_not_in_host_memory_is_copied_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [torch.empty(3000, device="meta"), torch.ones(3000)]
    copies = in_turns(monkeypatch, values, 13_000).take(values)
    assert copies[0] is not None
    assert copies[0].is_meta
    assert copies[1] is None


@pytest.mark.parametrize("size", [2**15 - 1, 2**15, 2**15 + 13, 2**16 + 16])
def test_large_copies_are_whole_and_leave_their_neighbours_alone(size: int) -> None:
    """They are written past the caches, in pieces of 64 bytes and what is left of them."""
    values = [torch.arange(5.0), torch.randn(size), torch.arange(7.0)]
    earlier = EarlierValues(under_budget=True)
    for _ in range(3):  # the first time by torch
        copies = earlier.take(values)
        for copy, value in zip(copies, values, strict=True):
            assert copy is not None
            assert torch.equal(copy, value)
        for value in values:
            value += 1


@pytest.mark.parametrize("budget", [None, 0.01])
def test_how_far_an_update_moved_is_what_the_optimizer_did(tmp_path: Path, budget: float | None) -> None:
    """And not what the script did to the weights before it: clipped or written to past torch's counters, scaled, put
    elsewhere."""
    model, wanted = torch.nn.Linear(300, 40), {}
    between = [
        lambda weight: weight.data.clamp_(-0.03, 0.03),
        lambda weight: weight.detach().mul_(0.9),
        lambda weight: weight.data[7, 11:13].fill_(5.0),
        lambda weight: setattr(weight, "data", weight.data + 0.01),
        lambda _: None,
    ]
    with watching(tmp_path, budget=budget):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(40):
            model(torch.randn(8, 300)).square().mean().backward()
            before = model.weight.detach().clone()
            optimizer.step()
            wanted[step] = float((model.weight.detach() - before).double().norm())
            optimizer.zero_grad()
            between[step % 5](model.weight)
    with trace_of(tmp_path) as trace:
        site = next(site.id for site in trace.sites if site.path == "weight")
        rows = trace.table("stats", columns=["step", "site", "kind", "l2"])
    chosen = (rows["site"] == site) & (rows["kind"] == KIND_CODE[Kind.UPDATE])
    found = dict(zip(rows["step"][chosen].tolist(), rows["l2"][chosen].tolist(), strict=True))
    assert len(found) == 40 if budget is None else len(found) >= 20
    assert found == pytest.approx({step: wanted[step] for step in found}, rel=1e-5)
