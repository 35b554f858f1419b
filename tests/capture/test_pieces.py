"""Copies in one piece of memory: the same values, laid out as they were, none in another's place."""

from __future__ import annotations

import mmap
import multiprocessing
import resource
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from neuraldbg.capture.torch import pieces
from neuraldbg.capture.torch.pieces import AT_ONCE, copied, memory_of, rooms_for

TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    values = torch.arange(torch.Size(shape).numel()).reshape(shape).to(draw(st.sampled_from(TYPES)))
    if values.dim() > 1 and draw(st.booleans()):
        values = values.transpose(0, 1)
    if values.dim() == 4 and draw(st.booleans()):
        values = values.contiguous(memory_format=torch.channels_last)
    return values[::2] if values.dim() and draw(st.booleans()) else values


@given(st.lists(tensors(), max_size=6))
def test_copies_are_what_clones_are(values: list[Tensor]) -> None:
    made = copied(values)
    assert len(made) == len(values)
    for copy, value in zip(made, values, strict=True):
        like = value.clone()
        assert copy.dtype == like.dtype
        assert copy.shape == like.shape
        assert copy.stride() == torch.empty_like(value).stride()
        assert torch.equal(copy, like)
        copy.zero_()  # and no other one with it
    assert all(not copy.any() for copy in made)


def test_large_memory_is_ones_own() -> None:
    first, second = memory_of(AT_ONCE + 5), memory_of(AT_ONCE)
    assert (first.numel(), second.numel()) == (AT_ONCE + 5, AT_ONCE)
    first.fill_(1)
    second.fill_(2)
    assert (first.unique().item(), second.unique().item()) == (1, 2)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for pages")
def test_pages_of_large_memory_are_there_before_they_are_written_to() -> None:
    memory = memory_of(AT_ONCE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    memory.fill_(1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < AT_ONCE // mmap.PAGESIZE // 4


def test_a_system_that_cannot_give_pages_at_once_gives_memory_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_POPULATE", 10_000)  # no such advice
    assert memory_of(AT_ONCE).fill_(3).unique().item() == 3


def test_a_child_that_writes_to_large_memory_does_not_write_to_its_parents() -> None:
    memory = memory_of(AT_ONCE).fill_(1)
    child = multiprocessing.get_context("fork").Process(target=memory.fill_, args=(2,))
    child.start()
    child.join()
    assert memory.unique().item() == 1


def test_none_lies_in_anothers_place() -> None:
    first, second, third = rooms_for([torch.empty(3), torch.empty(1, dtype=torch.float64), torch.empty(5)])
    first.fill_(1.0)
    third.fill_(3.0)
    second.fill_(2.0)
    assert (first.unique().item(), second.item(), third.unique().item()) == (1.0, 2.0, 3.0)


def test_what_is_no_plain_tensor_gets_room_of_its_own() -> None:
    kept = torch.nn.Parameter(torch.ones(2))  # a class of its own, as wrappers of tensors are
    (copy,) = copied([kept])
    assert torch.equal(copy, kept)
    assert not copy.requires_grad
    assert copied([]) == []
