"""The C kernel and its numpy twin agree on every type and on any bits; without a compiler nothing is lost but time."""

from __future__ import annotations

import gc
import math
import os
import shutil
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from neuraldbg.capture.kernels import host, twin
from neuraldbg.capture.kernels.elements import BINS, CHUNK, WIDTH, WITH_HASH, Element, Row
from neuraldbg.capture.torch import stats

ROOT = Path(__file__).parents[2]
compiled = pytest.mark.skipif(host.fused is None, reason="built without a compiler")
SETS = range(len(host.fused.INSTRUCTION_SETS) if host.fused is not None else 0)
ELEMENTS = st.sampled_from(sorted(Element))
SIZES = st.one_of(st.integers(0, 200), st.sampled_from([0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 63, 3 * CHUNK]))


def some_bytes(element: Element, size: int, seed: int) -> NDArray[np.uint8]:
    """Any bits at all: of floats every magnitude, NaN and Inf among them."""
    raw = np.random.default_rng(seed).integers(0, 256, size * WIDTH[element], dtype=np.uint8)
    return raw & 1 if element is Element.bool else raw


def by_kernel(raw: NDArray[np.uint8], element: Element, number: int, *, shift: int = 0) -> Row:
    """By one instruction set, the bytes lying `shift` after an aligned address."""
    room = np.empty(raw.size + 64, np.uint8)
    start = -room.ctypes.data % 32 + shift
    room[start : start + raw.size] = raw
    flags = WITH_HASH | (number + 1) << 8
    row: Row = host.fused.measure(room.ctypes.data + start, element, raw.size // WIDTH[element], flags)
    return row


def assert_alike(found: Row, twin_row: Row) -> None:
    exact = (0, 6, 7, 8, 9)
    assert [found[i] for i in exact] == [twin_row[i] for i in exact], "count, zeros, NaN, Inf, hash"
    assert found[3:5] == pytest.approx(twin_row[3:5], rel=0, abs=0, nan_ok=True), "smallest and largest"
    top = max((abs(value) for value in twin_row[3:5] if math.isfinite(value)), default=0.0)
    assert found[1:3] == pytest.approx(twin_row[1:3], rel=0, abs=1e-6 * top, nan_ok=True), "mean and std"
    assert found[5] == pytest.approx(twin_row[5], rel=1e-6, nan_ok=True), "norm"


@compiled
@given(ELEMENTS, SIZES, st.integers(0, 10**6), st.integers(0, 9))
@settings(max_examples=300)
def test_any_bits_are_measured_as_the_twin_measures_them(element: Element, size: int, seed: int, shift: int) -> None:
    raw = some_bytes(element, size, seed)
    expected = twin.measure(raw, element, hashed=True)
    for number in SETS:
        assert_alike(by_kernel(raw, element, number, shift=shift), expected)


FLOATS = (Element.float64, Element.float32, Element.float16)
SCALES = st.sampled_from([0.0, 5e-324, 1e-310, 1e-160, 1e-45, 1e-39, 1e-20, 1e-7, 1.0, 1e4, 1e19, 3e38, 1e155, 1e308])


@compiled
@given(st.sampled_from(FLOATS), SIZES, SCALES, SCALES, st.integers(0, 10**6))
@example(Element.float64, 5000, 1e308, 0.0, 1)
@example(Element.float32, 9000, 1.0, 1e4, 2)
@settings(max_examples=300)
def test_no_scale_and_no_mean_costs_digits(element: Element, size: int, scale: float, mean: float, seed: int) -> None:
    dtype = {Element.float64: np.float64, Element.float32: np.float32, Element.float16: np.float16}[element]
    with np.errstate(all="ignore"):
        values = (np.random.default_rng(seed).standard_normal(size) * scale + mean).astype(dtype)
    raw = values.view(np.uint8)
    for number in SETS:
        assert_alike(by_kernel(raw, element, number), twin.measure(raw, element, hashed=True))


@compiled
def test_a_small_spread_on_a_large_mean_keeps_its_digits() -> None:
    values = (1e4 + np.random.default_rng(0).standard_normal(50_000)).astype(np.float32)
    for number in SETS:
        found = by_kernel(values.view(np.uint8), Element.float32, number)
        assert found[2] == pytest.approx(values.astype(np.float64).std(), rel=1e-5)


@compiled
@pytest.mark.parametrize("first", [1e6, math.nan, math.inf])
def test_an_outlier_at_the_start_spoils_nothing(first: float) -> None:
    values = np.random.default_rng(0).standard_normal(3 * CHUNK).astype(np.float32)
    values[0] = first
    for number in SETS:
        raw = values.view(np.uint8)
        assert_alike(by_kernel(raw, Element.float32, number), twin.measure(raw, Element.float32, hashed=True))


@compiled
@given(st.sampled_from(FLOATS), st.integers(1, 2 * CHUNK + 70), st.data())
@settings(max_examples=60)
def test_a_single_bad_value_is_counted_wherever_it_is(element: Element, size: int, data: Any) -> None:
    dtype = {Element.float64: np.float64, Element.float32: np.float32, Element.float16: np.float16}[element]
    values = np.ones(size, dtype)
    values[data.draw(st.integers(0, size - 1))] = data.draw(st.sampled_from([math.nan, math.inf, -math.inf]))
    for number in SETS:
        found = by_kernel(values.view(np.uint8), element, number)
        assert found[7] + found[8] == 1
        assert size == 1 or found[1:5] == (1.0, 0.0, 1.0, 1.0)


@compiled
@given(ELEMENTS, SIZES, st.integers(0, 10**6), st.integers(1, 3))
@settings(max_examples=60)
def test_octaves_are_counted_as_the_twin_counts_them(element: Element, size: int, seed: int, every: int) -> None:
    raw = some_bytes(element, size, seed)
    bins = np.zeros(BINS, np.int64)
    host.fused.measure(raw.ctypes.data, element, size, 0, bins, every)
    with np.errstate(invalid="ignore"):
        assert bins.tolist() == twin.histogram(twin.decoded(raw, element), every).tolist()


@pytest.mark.parametrize("element", sorted(Element), ids=lambda element: element.name)
def test_the_twin_reads_every_type_as_torch_does(element: Element) -> None:
    raw = some_bytes(element, 70_000, 1)
    tensor = torch.from_numpy(raw.copy()).view(getattr(torch, element.name))
    with np.errstate(invalid="ignore"):  # a NaN that signals
        np.testing.assert_array_equal(twin.decoded(raw, element).astype(np.float64), tensor.double().numpy())


@compiled
def test_several_tensors_in_one_call_give_the_rows_of_each() -> None:
    tensors = [torch.randn(7), torch.ones(3, 5, dtype=torch.bfloat16), torch.arange(9000), torch.empty(0)]
    spans = [host.span_of(tensor) for tensor in tensors]
    assert repr(host.fused.measure_many(spans)) == repr([host.fused.measure(*span) for span in spans if span])
    assert repr(host.measured_each(tensors)) == repr([stats.measure(tensor) for tensor in tensors])


@compiled
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("step", [1e-3, 0.0, math.nan])
def test_a_swept_parameter_gives_its_value_its_gradient_and_its_move(dtype: torch.dtype, step: float) -> None:
    before = torch.randn(50, 100, generator=torch.Generator().manual_seed(0)).to(dtype)
    gradient = torch.full_like(before, 2)
    after = before + step * gradient
    span, then, slope = host.span_of(after), host.span_of(before), host.span_of(gradient)
    assert span
    assert then
    assert slope
    ((now, grad, moved),) = host.fused.sweep([(*span, slope[0], slope[1], then[0])])
    assert_alike(now, stats.measure(after))
    assert_alike(grad, stats.measure(gradient))
    assert_alike(moved, stats.measure(stats.plain(after) - stats.plain(before)))
    assert host.moved_each([(after, before)]) == [(now, moved)] or math.isnan(step)


@compiled
@given(st.sampled_from([*FLOATS, Element.bfloat16]), SIZES.filter(bool), *(st.integers(0, 10**6),) * 2, st.booleans())
@settings(max_examples=200)
def test_any_move_is_measured_as_if_by_itself(element: Element, size: int, seed: int, other: int, wild: bool) -> None:
    """Both in one loop, whatever is in them: NaN in the one or the other, no move at all, moves of every size."""
    dtype = getattr(torch, element.name)
    draw, shift = torch.Generator().manual_seed(seed), other % 10
    before = torch.randn(size + shift, generator=draw).to(dtype)[shift:]
    after = before + (1e-3 * torch.randn(size, generator=draw) * (torch.rand(size, generator=draw) < 0.5)).to(dtype)
    if wild:
        after = torch.from_numpy(some_bytes(element, size, other)).view(dtype)
    spans = host.span_of(after), host.span_of(before)
    by = stats.plain(after) - stats.plain(before)
    for number in SETS:
        (row,) = host.fused.sweep([(*spans[0], 0, 0, spans[1][0])], (number + 1) << 8)  # type: ignore[misc, index]
        alone = host.fused.measure(*spans[0], (number + 1) << 8)  # type: ignore[misc]
        assert_alike(row[0], alone)
        assert WIDTH[element] == 2 or repr(row[0]) == repr(alone), "bit for bit, where nothing is decoded first"
        assert_alike(row[2], host.fused.measure(*host.span_of(by), (number + 1) << 8))  # type: ignore[misc]


def test_doubles_too_large_or_small_to_square_move_like_others() -> None:
    before = torch.tensor([1e200, -3e200, 0.0], dtype=torch.float64)
    rows = host.moved_each([(before * 1.5, before), (before * 1e-420, before * 0)])
    if host.fused is not None:
        assert rows[0] is not None
        assert rows[0][1][5] == pytest.approx(0.5e200 * math.sqrt(10))


# -- which tensors it may read -----------------------------------------------------------------------------------------


def test_what_does_not_lie_in_one_piece_of_host_memory_is_left_to_others() -> None:
    class Own(Tensor):
        pass

    one = torch.ones(4, 6)
    readable = [one, one.t(), torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last), one[1:], torch.ones(())]
    odd = [one[:, ::2], one.expand(3, 4, 6), torch.ones(3, device="meta"), one.as_subclass(Own), one.to_sparse(),
           torch.ones(3, dtype=torch.complex64), torch.ones(3, dtype=torch.complex64).conj().imag,
           torch._efficientzerotensor((3,)), one.as_strided((3, 3), (2, 2))]  # fmt: skip
    assert [host.span_of(tensor) is not None for tensor in readable] == [True] * len(readable)
    assert [host.span_of(tensor) for tensor in odd] == [None] * len(odd)
    assert host.span_of(one.t(), ordered=True) is None


@pytest.fixture
def without_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "fused", None)


@pytest.mark.usefixtures("without_kernel")
@pytest.mark.parametrize("element", sorted(Element), ids=lambda element: element.name)
def test_without_the_kernel_torch_gives_the_same_rows_and_hashes(element: Element) -> None:
    raw = some_bytes(element, 300, 5)
    if element is Element.float64:
        raw = np.random.default_rng(0).standard_normal(300).view(np.uint8)
    tensor = torch.from_numpy(raw.copy()).view(getattr(torch, element.name))
    found = stats.measure(tensor)
    assert found is not None
    assert_alike(found, twin.measure(raw, element))
    assert host.measured_each([tensor]) == [None]
    assert host.moved_each([(tensor, tensor)]) == [None]
    digest = stats.digest_of(tensor)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "fused", sys.modules.get("neuraldbg.capture.kernels._fused"))
        assert stats.digest_of(tensor) == digest


@compiled
def test_a_tensor_is_not_kept() -> None:
    tensor = torch.randn(100)
    gone = weakref.ref(tensor)
    stats.measure(tensor)
    stats.digest_of(tensor)
    del tensor
    gc.collect()
    assert gone() is None


@compiled
def test_several_threads_may_measure_at_once() -> None:
    tensors = [torch.randn(600_000, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    expected = [stats.measure(tensor) for tensor in tensors]
    found: list[Any] = [None] * 4

    def work(number: int) -> None:
        found[number] = [stats.measure(tensors[number]) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[row] * 20 for row in expected]


@compiled
def test_flushed_subnormals_are_seen_and_stay_flushed() -> None:
    """torch.set_flush_denormal is a state of the processor that the user chose."""
    tiny = torch.full((100,), 1e-40)
    expected = stats.measure(tiny)
    if not torch.set_flush_denormal(True):
        pytest.skip("not on this processor")
    try:
        assert stats.measure(tiny) == expected
        assert float(torch.tensor(1e-40) * 1) == 0
    finally:
        torch.set_flush_denormal(False)


@compiled
@pytest.mark.parametrize(
    "arguments", [(), (0, 1, 5), (1, 99, 5), (1, 1, -1), ("x", 1, 1), (0, 1, 0, 0, np.zeros(3)), (0, 1, 0, 0, None, 0)]
)
def test_nonsense_is_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, ValueError)):
        host.fused.measure(*arguments)


@compiled
@pytest.mark.parametrize("tensors", [5, [5], [(1, 2)], [(1, 1, 5), (0, 1, 5)], [(0, 1, 0, 0, 99, 0)]])
def test_nonsense_among_several_is_refused(tensors: Any) -> None:
    for call in (host.fused.measure_many, host.fused.sweep):
        with pytest.raises((TypeError, ValueError)):
            call(tensors)


# -- building ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(
    not os.environ.get("CI") or shutil.which("cc") is None, reason="CI has a compiler and builds with it"
)
def test_with_a_compiler_there_is_a_kernel() -> None:
    assert host.fused is not None


def test_an_install_without_a_compiler_goes_on(tmp_path: Path) -> None:
    build = [sys.executable, "setup.py", "build_ext", "--build-lib", str(tmp_path), "--build-temp", str(tmp_path)]
    done = subprocess.run(
        build, cwd=ROOT, env={**os.environ, "CC": "no-such-compiler"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob("*.so"))


@given(st.integers(0, 40), st.integers(1, 300), st.randoms(use_true_random=False))
@compiled
def test_rows_are_hashed_as_each_would_be_alone(rows: int, size: int, chance: Any) -> None:
    data = np.frombuffer(chance.randbytes(rows * size) or b"\0", np.uint8)
    found = np.frombuffer(host.fused.hash_rows(data.ctypes.data, rows, size), np.uint64)
    assert found.tolist() == [host.fused.hash(data.ctypes.data + at * size, size) for at in range(rows)]


@compiled
@pytest.mark.parametrize("given", [(0, 1, 8), (8, -1, 8), (8, 2**62, 8), (8, 1, 0), (8, 1, -3), (8, 1), ("x", 1, 8)])
def test_rows_that_cannot_be_are_refused(given: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        host.fused.hash_rows(*given)


SHAPES = st.lists(st.integers(1, 9), min_size=2, max_size=4).map(tuple) | st.sampled_from(
    [(3, 1100), (70, 513), (2, 3, 40, 37)]
)


@compiled
@given(SHAPES, st.integers(0, 3), st.sampled_from(["float64", "float32", "float16", "bfloat16"]), st.data())
@settings(max_examples=150, deadline=None)
def test_silent_units_are_those_the_twin_finds(shape: tuple[int, ...], at: int, dtype: str, data: Any) -> None:
    axis = at % len(shape)
    draw = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    values = np.zeros(shape)
    some = draw.random(shape) < data.draw(st.sampled_from([0.0, 0.01, 0.2, 1.0]))
    values[some] = draw.choice([1.0, -2.0, np.nan, np.inf, -0.0, 1e-7], int(some.sum()))
    values[draw.random(shape) < 0.3] *= -1.0  # zeros of either sign
    tensor = torch.from_numpy(values).to(getattr(torch, dtype))
    seen = tensor.float().numpy() if dtype != "float64" else values
    units = shape[axis]
    kept = data.draw(st.sampled_from([0.0, 0.05, 0.5, 1.0]))
    for before in (None, bytes(units), (draw.random(units) < kept).tobytes(), b"\1" * (units + 1)):
        for number in SETS:
            assert host.silent(tensor, axis, before, (number + 1) << 8) == twin.silent(seen, axis, before)


@compiled
def test_units_of_what_is_not_plain_are_left_to_the_twin() -> None:
    for odd in (
        torch.ones(4, 6).T,
        torch.ones(4, 6, dtype=torch.int32),
        torch.ones(0, 6),
        torch.ones(4, 6).to_sparse(),
    ):
        assert host.silent(odd, 1) is None
    assert host.silent(torch.ones(4, 6), 2) is None
    assert host.silent(torch.ones(4, 6), -1) is None
