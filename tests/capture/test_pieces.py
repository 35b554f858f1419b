"""Copies in one piece of memory: the same values, laid out as they were, none in another's place."""

from __future__ import annotations

import mmap
import multiprocessing
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from neuraldbg.capture.torch import pieces
from neuraldbg.capture.torch.pieces import APART, Ready, copied, copy_of, memory_of, rooms_for

LARGE = 2 * 2**20
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


@given(st.lists(tensors(), max_size=6), st.booleans())
def test_copies_are_what_clones_are(values: list[Tensor], by_itself: bool) -> None:
    made = [copy_of(value) for value in values] if by_itself else copied(values)
    assert len(made) == len(values)
    for copy, value in zip(made, values, strict=True):
        like = value.clone()
        assert copy.dtype == like.dtype
        assert copy.shape == like.shape
        assert copy.stride() == torch.empty_like(value).stride()
        assert torch.equal(copy, like)
        copy.zero_()  # and no other one with it
    assert all(not copy.any() for copy in made)


def test_a_copy_that_is_kept_does_not_lie_on_the_heap_of_the_training() -> None:
    values = torch.arange(APART // 4, dtype=torch.float32).reshape(2, -1)
    copy, transposed, shown = copy_of(values), copy_of(values.t()), copy_of(values[:1].expand(2, -1))
    assert copy.untyped_storage().nbytes() == values.nbytes
    assert torch.equal(copy, values)
    assert torch.equal(transposed, values.t())
    assert transposed.stride() == values.t().clone().stride()
    assert torch.equal(shown, values[:1].expand(2, -1))
    assert all(_is_mapped_apart(each) for each in (copy, transposed, shown)) or sys.platform != "linux"


def _is_mapped_apart(tensor: Tensor) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, _, last = line.split()[0].partition("-")
        if int(first, 16) <= tensor.data_ptr() < int(last, 16):
            return "[heap]" not in line and tensor.data_ptr() % mmap.PAGESIZE == 0
    return False


def test_a_copy_that_requires_no_gradient_is_made_of_one_that_does() -> None:
    value = torch.ones(APART, requires_grad=True)
    assert not copy_of(value).requires_grad
    with torch.inference_mode():
        inferred = torch.ones(APART)
    assert torch.equal(copy_of(inferred), torch.ones(APART))


@pytest.mark.parametrize("transform", [torch.vmap, torch.func.functionalize])
@pytest.mark.parametrize("copy", [copy_of, lambda value: copied([value])[0]])
def test_what_stands_in_for_a_tensor_is_copied_as_it_wants(transform: Any, copy: Callable[[Tensor], Tensor]) -> None:
    value = torch.arange(2.0 * APART).reshape(2, -1)
    assert torch.equal(transform(lambda each: copy(each) * 1)(value), value)


def test_a_process_that_may_map_no_more_gets_memory_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(pieces.mmap, "mmap", none)
    assert torch.equal(copy_of(torch.ones(APART)), torch.ones(APART))


def test_large_memory_is_ones_own() -> None:
    first, second = memory_of(LARGE + 5), memory_of(LARGE)
    assert (first.numel(), second.numel()) == (LARGE + 5, LARGE)
    first.fill_(1)
    second.fill_(2)
    assert (first.unique().item(), second.unique().item()) == (1, 2)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for pages")
def test_pages_of_large_memory_are_there_before_they_are_written_to() -> None:
    memory = memory_of(LARGE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    memory.fill_(1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < LARGE // mmap.PAGESIZE // 4


def test_a_system_that_cannot_give_pages_at_once_gives_memory_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_POPULATE", 10_000)  # no such advice
    assert memory_of(LARGE).fill_(3).unique().item() == 3


def test_a_child_that_writes_to_large_memory_does_not_write_to_its_parents() -> None:
    memory = memory_of(LARGE).fill_(1)
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


# -- memory that was fetched beforehand --------------------------------------------------------------------------------


def ready(size: int = pieces.KEPT_BYTES) -> Ready:
    memory = Ready(size)
    memory.fetch()
    return memory


@given(st.lists(tensors(), max_size=6))
def test_copies_in_memory_that_is_there_are_what_clones_are(values: list[Tensor]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pieces, "APART", 1)
        memory = ready(8 * 5**4 * 16)
        made = [memory.copy_of(value) for value in values]
    for copy, value in zip(made, values, strict=True):
        assert (copy.dtype, copy.shape) == (value.dtype, value.shape)
        assert copy.stride() == torch.empty_like(value).stride()
        assert torch.equal(copy, value)
        copy.zero_()
    assert all(not copy.any() for copy in made)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for pages")
def test_each_copy_has_a_storage_of_its_own_in_the_same_memory() -> None:
    memory, value = ready(), torch.rand(APART // 4 + 3)
    first, second = memory.copy_of(value), memory.copy_of(value)
    apart = second.data_ptr() - first.data_ptr()
    assert APART < apart < APART + 2 * pieces.ALIGNED
    assert first.untyped_storage().nbytes() == value.nbytes
    memory.close()
    second.fill_(2)
    assert torch.equal(first, value)
    assert torch.equal(memory.copy_of(value), value)


@pytest.mark.parametrize("memory", [Ready(), ready(9 * APART), ready(8 * APART)])
def test_what_does_not_fit_has_memory_of_its_own(memory: Ready) -> None:
    values = [torch.full((APART // 4 * size,), float(at)) for at, size in enumerate([1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1])]
    copies = [memory.copy_of(value) for value in values]
    assert all(torch.equal(copy, value) for copy, value in zip(copies, values, strict=True))
    spans = sorted((copy.data_ptr(), copy.nbytes) for copy in copies)
    assert all(start + size <= after for (start, size), (after, _) in pairwise(spans))


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for pages")
def test_memory_that_is_there_is_fetched_once() -> None:
    memory, value = ready(), torch.rand(2 * APART)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    memory.fetch()
    held = [memory.copy_of(value) for _ in range(7)]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 7 * value.nbytes // mmap.PAGESIZE // 4
    assert all(torch.equal(each, value) for each in held)


def test_threads_have_no_place_in_common() -> None:
    memory = ready()
    values = [torch.full((APART // 4,), float(at)) for at in range(48)]
    with ThreadPoolExecutor(8) as several:
        copies = list(several.map(memory.copy_of, values))
    assert all(torch.equal(copy, value) for copy, value in zip(copies, values, strict=True))


@pytest.mark.parametrize("transform", [torch.vmap, torch.func.functionalize])
def test_what_stands_in_for_a_tensor_is_not_copied_there(transform: Any) -> None:
    memory, value = ready(), torch.arange(2.0 * APART).reshape(2, -1)
    assert torch.equal(transform(lambda each: memory.copy_of(each) * 1)(value), value)
