"""How far two tensors are apart, against NumPy and SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from neuraldbg.debug import compare

PAIRS = st.integers(2, 60).flatmap(lambda n: st.tuples(*[hnp.arrays(np.float64, n, elements=st.floats(-1e6, 1e6))] * 2))


@given(PAIRS)
def test_differences_cosine_and_correlation_are_numpys(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    one, other = pair
    found = compare(one, other)
    assert found.mse == pytest.approx(float(((one - other) ** 2).mean()), rel=1e-9)
    assert found.mae == pytest.approx(float(np.abs(one - other).mean()), rel=1e-9)
    assert found.max_diff == float(np.abs(one - other).max())
    if np.abs(one).max() > 1e-3 and np.abs(other).max() > 1e-3:
        cosine = float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))
        assert found.cosine_similarity == pytest.approx(cosine, abs=1e-6)
    if min(np.ptp(one) / max(np.abs(one).max(), 1), np.ptp(other) / max(np.abs(other).max(), 1)) > 1e-6:
        assert found.correlation == pytest.approx(float(scipy.stats.pearsonr(one, other).statistic), abs=1e-4)


def test_places_where_one_is_not_finite_are_left_out() -> None:
    found = compare(np.array([1.0, np.nan, 3.0, np.inf]), np.array([2.0, 2.0, 3.0, 4.0]))
    assert (found.compared_elements, found.mse, found.max_diff) == (2, 0.5, 1.0)


def test_what_cannot_be_compared_is_none_and_says_so() -> None:
    found = compare(np.zeros((2, 3)), np.zeros((3, 2), np.float32))
    assert (found.shape_match, found.dtype_match, found.mse, found.correlation) == (False, False, None, None)
    same = compare(np.ones(3), np.ones(3))
    assert (same.mse, same.cosine_similarity, same.correlation) == (0.0, pytest.approx(1.0), None)
    assert compare(np.zeros(3), np.ones(3)).cosine_similarity is None
    assert compare(np.empty(0), np.empty(0)).mse is None
    assert compare(np.full(3, np.nan), np.ones(3)).mae is None


def test_tensors_of_every_sort_are_compared() -> None:
    half = torch.tensor([1.0, 2.0, 4.0], dtype=torch.bfloat16)
    assert compare(half, half.float()).max_diff == 0.0
    assert compare(half, half.float()).dtype_match is False
    assert compare(torch.eye(3).to_sparse(), np.eye(3, dtype=np.float32)).mse == 0.0
    turned = compare(np.array([1j, 2.0]), np.array([1.0, 2.0]))
    assert turned.mse == pytest.approx(1.0)
    assert turned.cosine_similarity == pytest.approx(0.8)
    gigantic = np.broadcast_to(np.array([1.0, 2.0]), (10**12, 2))
    assert compare(gigantic, gigantic * 1 if gigantic.size < 10 else gigantic).mse == 0.0


def test_huge_values_do_not_overflow_the_angle() -> None:
    found = compare(np.array([1e300, -1e300]), np.array([2e300, -2e300]))
    assert found.cosine_similarity == pytest.approx(1.0)
    assert found.correlation == pytest.approx(1.0)
