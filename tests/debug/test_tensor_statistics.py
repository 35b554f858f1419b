"""Statistics of any array are those that NumPy and SciPy compute of its finite values."""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.sparse
import scipy.stats
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from neuraldbg.capture import arrays
from neuraldbg.capture.arrays import NoNumbers
from neuraldbg.capture.kernels import memory
from neuraldbg.debug import compare, describe, tensors
from neuraldbg.debug.tensors import look_at
from neuraldbg.errors import UsageError

REAL = [np.float64, np.float32, np.float16, np.int64, np.int32, np.int16, np.int8, np.uint64, np.uint8, np.bool_]
TINY = 1e-300  # below it numbers have few digits left
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7)
ARRAYS = st.sampled_from(REAL).flatmap(lambda dtype: hnp.arrays(dtype, SHAPES))


def expected(array: NDArray[Any]) -> dict[str, Any]:
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    found: dict[str, Any] = {
        "total_elements": array.size,
        "nan_count": int(np.isnan(wide).sum()),
        "inf_count": int(np.isinf(wide).sum()),
        "zero_count": int((wide == 0).sum()),
        "min": None,
        "max": None,
    }
    if finite.size:
        found |= {"min": float(finite.min()), "max": float(finite.max()), "median": float(np.median(finite))}
    return found


def assert_right(array: NDArray[Any]) -> None:
    stats, distribution = describe(array)
    told = expected(array)
    with np.errstate(all="ignore"):
        wide = array.astype(np.float64)
        finite = wide[np.isfinite(wide)]
        assert (stats.shape, stats.dtype) == (array.shape, array.dtype.name)
        for name in ("total_elements", "nan_count", "inf_count", "zero_count", "min", "max"):
            assert stats[name] == told[name], name
        if not finite.size:
            assert (stats.mean, stats.std, stats.median, stats.l2_norm, distribution.histogram) == (None,) * 4 + ((),)
            return
        top = np.abs(finite).max()
        scaled = finite / top if top > 0 else finite
        assert stats.mean == pytest.approx(float(scaled.mean() * top), abs=2e-6 * top)
        assert stats.std == pytest.approx(float(scaled.std() * top), abs=2e-6 * top)
        if top < 1e307:  # else rounding decides what is infinite
            assert stats.l2_norm == pytest.approx(float(np.linalg.norm(scaled)) * top, rel=1e-5)
            assert stats.l1_norm == pytest.approx(float(np.abs(scaled).sum()) * top, rel=1e-5)
        assert stats.infinity_norm == top
        assert stats.sparsity == told["zero_count"] / array.size
        for name, value in distribution.percentiles.items():
            assert value == pytest.approx(
                float(np.percentile(finite, float(name[1:]))), rel=1e-9, abs=1e-9 * top + TINY
            )
    assert_histogram(finite, distribution.histogram)


def assert_histogram(finite: NDArray[Any], histogram: tuple[tuple[float, int], ...]) -> None:
    """Every bin has the values between its edges; one on an edge, up to rounding, may be on either side of it."""
    assert sum(count for _, count in histogram) == finite.size
    spread = float(finite.max() / 2 - finite.min() / 2) * 2 if finite.max() > finite.min() else 0.0
    slack = 1e-6 * (spread if math.isfinite(spread) else float(np.abs(finite).max())) + TINY
    below = 0
    for edge, count in histogram:
        assert (finite < edge - slack).sum() <= below <= (finite < edge + slack).sum() + (finite == edge).sum()
        below += count


@given(ARRAYS)
@example(np.array([5e-324, 1e308, -1e308, np.nan, np.inf]))
@example(np.array([1e-45, 3e38, -3e38], np.float32))
@example(np.full(5, 7.0))
@example(np.zeros((3, 0)))
@example(np.array([np.nan, np.inf, -np.inf]))
@settings(max_examples=300)
def test_any_array_is_described_as_numpy_describes_it(array: NDArray[Any]) -> None:
    assert_right(array)


@given(ARRAYS)
@settings(max_examples=100)
def test_it_is_the_same_without_a_compiler(array: NDArray[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "fused", None)
        assert_right(array)


@given(st.integers(0, 2**32 - 1), st.sampled_from([50, 4_096, 9_001, 70_000]), st.sampled_from(["f4", "f8"]))
@example(245638184, 9_001, "f4")  # all equal once they are rounded
@settings(max_examples=40)
def test_skewness_kurtosis_and_outliers_are_scipys(seed: int, count: int, dtype: str) -> None:
    draw = np.random.default_rng(seed)
    values = (draw.gamma(2.0, size=count) * 10 ** draw.uniform(-8, 8) + draw.uniform(-5, 5)).astype(dtype)
    _, distribution = describe(values)
    wide = values.astype(np.float64)
    if wide.min() == wide.max():
        assert (distribution.skewness, distribution.kurtosis, distribution.outlier_count) == (None, None, 0)
        return
    assert distribution.skewness == pytest.approx(float(scipy.stats.skew(wide)), abs=2e-3)
    assert distribution.kurtosis == pytest.approx(float(scipy.stats.kurtosis(wide)), rel=2e-3, abs=2e-3)
    low, high = np.percentile(wide, (25, 75))
    far = (wide < low - 1.5 * (high - low)) | (wide > high + 1.5 * (high - low))
    assert distribution.outlier_count == int(far.sum())
    assert set(distribution.outliers) <= set(wide[far].tolist())
    assert len(distribution.outliers) == min(int(far.sum()), 100)


@given(hnp.arrays(np.float32, st.integers(1, 300), elements=st.floats(-100, 100, width=32)), st.data())
def test_views_are_described_by_their_values_not_by_their_memory(array: NDArray[Any], data: st.DataObject) -> None:
    step = data.draw(st.sampled_from([-3, -2, -1, 2, 3]))
    assert_right(array[::step])
    square = array[: int(len(array) ** 0.5) ** 2].reshape(int(len(array) ** 0.5), -1)
    assert_right(square.T)
    assert_right(square[:, ::2])


@given(hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(-50, 50)), st.integers(1, 6))
def test_what_only_repeats_in_memory_is_read_once_and_counted_in_full(array: NDArray[Any], times: int) -> None:
    view = np.broadcast_to(array, (times, len(array)))
    assert_right(view)
    skewed = describe(np.ascontiguousarray(view))[1].skewness
    assert describe(view)[1].skewness == (None if skewed is None else pytest.approx(skewed, abs=1e-5))


def test_a_gigantic_shape_costs_nothing() -> None:
    view = np.broadcast_to(np.array([1.0, 2.0, 4.0]), (10**9, 10**6, 3))
    stats, distribution = describe(view)
    assert stats.total_elements == 3 * 10**15
    assert (stats.mean, stats.median, stats.max) == (pytest.approx(7 / 3), 2.0, 4.0)
    assert stats.l1_norm == pytest.approx(7e15)
    assert stats.memory_usage_bytes == 24
    assert sum(count for _, count in distribution.histogram) == 3 * 10**15


def test_what_would_take_gigabytes_to_copy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "MOST_COPIED_BYTES", 1000)
    with pytest.raises(NoNumbers, match=r"inspect a part"):
        describe(np.lib.stride_tricks.sliding_window_view(np.arange(300.0), 100))


def test_values_beyond_a_gigabyte_are_put_in_order_in_part_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "SORTED_BYTES", 8_000)
    values = np.random.default_rng(0).permutation(10_000).astype(np.float64)
    stats, distribution = describe(values)
    assert (distribution.exact, stats.max, stats.total_elements) == (False, 9999.0, 10_000)
    assert stats.median == pytest.approx(5000, rel=0.1)


@given(hnp.arrays(np.complex64, st.integers(1, 50), elements=st.complex_numbers(max_magnitude=1e4, width=64)))
def test_complex_numbers_are_described_by_their_magnitudes(array: NDArray[Any]) -> None:
    stats, _ = describe(array)
    assert stats.dtype == "complex64"
    assert stats.l2_norm == pytest.approx(float(np.linalg.norm(array.astype(np.complex128))), rel=1e-5, abs=1e-30)
    assert stats.infinity_norm == pytest.approx(float(np.abs(array).max()))
    assert stats.zero_count == int((array == 0).sum())


def test_a_complex_nan_is_a_nan_also_beside_an_infinity() -> None:
    stats, _ = describe(np.array([complex(math.nan, math.inf), complex(math.inf, 1), 3 + 4j]))
    assert (stats.nan_count, stats.inf_count, stats.mean) == (1, 1, 5.0)


SPARSE = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=8),
    elements=st.sampled_from([0.0, 0.0, 0.0, 1.5, -2.0]),
)


@given(SPARSE)
def test_a_sparse_array_has_the_statistics_of_the_dense_one(dense: NDArray[Any]) -> None:
    right, shape = describe(dense)
    for stored in (scipy.sparse.csr_array(dense), torch.from_numpy(dense).to_sparse(), _csr(dense)):
        stats, distribution = describe(stored)
        assert stats.shape == dense.shape
        for name in ("total_elements", "zero_count", "min", "max", "median", "sparsity"):
            assert stats[name] == right[name], name
        for name in ("mean", "std", "l1_norm", "l2_norm"):
            assert stats[name] == pytest.approx(right[name], abs=1e-12), name
        assert distribution.percentiles == pytest.approx(shape.percentiles)
        assert distribution.outlier_count == shape.outlier_count
        assert distribution.skewness == (None if shape.skewness is None else pytest.approx(shape.skewness, abs=1e-6))
        assert sum(count for _, count in distribution.histogram) == dense.size


def _csr(dense: NDArray[Any]) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch: sparse CSR is in beta state
        return torch.from_numpy(dense).to_sparse_csr()


def test_a_sparse_array_is_never_made_dense() -> None:
    million = 10**6
    stored = scipy.sparse.coo_array(([3.0], ([5], [7])), shape=(million, million))
    stats, distribution = describe(stored)
    assert (stats.total_elements, stats.zero_count, stats.max, stats.median) == (10**12, 10**12 - 1, 3.0, 0.0)
    assert distribution.outlier_count == 1
    assert stats.mean == pytest.approx(3e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int16])
def test_torch_types_that_numpy_has_not_are_read_by_their_bits(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[1.0, -2.0, 0.0], [4.0, 0.5, -1.0]]).to(dtype)
    stats, distribution = describe(tensor)
    wide = tensor.to(torch.float32).numpy()
    assert (stats.shape, stats.dtype) == ((2, 3), str(dtype).removeprefix("torch."))
    assert (stats.mean, stats.max, stats.zero_count) == (pytest.approx(wide.mean()), wide.max(), int((wide == 0).sum()))
    assert distribution.percentiles["p50"] == pytest.approx(float(np.median(wide)))
    assert describe(tensor.t())[0].l2_norm == stats.l2_norm


def test_tensors_with_a_graph_views_and_parameters_are_read_as_they_are() -> None:
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    assert describe(weight)[0].mean == 2.5
    assert describe(weight * 2)[0].mean == 5.0
    assert describe(weight.expand(4, 2, 3))[0].total_elements == 24
    assert describe(torch.tensor(3.0))[0].shape == ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch: quantised tensors are deprecated
        quantised = torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.5, 0, torch.qint8)
    assert describe(quantised)[0].mean == 1.5
    assert describe(quantised)[0].memory_usage_bytes == 2
    assert describe(torch.conj(torch.tensor([3 + 4j])).imag)[0].min == -4.0


class Foreign:
    """An array of another library, as JAX and TensorFlow hand theirs over."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return self._array


class OnlyDlpack:
    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class Slices(NamedTuple):
    """As TensorFlow hands over the gradient of an embedding, and its sparse tensors."""

    values: Any
    indices: Any
    dense_shape: Any


def test_the_gradient_of_an_embedding_is_read_without_its_zeros() -> None:
    rows = Slices(np.array([[1.0, 2.0], [3.0, 0.0], [1.0, 1.0]]), np.array([7, 2, 7]), np.array([10**6, 2]))
    stats, _ = describe(rows)
    assert (stats.shape, stats.total_elements, stats.zero_count) == ((10**6, 2), 2 * 10**6, 2 * 10**6 - 3)
    assert (stats.max, stats.l1_norm, stats.median) == (3.0, 8.0, 0.0)
    unknown, _ = describe(rows._replace(dense_shape=None))
    assert (unknown.shape, unknown.zero_count) == ((2, 2), 1)
    cells, _ = describe(Slices(np.array([5.0, -1.0]), np.array([[0, 3], [2, 1]]), np.array([4, 4])))
    assert (cells.total_elements, cells.zero_count, cells.min) == (16, 14, -1.0)
    with pytest.raises(NoNumbers, match="Slices is compared as a dense array"):
        compare(rows, rows)


def test_arrays_of_other_libraries_lists_and_numbers_are_read() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    half = np.array([1.0, 2.0, np.nan]).astype(ml_dtypes.bfloat16)
    assert describe(Foreign(half))[0].nan_count == 1
    assert describe(Foreign(half))[0].dtype == "bfloat16"
    assert describe(OnlyDlpack(np.arange(4.0)))[0].mean == 1.5
    assert describe([[1, 2], [3, 4]])[0].median == 2.5
    assert describe(7)[0].max == 7.0
    assert describe(np.ma.masked_array([1.0, 99.0, 3.0], mask=[0, 1, 0]))[0].max == 3.0
    assert describe(np.arange(3, dtype=">f4"))[0].max == 2.0
    assert describe(np.arange(3, dtype=np.longdouble))[0].max == 2.0
    assert describe(np.arange(4.0).reshape(2, 2).view(np.matrix))[0].median == 1.5


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (np.array(["a"]), "text"),
        (np.array([object()]), "objects"),
        (np.array(["2020-01-01"], "datetime64[D]"), "dates"),
        (np.zeros(2, [("a", "f4")]), "no statistics"),
        ([[1], [1, 2]], "NumPy array"),
        (np.array([np.longdouble("1e4000")]), "too large"),
        (torch.empty(3, device="meta"), "holds no values"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "nested|holds no values"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_holds_no_numbers_is_refused_with_what_to_do(value: Any, says: str) -> None:
    with pytest.raises(NoNumbers, match=says):
        describe(value)


@pytest.mark.parametrize("bins", [0, -3])
def test_a_histogram_without_bins_is_refused(bins: int) -> None:
    with pytest.raises(UsageError, match=f"at least one bin, not {bins}"):
        describe([1.0, 2.0], bins=bins)


def test_without_the_distribution_nothing_is_put_in_order() -> None:
    look = look_at(np.array([3.0, 1.0, 2.0]), distribution=False)
    assert (look.stats.mean, look.stats.median, look.distribution.percentiles) == (2.0, None, {})
    assert sum(count for _, count in look.distribution.histogram) == 3


@given(
    hnp.arrays(np.float32, st.integers(0, 30), elements=st.floats(width=32, allow_nan=False)),
    st.one_of(st.floats(allow_nan=False), st.floats(width=32, allow_nan=False)),
)
def test_values_are_counted_on_the_right_side_of_a_bound_of_more_digits(values: NDArray[Any], bound: float) -> None:
    ordered = np.sort(values)
    wide = ordered.astype(np.float64)
    assert tensors.count_below(ordered, bound) == int((wide < bound).sum())
    assert tensors.count_below(ordered, bound, or_equal=True) == int((wide <= bound).sum())
