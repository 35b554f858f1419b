"""The isolation forest ranks points as scikit-learn's does, and sees what lies outside all it knows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.ensemble import IsolationForest as Reference

from neuraldbg.analysis.anomalies.forest import grow, usual_path

Points = NDArray[np.float64]


def data_sets() -> dict[str, Points]:
    random = np.random.default_rng(1)
    clusters = [random.normal(size=(500, 2)), random.normal(6, 0.5, (400, 2)), random.uniform(-10, 10, (30, 2))]
    return {
        "normal": random.normal(size=(1000, 5)),
        "lognormal": random.lognormal(size=(1000, 3)),
        "clusters": np.concatenate(clusters),
        "one metric": random.normal(size=(600, 1)),
        "ties": np.column_stack([random.integers(0, 4, (700, 2)), random.normal(size=700)]),
        "correlated": random.normal(size=(800, 6)) @ random.normal(size=(6, 6)),
        "few": random.normal(size=(64, 5)),
        "a constant column": np.column_stack([random.normal(size=(300, 2)), np.ones(300)]),
    }


@pytest.mark.parametrize("name", data_sets())
def test_points_rank_as_in_scikit_learn(name: str) -> None:
    points = data_sets()[name]
    theirs = -Reference(n_estimators=500, random_state=0).fit(points).score_samples(points)
    ours = grow(points, trees=500).score(points)
    assert spearmanr(ours, theirs).statistic >= 0.95  # 0.98 to 0.99, as two seeds of theirs among themselves
    assert np.abs(ours - theirs).max() < 0.05


@pytest.mark.parametrize("name", ["normal", "lognormal", "correlated"])
def test_the_forest_of_a_detector_is_large_enough(name: str) -> None:
    points = data_sets()[name]
    theirs = -Reference(n_estimators=500, random_state=0).fit(points).score_samples(points)
    assert spearmanr(grow(points).score(points), theirs).statistic >= 0.95


def test_the_same_points_give_the_same_forest_and_no_other_random_number_is_used() -> None:
    points = data_sets()["normal"]
    before = np.random.get_state()[1].tolist()  # type: ignore[union-attr, index]
    one, other = grow(points), grow(points.copy())
    assert np.array_equal(one.score(points), other.score(points))
    assert np.array_equal(one.cut, other.cut)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[union-attr, index]


@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_point_far_out_in_one_metric_stands_out(width: int) -> None:
    random = np.random.default_rng(2)
    points = random.normal(size=(1000, width))
    forest = grow(points)
    faults = random.normal(size=(200, width))
    faults[np.arange(200), np.arange(200) % width] = 10.0
    unusual = np.quantile(forest.score(points), 0.95)
    assert (forest.score(faults) > unusual).mean() >= 0.99
    assert (forest.score(random.normal(size=(2000, width))) > unusual).mean() <= 0.08


def test_further_out_scores_higher() -> None:
    points = np.random.default_rng(3).normal(size=(500, 3))
    scores = grow(points).score(np.array([[distance, 0.0, 0.0] for distance in (0, 3, 5, 10, 100, 1e6, 1e140)]))
    assert (np.diff(scores) > 0).all()
    assert scores[-1] < 1


@given(st.integers(1, 70), st.integers(1, 4), st.integers(0, 5))
def test_every_shape_of_data_has_scores(count: int, width: int, kinds: int) -> None:
    random = np.random.default_rng(count)
    points = random.integers(0, kinds + 1, (count, width)).astype(np.float64)
    forest = grow(points)
    scores = forest.score(points)
    assert scores.shape == (count,)
    assert ((scores > 0) & (scores <= 1)).all()
    assert np.array_equal(scores[:1], forest.score(points[:1]))


def test_the_usual_path_is_that_of_the_paper() -> None:
    assert usual_path(np.array([0, 1, 2, 256])) == pytest.approx([0, 0, 1, 10.2448], abs=1e-4)
