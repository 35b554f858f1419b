"""Running statistics are those of the values in the window, whatever came and went."""

from __future__ import annotations

import math
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraldbg.analysis.anomalies.layer import LayerHistory
from neuraldbg.analysis.anomalies.window import Moments, Window

magnitudes = st.one_of(
    st.floats(-1e140, 1e140).map(lambda value: value if abs(value) >= 1e-140 else 0.0),
    st.floats(0.5, 2.0),
    st.sampled_from([0.0, 1.0, 1e9, 1e9 + 1, -1e120]),
)


@given(st.lists(magnitudes, min_size=1, max_size=80), st.integers(1, 20))
def test_statistics_are_those_of_the_last_values(values: list[float], size: int) -> None:
    layer = LayerHistory(size)
    for value in values:
        layer.add({"x": value})
    window, last = layer.columns["x"].window, np.array(values[-size:])
    assert list(window.sorted) == sorted(last.tolist())
    scale = np.abs(last).max()
    assert window.moments.mean == pytest.approx(last.mean(), rel=1e-6, abs=1e-9 * scale)
    assert window.moments.std == pytest.approx(last.std(), rel=1e-4, abs=1e-9 * scale)
    quantiles = [window.quantile(share) for share in (0.1, 0.25, 0.5, 0.9)]
    assert quantiles == pytest.approx(np.quantile(last, (0.1, 0.25, 0.5, 0.9)).tolist(), rel=1e-9, abs=1e-12 * scale)


@given(st.lists(st.floats(1e-140, 1e140), min_size=1, max_size=80), st.integers(1, 20))
def test_so_are_those_of_the_logarithms(values: list[float], size: int) -> None:
    layer = LayerHistory(size)
    for value in values:
        layer.add({"x": value})
    logs = np.log(values[-size:])
    moments = layer.columns["x"].window.log_moments
    assert (moments.count, moments.mean) == (len(logs), pytest.approx(logs.mean(), abs=1e-6))
    assert moments.std == pytest.approx(logs.std(), rel=1e-4, abs=1e-6)


def test_an_enormous_value_leaves_no_trace_when_it_goes() -> None:
    layer = LayerHistory(50)
    random = np.random.default_rng(0)
    for step in range(500):
        layer.add({"x": 1e130 if step % 97 == 0 else float(random.normal(1, 0.1))})
    values = layer.columns["x"].window.sorted
    assert max(values) == 1e130
    for _ in range(45):
        layer.add({"x": float(random.normal(1, 0.1))})
    moments = layer.columns["x"].window.moments
    assert moments.mean == pytest.approx(np.mean(values))
    assert moments.std == pytest.approx(np.std(values))
    assert moments.std < 0.2


@pytest.mark.parametrize("noise", [0.0, 1e-9, 1.0])
def test_the_window_is_counted_afresh_once_in_its_length(noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    recount = Moments.recount

    def watched(self: Moments, values: array[float], *, logs: bool = False) -> None:
        counted.append(len(values))
        recount(self, values, logs=logs)

    monkeypatch.setattr(Moments, "recount", watched)
    layer, random = LayerHistory(100), np.random.default_rng(6)
    for _ in range(5000):
        layer.add({"x": 256.5 + noise * float(random.normal())})
    assert len(counted) <= 2 * 5000 / 100  # of the values and of their logarithms


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.floats(-5, 5)), max_size=40), st.integers(1, 8))
def test_a_metric_that_is_not_in_every_sample_has_those_it_was_in(samples: list[dict[str, float]], size: int) -> None:
    layer = LayerHistory(size)
    for sample in samples:
        layer.add(sample)
    last = samples[-size:]
    expected = {name: sorted(each[name] for each in last if name in each) for name in "abc"}
    found = {name: list(column.window.sorted) for name, column in layer.columns.items()}
    assert found == {name: values for name, values in expected.items() if values}
    assert all(len(column.ring) == min(len(samples), size) for column in layer.columns.values())


@given(st.lists(magnitudes, min_size=1, max_size=40), magnitudes)
def test_a_distance_is_always_a_number(values: list[float], value: float) -> None:
    window = Window()
    for each in values:
        window.add(each)
    for usual in window.usual():
        assert not math.isnan(usual.z(value))
        assert usual.iqr(value) >= 0


def test_what_varies_by_factors_is_seen_by_its_logarithm() -> None:
    random = np.random.default_rng(4)
    by_factors, evenly, both_signs = Window(), Window(), Window()
    for _ in range(400):
        by_factors.add(float(random.lognormal(0, 0.8)))
        evenly.add(float(random.uniform(0.01, 1)))
        both_signs.add(float(random.normal()))
    found = [[usual.logarithmic for usual in window.usual()] for window in (by_factors, evenly, both_signs)]
    assert found == [[True], [False], [False]]
