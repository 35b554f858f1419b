"""A healthy run raises few alarms, from its first step on. The bounds are about twice what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

from neuraldbg.analysis.anomalies import AnomalyDetector

Noise = Callable[[np.random.Generator, tuple[int, int]], NDArray[np.float64]]
NOISE: dict[str, Noise] = {
    "normal": lambda random, shape: random.normal(0, 1, shape),
    "normal far from zero": lambda random, shape: random.normal(10, 1, shape),
    "normal that reaches zero": lambda random, shape: random.normal(3, 1, shape),
    "lognormal times": lambda random, shape: random.lognormal(-3, 0.3, shape),
    "lognormal norms": lambda random, shape: random.lognormal(-4, 1.0, shape),
    "uniform": lambda random, shape: random.uniform(0, 1, shape),
}


def alarms(samples: Iterable[Iterable[float]], sensitivity: float = 0.95) -> NDArray[np.bool_]:
    """For every sample, whether it was an anomaly by those before it."""
    detector = AnomalyDetector(sensitivity)
    found = []
    for values in samples:
        metrics = {f"metric {number}": value for number, value in enumerate(values)}
        found.append(detector.judge("a", metrics, every_score=False).is_anomaly)
        detector.add_sample("a", metrics)
    return np.array(found)


@pytest.mark.parametrize("name", NOISE)
@pytest.mark.parametrize("metrics", [1, 5])
def test_noise_raises_an_alarm_in_less_than_one_percent_of_the_samples(name: str, metrics: int) -> None:
    random = np.random.default_rng(7)
    runs = np.stack([alarms(NOISE[name](random, (1200, metrics)).tolist()) for _ in range(2)])
    assert runs.mean() <= 0.01  # measured over 16,000 samples: 0.0 to 0.6 %


@pytest.mark.parametrize("name", NOISE)
@pytest.mark.parametrize("metrics", [1, 5])
def test_warming_up_raises_no_more_alarms_than_later(name: str, metrics: int) -> None:
    random = np.random.default_rng(8)
    runs = np.stack([alarms(NOISE[name](random, (64, metrics)).tolist()) for _ in range(60)])
    assert not runs[:, :5].any()
    assert runs[:, 5:].mean() <= 0.012  # measured over 400 runs: at most 0.7 %


@pytest.mark.parametrize(("sensitivity", "most"), [(0.90, 0.04), (0.98, 0.004)])
def test_the_dial_moves_the_rate(sensitivity: float, most: float) -> None:
    noise = np.random.default_rng(9).normal(size=(2500, 5)).tolist()
    assert alarms(noise, sensitivity).mean() <= most


@pytest.mark.parametrize("tail", ["laplace", "exponential", "student"])
def test_long_tails_raise_a_few_more(tail: str) -> None:
    random = np.random.default_rng(10)
    noise = {
        "laplace": random.laplace(size=(2000, 1)),
        "exponential": random.exponential(size=(2000, 1)),
        "student": random.standard_t(3, size=(2000, 1)),
    }
    assert alarms(noise[tail].tolist()).mean() <= 0.03  # measured: 1.3, 0.6 and 1.7 %


STEPS = np.arange(1500)
DRIFTS = {
    "a counter": STEPS,
    "rising by one percent a step": 1.01**STEPS,
    "rising by a tenth a step": 1.1**STEPS,
    "falling to zero": 0.98**STEPS,
    "a loss that settles": 0.1 + 2.3 * np.exp(-STEPS / 50),
    "a warm-up, then a cosine": np.where(STEPS < 100, STEPS / 100, 0.5 + 0.5 * np.cos(np.pi * (STEPS - 100) / 1400)),
    "a saw": STEPS % 50,
}


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("drift", DRIFTS)
def test_a_drift_is_no_anomaly(drift: str, noise: float) -> None:
    factor = 1 + noise * np.random.default_rng(11).normal(size=1500)
    found = alarms([[value] for value in (DRIFTS[drift] * factor).tolist()])
    assert found.mean() <= 0.02


@pytest.mark.parametrize("constant", [256.5, 0.0, -3.0, 1e-12])
def test_a_tiny_change_of_a_constant_is_no_anomaly(constant: float) -> None:
    random = np.random.default_rng(12)
    values = constant + np.where(random.random(800) < 0.05, 1e-6 * random.normal(size=800), 0) * (constant or 0.01)
    assert not alarms([[value] for value in values.tolist()]).any()


@pytest.mark.parametrize(("constant", "changed"), [(256.5, 512.0), (0.0, 0.5), (1.0, 0.0), (1e-12, 1e-6)])
def test_a_large_change_of_a_constant_is_one(constant: float, changed: float) -> None:
    found = alarms([*[[constant]] * 40, [changed]])
    assert found.tolist() == [False] * 40 + [True]


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_new_level_is_reported_and_then_accepted(noise: float) -> None:
    random = np.random.default_rng(13)
    levels = np.where(np.arange(1500) < 700, 1.0, 5.0) * (1 + noise * random.normal(size=1500))
    found = alarms([[value] for value in levels.tolist()])
    assert found[700:703].all()
    assert found[700:].sum() <= 40
    assert not found[1000:].any() or noise


def test_what_happens_every_so_often_is_soon_known() -> None:
    random = np.random.default_rng(14)
    seconds = random.lognormal(-3, 0.1, 2000) * np.where(np.arange(2000) % 50 == 49, 20, 1)
    found = alarms([[value] for value in seconds.tolist()])
    assert found[49]
    assert found[::-1][:1000].sum() <= 10
