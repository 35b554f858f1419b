"""Statistics of a tensor are those of its finite values, whatever its type, layout and scale."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from neuraldbg.capture.torch.stats import Measured, from_device_row, measure, measure_on_device

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
ORDINARY = st.one_of(
    st.just(0.0),
    st.floats(1e-3, 1e4).map(float),
    st.floats(-1e4, -1e-3).map(float),
)
SPECIAL = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0])


def truth_of(tensor: Tensor) -> Measured:
    """The same statistics by numpy in float64, scaled so that no square over- or underflows."""
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    values = real.detach().double().numpy().reshape(-1)
    counts = (int((values == 0).sum()), int(np.isnan(values).sum()), int(np.isinf(values).sum()))
    finite = values[np.isfinite(values)]
    if not finite.size:
        return (values.size, *([math.nan] * 5), *counts, 0)
    scale = float(np.abs(finite).max()) or 1.0
    part = finite / scale
    mean = math.fsum(part) / part.size
    std = math.sqrt(math.fsum((part - mean) ** 2) / part.size)
    l2 = math.sqrt(math.fsum(part**2))
    return (values.size, mean * scale, std * scale, finite.min(), finite.max(), l2 * scale, *counts, 0)


def assert_same(found: Measured | None, truth: Measured) -> None:
    assert found is not None
    assert (found[0], *found[6:9]) == (truth[0], *truth[6:9]), "count, zeros, NaN, Inf"
    scale = max((abs(value) for value in truth[3:5] if math.isfinite(value)), default=0.0)
    for name, one, other in zip(("mean", "std", "min", "max", "l2"), found[1:6], truth[1:6], strict=True):
        slack = 2e-6 * (other if name == "l2" else scale)
        slack = 0.0 if name in ("min", "max") else slack
        assert one == pytest.approx(other, rel=0, abs=slack, nan_ok=True), (name, found, truth)


def on_device(tensor: Tensor) -> Measured | None:
    row = torch.full((9,), -1.0, dtype=torch.float64)
    return from_device_row(row.tolist()) if measure_on_device(tensor, row) else None


LAYOUTS = {
    "as it is": lambda t: t,
    "transposed": lambda t: t.reshape(-1, 1).expand(-1, 3).t(),
    "every second": lambda t: t.repeat_interleave(2)[::2],
    "expanded": lambda t: t[:1].expand(5, 1),
    "backwards": lambda t: t.flip(0),
    "a single number": lambda t: t[0],
    "needs a gradient": lambda t: t.clone().requires_grad_() if t.is_floating_point() else t,
}


@given(
    st.lists(st.one_of(ORDINARY, SPECIAL), min_size=1, max_size=40),
    st.sampled_from(FLOATS),
    st.sampled_from(sorted(LAYOUTS)),
)
@example([math.nan], torch.float32, "as it is")
@example([math.inf, -math.inf], torch.float16, "as it is")
@settings(max_examples=150)
def test_floats_are_measured_as_numpy_would(values: list[float], dtype: torch.dtype, layout: str) -> None:
    tensor = LAYOUTS[layout](torch.tensor(values, dtype=dtype))
    assert_same(measure(tensor), truth_of(tensor))
    assert_same(on_device(tensor), truth_of(tensor))


@given(st.lists(st.integers(0, 127), min_size=1, max_size=40), st.sampled_from(INTEGERS))
@settings(max_examples=40)
def test_integers_are_measured_exactly(values: list[int], dtype: torch.dtype) -> None:
    tensor = torch.tensor(values, dtype=dtype)
    assert_same(measure(tensor), truth_of(tensor))
    assert_same(on_device(tensor), truth_of(tensor))


@pytest.mark.parametrize(
    "dtype", [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2], ids=str
)
def test_rare_types_are_measured_too(dtype: torch.dtype) -> None:
    tensor = torch.tensor([0.0, 1.0, 2.0, 4.0]).to(dtype)
    assert_same(measure(tensor), truth_of(torch.tensor([0.0, 1.0, 2.0, 4.0])))


def test_booleans_count_as_zero_and_one() -> None:
    found = measure(torch.tensor([True, False, False, True]))
    assert found is not None
    assert found[:7] == (4, 0.5, 0.5, 0.0, 1.0, pytest.approx(math.sqrt(2)), 2)


@pytest.mark.parametrize("view", ["plain", "conjugated", "imaginary part of a conjugate"])
def test_complex_numbers_count_as_their_real_and_imaginary_parts(view: str) -> None:
    tensor = torch.tensor([1 + 2j, 0j, -3 + 0.5j], dtype=torch.complex64)
    if view != "plain":
        tensor = tensor.conj()  # a lazy view: torch only notes that it is conjugated
    if view == "imaginary part of a conjugate":
        tensor = tensor.imag
    assert_same(measure(tensor), truth_of(tensor))
    assert_same(on_device(tensor), truth_of(tensor))


def test_an_empty_tensor_has_counts_of_zero_and_nothing_else() -> None:
    found = measure(torch.empty(0, 3))
    assert found is not None
    assert (found[0], *found[6:9]) == (0, 0, 0, 0)
    assert all(math.isnan(value) for value in found[1:6])
    assert on_device(torch.empty(0, 3)) is None


# -- scale -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e-20, 1e-25, 1e-30, 1e-38])
def test_a_vanishing_gradient_is_small_and_not_zero(size: float) -> None:
    """Squares of such floats are zero in float32: the norm must not be."""
    tensor = torch.linspace(size / 2, size, 1000)
    assert_same(on_device(tensor), truth_of(tensor))
    assert_same(measure(tensor), truth_of(tensor))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_largest_values_do_not_overflow(dtype: torch.dtype) -> None:
    """Up to 1e150 in float64, where the squares still fit."""
    top = min(torch.finfo(dtype).max, 1e150)
    tensor = torch.tensor([top, -top, top / 2, 0.0], dtype=dtype)
    assert_same(measure(tensor), truth_of(tensor))
    assert_same(on_device(tensor), truth_of(tensor))


@pytest.mark.parametrize("value", [1e4, 1e8, -3e30])
def test_a_constant_has_no_spread_however_large_it_is(value: float) -> None:
    found = measure(torch.full((10_000,), value))
    assert found is not None
    assert found[2] <= 1e-6 * abs(value)


def test_a_small_spread_on_a_large_mean_is_found() -> None:
    tensor = 1e4 + torch.randn(50_000, generator=torch.Generator().manual_seed(0))
    truth = truth_of(tensor)
    for found in (measure(tensor), on_device(tensor)):
        assert found is not None
        assert found[2] == pytest.approx(truth[2], rel=1e-3)


@pytest.mark.parametrize("size", [1_000, 100_000, 3_000_000])
def test_large_tensors_lose_no_more_than_four_digits(size: int) -> None:
    tensor = torch.rand(size, generator=torch.Generator().manual_seed(1)) + 1
    found, truth = measure(tensor), truth_of(tensor)
    assert found is not None
    assert found[1:6] == pytest.approx(truth[1:6], rel=1e-4)


# -- layouts that are not dense ----------------------------------------------------------------------------------------


def _coo(values: list[float]) -> Tensor:
    places = torch.arange(len(values)).repeat(2, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's own, about invariant checks
        return torch.sparse_coo_tensor(places, torch.tensor(values), (9, 9))


def test_of_sparse_tensors_the_stored_values_are_measured() -> None:
    stored = torch.tensor([1.0, math.nan, 3.0])
    for sparse in (_coo(stored.tolist()), _coo(stored.tolist()).coalesce()):
        assert_same(measure(sparse), truth_of(stored))
        assert_same(on_device(sparse), truth_of(stored))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # CSR is in beta, says torch
        csr = torch.diag(stored).to_sparse_csr()
    assert_same(measure(csr), truth_of(stored))


def test_a_sparse_tensor_that_stores_nothing_is_empty() -> None:
    found = measure(_coo([]))
    assert found is not None
    assert found[0] == 0
    assert on_device(_coo([])) is None


def test_a_nested_tensor_is_left_alone_or_measured_and_never_raises() -> None:
    """nn.TransformerEncoder makes them by itself: eval mode and a padding mask are enough."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    found = measure(nested)
    assert found is None or found[0] == 5


@pytest.mark.parametrize("kind", ["meta", "quantised", "csc"])
def test_what_has_no_values_to_speak_of_gives_none(kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        odd = {
            "meta": lambda: torch.ones(3, device="meta"),
            "quantised": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
            "csc": lambda: torch.eye(3).to_sparse_csc(),
        }[kind]()
    assert measure(odd) is None
    assert on_device(odd) is None


def test_a_fake_tensor_has_no_values_either() -> None:
    """Tools that plan memory run the model on such tensors, in the middle of an ordinary program."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(3)
    assert measure(fake) is None


def test_inside_vmap_nothing_is_measured_and_nothing_breaks() -> None:
    seen: list[Measured | None] = []

    def double(x: Tensor) -> Tensor:
        seen.append(measure(x))
        return x * 2

    torch.vmap(double)(torch.ones(3, 2))
    assert seen == [None]


@pytest.mark.parametrize("how", ["inference", "parameter", "grad mode off"])
def test_measuring_changes_nothing(how: str) -> None:
    if how == "inference":
        with torch.inference_mode():
            tensor = torch.ones(3)
    else:
        tensor = torch.nn.Parameter(torch.ones(3))
    with torch.set_grad_enabled(how != "grad mode off"):
        assert_same(measure(tensor), truth_of(tensor))
        assert tensor.grad_fn is None
        assert torch.is_grad_enabled() == (how != "grad mode off")
    if how != "inference":
        assert tensor._version == 0


def test_one_value_does_not_deviate_from_itself() -> None:
    """What a device's float32 sums leave of it is no measurement."""
    row = [1, 13.5148115, 0.00096, 13.514811, 13.514811, 13.514812, 0, 0, 0]
    assert from_device_row(row)[1:3] == (13.514811, 0.0)


def test_numbers_of_eight_bits_are_measured_by_torch_too() -> None:
    values = torch.tensor([1.0, 2.0, 3.0, math.nan]).to(torch.float8_e4m3fn)
    row = torch.zeros(9, dtype=torch.float64)
    assert measure_on_device(values, row)
    assert from_device_row(row.tolist())[:2] == (4, 2.0)
