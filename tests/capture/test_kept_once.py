"""Copies of parameters: memory for them is there before the first update, and nothing is copied twice."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from watching import net, watching

from neuraldbg.capture.kernels import host
from neuraldbg.capture.kernels.host import same_bits
from neuraldbg.capture.torch import pieces
from neuraldbg.capture.torch.attach import TorchCapture
from neuraldbg.capture.torch.core import PREPARED
from neuraldbg.capture.torch.pieces import READY_BYTES, Memory, copied, memory_for
from neuraldbg.capture.torch.recording.taking import Recording
from neuraldbg.capture.torch.recording.tape import Tape

compiled = pytest.mark.skipif(host.fused is None, reason="built without a compiler")
TYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8)
BYTES = st.integers(0, 12).flatmap(lambda words: st.binary(min_size=8 * words, max_size=8 * words))


def tensor_of(raw: bytes, dtype: torch.dtype) -> Tensor:
    """Any bits at all: NaN of every kind among them."""
    whole = torch.tensor(list(raw), dtype=torch.uint8)
    return (whole & 1).bool() if dtype is torch.bool else whole.view(dtype)


# -- the same to the last bit ----------------------------------------------------------------------------------------


@compiled
@given(BYTES, st.sampled_from(TYPES), st.integers(0, 95), st.integers(1, 255))
def test_one_other_bit_is_another_value(raw: bytes, dtype: torch.dtype, at: int, change: int) -> None:
    value = tensor_of(raw, dtype)
    assert same_bits([value, nn.Parameter(torch.ones(3))], [value.clone(), torch.ones(3)])
    if raw:
        other = bytearray(raw)
        other[at % len(raw)] ^= change
        changed = tensor_of(bytes(other), dtype)
        differs = changed.view(torch.uint8).tolist() != value.view(torch.uint8).tolist()
        assert same_bits([value], [changed]) is not differs


@compiled
def test_zeros_of_either_sign_other_shapes_and_types_are_not_the_same() -> None:
    assert not same_bits([torch.tensor([0.0])], [torch.tensor([-0.0])])
    assert not same_bits([torch.zeros(4)], [torch.zeros(2, 2)])
    assert not same_bits([torch.zeros(2)], [torch.zeros(2, dtype=torch.int32)])
    assert not same_bits([torch.zeros(2)], [])
    assert not same_bits([torch.zeros(2)], [torch.zeros(2, device="meta")])
    assert not same_bits([torch.zeros(2, 3).t()], [torch.zeros(3, 2)])  # unknown is no


def test_without_a_compiler_nothing_is_taken_for_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_reader", None)
    assert not same_bits([torch.zeros(2)], [torch.zeros(2)])


# -- memory that is there --------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of every piece of memory that is asked of the system."""
    sizes: list[int] = []
    real = pieces.memory_of
    monkeypatch.setattr(pieces, "memory_of", lambda size: (sizes.append(size), real(size))[1])
    return sizes


def test_copies_go_into_the_memory_that_is_ready_where_they_fit(asked: list[int]) -> None:
    values = [torch.arange(40_000.0), torch.ones(3, 5)]
    ready = memory_for(values)
    assert ready is not None
    found = copied(values, ready)
    assert len(asked) == 1
    assert all(torch.equal(copy, value) for copy, value in zip(found, values, strict=True))
    more = copied(values, ready)  # no room is left in it
    more[0].zero_()
    assert torch.equal(found[0], values[0])


def test_no_memory_is_fetched_for_what_is_large_or_no_plain_tensor() -> None:
    assert memory_for([torch.empty(READY_BYTES // 4 + 1)]) is None
    assert memory_for([torch.empty(4, device="meta")]) is None
    assert memory_for([nn.UninitializedParameter()]) is None
    assert memory_for([]) is None
    assert isinstance(memory_for([nn.Parameter(torch.ones(4))]), Memory)


def test_the_first_update_finds_its_memory_ready(tmp_path: Path, asked: list[int]) -> None:
    model = nn.Linear(300, 300)
    with watching(tmp_path) as capture:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert asked
        rooms = [copy.data_ptr() for copy in capture.updates.sweep.earlier._copies.values()]
        before = [p.detach().clone() for p in model.parameters()]
        taken = capture.updates.sweep.earlier.take(list(model.parameters()))
        assert [copy.data_ptr() for copy in taken if copy is not None] == rooms
        assert all(torch.equal(a, b) for a, b in zip(before, (one for one in taken if one is not None), strict=True))
        del optimizer


def test_programs_that_make_many_optimizers_prepare_a_few(tmp_path: Path, asked: list[int]) -> None:
    models = [nn.Linear(100, 100) for _ in range(PREPARED + 3)]
    with watching(tmp_path):
        kept = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        assert len(asked) == PREPARED
        del kept


def test_optimizers_that_are_dropped_again_count_among_them(tmp_path: Path, asked: list[int]) -> None:
    models = [nn.Linear(100, 100) for _ in range(PREPARED + 3)]
    with watching(tmp_path):
        for model in models:
            torch.optim.SGD(model.parameters(), lr=0.1)
        assert len(asked) == PREPARED


@pytest.mark.parametrize("most", [2**30, 1000])
def test_memory_for_a_first_state_is_let_go_if_none_is_taken(capture: TorchCapture, most: int) -> None:
    recording, model = Recording(capture.core, capture.patches, Tape(limit_bytes=most)), nn.Linear(100, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert recording._room is not None
    for _ in range(2):
        model(torch.ones(8, 100)).sum().backward()
        optimizer.step()
    assert recording._room is None
    assert bool(recording.tape.states) == (most > 1000)


def test_memory_that_was_prepared_goes_with_the_model(tmp_path: Path) -> None:
    with watching(tmp_path) as capture:
        model = nn.Linear(300, 300)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        room = weakref.ref(next(iter(capture.updates.sweep.earlier._copies.values())))
        del model, optimizer
        assert room() is None


# -- first values ----------------------------------------------------------------------------------------------------


@pytest.fixture
def capture(tmp_path: Path) -> Iterator[Any]:
    with watching(tmp_path) as one:
        yield one


def first_values(
    capture: TorchCapture, between: Any, beside: Any = None
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Of one update: first values for the experiments, those of the recording, and what the parameters were."""
    recording = Recording(capture.core, capture.patches, Tape())
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = None if beside is None else torch.optim.SGD(beside.parameters(), lr=0.1)
    loss = nn.functional.mse_loss(model(torch.ones(8, 4)), torch.zeros(8, 1))
    loss.backward()
    between(model)
    del other
    held = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    initial = list(capture.watchers[-1].samples.specimen.initial.values())
    return initial, [value for _, value in recording.tape.states[0].parameters], held


@compiled
def test_experiments_share_the_first_values_of_a_recording(capture: TorchCapture) -> None:
    initial, recorded, held = first_values(capture, lambda _: None)
    assert all(one is other for one, other in zip(initial, recorded, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(initial, held, strict=True))
    assert capture.core.recorded == {}, "held on to no longer than an update takes"


def test_first_values_of_a_small_model_do_not_hold_those_of_a_large_one(capture: TorchCapture) -> None:
    large = nn.Linear(500, 500)
    initial, recorded, held = first_values(capture, lambda _: None, large)
    assert any(value.shape == (500, 500) for value in recorded)
    assert all(torch.equal(one, other) for one, other in zip(initial, held, strict=True))
    assert sum(one.untyped_storage().nbytes() for one in initial) < 10_000


def test_a_parameter_moved_between_pass_and_update_is_copied_again(capture: TorchCapture) -> None:
    def shrink(model: nn.Module) -> None:
        next(model.parameters()).data.mul_(0.5)  # no version counter tells of it

    initial, recorded, held = first_values(capture, shrink)
    assert all(torch.equal(one, other) for one, other in zip(initial, held, strict=True))
    assert not torch.equal(initial[0], recorded[0])
