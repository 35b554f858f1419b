"""The Triton pass against the numpy twin: on a CUDA device, or on the host in Triton's interpreter.

CPU builds of torch bring no triton, and beside them it would change what torch.compile does: `make interpreted` keeps
it in a folder of its own and runs this file.
"""

from __future__ import annotations

import importlib.util
import math
import os
import sys
import weakref
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from neuraldbg.capture import kernels
from neuraldbg.capture.kernels import twin
from neuraldbg.capture.kernels.device import (
    AT_ONCE,
    KINDS,
    LEAST,
    MULTIPROCESSORS,
    PIECE,
    PLANS,
    DevicePass,
    packed,
    readable,
    readable_in_rows,
)
from neuraldbg.capture.kernels.elements import WIDTH, Element, Row
from neuraldbg.capture.torch.device import _Buffer, _shared
from neuraldbg.capture.torch.stats import from_device_row

HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
needs_triton = pytest.mark.skipif(
    not HAS_TRITON or not (torch.cuda.is_available() or INTERPRETED), reason="no triton, or no device for it"
)
DEVICE = torch.device("cpu" if INTERPRETED or not torch.cuda.is_available() else "cuda")
SIZES = (1, 2, 7, 8, 9, 511)
BYTES = 20_000  # two pieces and a rest
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning", "ignore::UserWarning")


def sizes_of(element: Element) -> tuple[int, ...]:
    return (*SIZES, BYTES // WIDTH[element])


@pytest.fixture(scope="module")
def device_pass() -> DevicePass:
    return DevicePass(DEVICE, block=512, piece=1024)


def some(element: Element, size: int, *, bad: bool = False) -> Tensor:
    tensor = (torch.randn(size, generator=torch.Generator().manual_seed(size)) * 20 + 3).to(
        getattr(torch, element.name)
    )
    if bad and tensor.is_floating_point():
        tensor[size // 2] = math.nan
        tensor[-1] = math.nan if element is Element.float8_e4m3fn else -math.inf
    return tensor.to(DEVICE)


def bytes_of(tensor: Tensor) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return tensor.cpu().reshape(-1).view(torch.uint8).numpy()


def assert_alike(found: Row, expected: Row) -> None:
    assert (found[0], *found[6:9]) == (expected[0], *expected[6:9]), "count, zeros, NaN, Inf"
    assert found[3:5] == pytest.approx(expected[3:5], rel=0, abs=0, nan_ok=True), "smallest and largest"
    top = max((abs(value) for value in expected[3:5] if math.isfinite(value)), default=0.0)
    assert found[1:3] == pytest.approx(expected[1:3], rel=0, abs=1e-6 * top, nan_ok=True), "mean and std"
    assert found[5] == pytest.approx(expected[5], rel=1e-6, nan_ok=True), "norm"


def rows_of(device_pass: DevicePass, count: int) -> list[Row]:
    rows = torch.full((count, 9), -1.0, dtype=torch.float64, device=DEVICE)
    device_pass.finish_into(rows)
    return [from_device_row(row) for row in rows.tolist()]


def measure_together(device_pass: DevicePass, tensors: list[Tensor], less: Sequence[Tensor] = ()) -> None:
    plan = device_pass.plan_for(tensors, less)
    assert plan is not None
    device_pass.measure_all(plan, 0)


def with_gaps(element: Element, shape: tuple[int, ...], gap: int) -> Tensor:
    """Rows as a compiler lays them out: with elements between them that belong to nobody."""
    *rows, length = shape
    everything = some(element, math.prod(rows) * (length + gap)).reshape(*rows, length + gap)
    return everything[..., :length]


@needs_triton
@pytest.mark.parametrize("element", [Element.float32, Element.bfloat16], ids=lambda element: element.name)
@pytest.mark.parametrize("length", [1025, 9001])
def test_rows_with_gaps_between_them_are_read_without_the_gaps(
    device_pass: DevicePass, element: Element, length: int
) -> None:
    gap = -length % 16 or 16
    tensors = [with_gaps(element, (5, length), gap), with_gaps(element, (2, 3, length), gap)]
    tensors[1][1, 2, -1] = math.nan
    for row, tensor in enumerate(tensors):
        assert not readable(tensor)
        assert readable_in_rows(tensor)
        assert device_pass.measure(tensor, row)
    for found, tensor in zip(rows_of(device_pass, 2), tensors, strict=True):
        assert_alike(found, twin.measure(bytes_of(tensor.contiguous()), element))


def test_only_long_rows_at_even_distances_are_read_one_by_one() -> None:
    wide = torch.zeros(8, 2, 1040)
    assert readable_in_rows(wide[:, :, :1025])
    assert not readable_in_rows(wide[:, :, :100]), "shorter than a launch is worth"
    assert not readable_in_rows(wide[:, :, 1:1026]), "begins at an odd address"
    assert not readable_in_rows(torch.zeros(8, 1037)[:, :1025]), "the second row begins at an odd address"
    assert not readable_in_rows(wide[:, :1, :1025].expand(8, 3, 1025)), "the same row several times"
    assert not readable_in_rows(torch.zeros(2, 8, 2, 1040)[:, ::2, :, :1025]), "not one distance"
    assert not readable_in_rows(wide[:, :, :1025].transpose(1, 2))


def test_a_small_tensor_with_an_odd_layout_is_copied_to_be_read() -> None:
    ids = torch.arange(4 * 1025).reshape(4, 1025)[:, :-1]
    copy = packed(ids)
    assert copy is not None
    assert not readable(ids)
    assert readable(copy)
    assert torch.equal(copy, ids)
    twice = torch.ones(3, 1).expand(3, 5)
    again = packed(twice)
    assert again is not None
    assert again.is_contiguous()
    assert packed(torch.zeros(4096, 1025)[:, ::2]) is None, "too large to be copied"
    assert packed(torch.zeros(0, 3)) is None
    assert packed(torch.zeros(4, dtype=torch.complex64)[::2]) is None


@needs_triton
@pytest.mark.parametrize("bad", [False, True], ids=["finite", "with NaN and Inf"])
@pytest.mark.parametrize("element", sorted(KINDS), ids=lambda element: element.name)
def test_every_type_and_size_is_measured_as_the_twin_does(device_pass: DevicePass, element: Element, bad: bool) -> None:
    tensors = [some(element, size, bad=bad) for size in sizes_of(element)]
    for row, tensor in enumerate(tensors):
        device_pass.measure(tensor, row)
    for row, tensor in zip(rows_of(device_pass, len(tensors)), tensors, strict=True):
        assert_alike(row, twin.measure(bytes_of(tensor), element))


@needs_triton
def test_several_tensors_in_one_launch_keep_their_rows(device_pass: DevicePass) -> None:
    tensors = [some(Element.float32, size) for size in (5, 9000, 17, 3000)]
    tensors += [some(Element.bfloat16, 5000, bad=True), torch.full((3000,), 1e-20, device=DEVICE)]
    measure_together(device_pass, tensors)
    for row, tensor in zip(rows_of(device_pass, len(tensors)), tensors, strict=True):
        assert_alike(row, twin.row_of(tensor.cpu().float().numpy()))


@needs_triton
@pytest.mark.parametrize("element", [Element.float64, Element.float32, Element.bfloat16], ids=lambda one: one.name)
def test_how_far_parameters_moved_is_measured_in_one_launch(device_pass: DevicePass, element: Element) -> None:
    before = [some(element, size) for size in (3, 5000, 8192)]
    after = [tensor * 0.9 for tensor in before]
    after[1][7] = math.nan
    measure_together(device_pass, after, before)
    for row, new, old in zip(rows_of(device_pass, 3), after, before, strict=True):
        wide = torch.float64 if element is Element.float64 else torch.float32
        assert_alike(row, twin.row_of((new.to(wide) - old.to(wide)).cpu().numpy()))


@needs_triton
@pytest.mark.parametrize("element", sorted(KINDS), ids=lambda element: element.name)
def test_the_hash_is_that_of_the_twin(device_pass: DevicePass, element: Element) -> None:
    for size in (1, 9, 8191, 20_000):
        tensor = some(element, size)
        products, words = device_pass.hash_sums(tensor).tolist()
        rows_of(device_pass, 1)
        raw = bytes_of(tensor)
        assert twin.hash_from_sums(products, words, raw.size) == twin.hash_of(raw)


@needs_triton
@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e19, 3e38])
def test_scales_whose_squares_do_not_fit_are_measured_with_care(device_pass: DevicePass, scale: float) -> None:
    tensor = (torch.rand(5000, generator=torch.Generator().manual_seed(0)) * scale).to(DEVICE)
    device_pass.measure(tensor, 0)
    assert_alike(rows_of(device_pass, 1)[0], twin.row_of(tensor.cpu().numpy()))


def test_what_the_pass_cannot_read_is_left_to_torch() -> None:
    one = torch.ones(64)
    assert readable(one)
    assert readable(one.reshape(8, 8).t())
    for odd in (one[1:], one[::2], one.to(torch.uint16), torch.empty(0), one.to(torch.complex64), one.to_sparse()):
        assert not readable(odd)


def test_the_output_of_a_model_is_not_measured_again_after_that_of_its_last_layer() -> None:
    got: list[tuple[str, Any]] = []
    one, other = torch.zeros(3), torch.zeros(3)
    slot = SimpleNamespace(rows=None, host=None)
    buffer = _Buffer(slot, None, None, waiting=[(7, False, lambda row: got.append(("layer", row)))])  # type: ignore[arg-type]
    buffer.last = (weakref.ref(one), one._version)
    assert not _shared(buffer, other, lambda row: got.append(("other", row)))
    assert _shared(buffer, one, lambda row: got.append(("model", row)))
    for row, _, taker in buffer.waiting:
        taker(row)
    assert got == [("layer", 7), ("model", 7)]
    one.add_(1)
    assert not _shared(buffer, one, lambda row: got.append(("changed", row)))


@needs_triton
def test_all_tensors_of_one_call_are_cut_alike() -> None:
    passes = DevicePass(DEVICE, block=512, piece=4096)
    tensors = [some(Element.float32, size) for size in (9000, 3, 2500)]
    measure_together(passes, tensors)
    rows = rows_of(passes, 3)
    for row, tensor in zip(rows, tensors, strict=True):
        assert_alike(row, twin.measure(bytes_of(tensor), Element.float32))
    assert len({piece for piece, _, _ in passes._cut(tensors)}) == 1


def test_what_a_device_reads_at_once_is_cut_into_as_many_pieces_of_one_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "neuraldbg.capture.kernels.triton_pass", SimpleNamespace(FIELDS=8))
    monkeypatch.setattr(kernels, "triton_pass", SimpleNamespace(FIELDS=8), raising=False)
    passes = DevicePass(torch.device("cpu"), block=512, piece=PIECE)
    at_once = AT_ONCE * MULTIPROCESSORS
    for words in (LEAST * at_once, 3 * LEAST * at_once - 512 * 7, PIECE * at_once):
        pieces = -(-words // passes._piece_for(words))
        assert at_once - 8 < pieces <= at_once
    assert passes._piece_for(1) == LEAST, "a little is not cut further"
    assert passes._piece_for(10 * PIECE * at_once) == PIECE, "of much, some are read while others end"


@needs_triton
def test_a_group_at_the_same_place_is_read_anew(device_pass: DevicePass) -> None:
    tensors = [some(Element.float32, size) for size in (700, 3000)]
    for factor in (1.0, 3.0):
        for tensor in tensors:
            tensor.mul_(factor)
        measure_together(device_pass, tensors)
        for row, tensor in zip(rows_of(device_pass, 2), tensors, strict=True):
            assert_alike(row, twin.measure(bytes_of(tensor), Element.float32))
    assert len(device_pass._plans) <= PLANS
