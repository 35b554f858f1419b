"""A sample unlike those before it is found, whichever metric it is in, and nothing else is said."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraldbg.analysis.anomalies import AnomalyDetector
from neuraldbg.analysis.anomalies.detector import CEILING
from neuraldbg.analysis.anomalies.thresholds import Thresholds
from neuraldbg.errors import UsageError

SPREAD = {  # metric -> mean and standard deviation of a healthy layer
    "execution_time": (0.045, 0.002),
    "memory": (256.5, 4.0),
    "mean_activation": (0.35, 0.03),
    "grad_norm": (0.02, 0.002),
    "dead_ratio": (0.1, 0.005),
}
METHODS = {"z_score", "iqr_based", "isolation_forest"}


def healthy(random: np.random.Generator) -> dict[str, float]:
    return {name: float(random.normal(mean, std)) for name, (mean, std) in SPREAD.items()}


def trained(samples: int = 300, detector: AnomalyDetector | None = None) -> AnomalyDetector:
    detector = detector or AnomalyDetector()
    random = np.random.default_rng(5)
    for _ in range(samples):
        detector.add_sample("Conv2D_1", healthy(random))
    return detector


def usual(**changes: Any) -> dict[str, Any]:
    return {**{name: mean for name, (mean, _) in SPREAD.items()}, **changes}


FAULTS = [
    *((name, mean + 10 * std) for name, (mean, std) in SPREAD.items()),
    *((name, mean - 10 * std) for name, (mean, std) in SPREAD.items()),
    *((name, bad) for name in SPREAD for bad in (math.nan, math.inf, -math.inf)),
    ("grad_norm", 0.0),
    ("grad_norm", 0.02 * 1e6),
    ("mean_activation", 1e9),
    ("memory", 1e300),
]


@pytest.mark.parametrize(("metric", "value"), FAULTS)
def test_a_fault_in_any_metric_is_found_by_each_of_the_three_methods(metric: str, value: float) -> None:
    detector = trained()
    judged = detector.judge("Conv2D_1", usual(**{metric: value}))
    assert judged.is_anomaly
    assert judged.metrics == (metric,)
    assert set(judged.methods) == METHODS
    assert abs(judged.scores[metric]) > 3


def test_the_usual_is_no_anomaly_and_has_its_scores() -> None:
    found = trained().detect_anomalies("Conv2D_1", usual())
    assert found["is_anomaly"] is False
    assert set(found["scores"]) == {*SPREAD, "iqr_based", "isolation_forest"}
    assert all(abs(found["scores"][name]) < 1 for name in SPREAD)
    assert found["scores"]["iqr_based"] == 0
    assert 0 < found["scores"]["isolation_forest"] < 0.5


def test_a_z_score_is_the_distance_from_the_mean_in_standard_deviations() -> None:
    detector = AnomalyDetector()
    values = [-3.0, -1.0, 0.5, 2.0, 4.0, 3.5, -2.0]
    for value in values:
        detector.add_sample("a", {"balance": value})
    score = detector.detect_anomalies("a", {"balance": 5.0})["scores"]["balance"]
    assert score == pytest.approx((5.0 - np.mean(values)) / np.std(values))


def test_looking_remembers_nothing() -> None:
    detector = trained(20)
    before = detector.get_layer_statistics("Conv2D_1")
    for _ in range(50):
        detector.detect_anomalies("Conv2D_1", usual(grad_norm=50.0))
    assert detector.get_layer_statistics("Conv2D_1") == before


def test_an_unknown_layer_has_no_scores_and_no_statistics() -> None:
    assert AnomalyDetector().detect_anomalies("Dense_1", usual()) == {"is_anomaly": False, "scores": {}}
    assert AnomalyDetector().get_layer_statistics("Dense_1") == {}


@pytest.mark.parametrize("samples", [0, 1, 4, 7, 20])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_an_anomaly_from_the_first_sample_on(samples: int, bad: float) -> None:
    found = trained(samples).detect_anomalies("Conv2D_1", {"grad_norm": bad})
    assert found["is_anomaly"] is True
    assert abs(found["scores"]["grad_norm"]) == found["scores"]["iqr_based"] == CEILING
    assert found["scores"]["isolation_forest"] == 1.0
    json.dumps(found, allow_nan=False)


def test_a_value_that_is_not_finite_never_enters_the_history() -> None:
    detector = trained(100)
    before = detector.get_layer_statistics("Conv2D_1")["gradients"]
    for _ in range(100):
        detector.add_sample("Conv2D_1", {"grad_norm": math.nan})
        detector.add_sample("Conv2D_1", {"grad_norm": -math.inf})
    assert detector.get_layer_statistics("Conv2D_1")["gradients"] == before


def test_methods_speak_when_they_have_seen_enough() -> None:
    detector = AnomalyDetector()
    random = np.random.default_rng(0)
    seen: dict[str, int] = {}
    for count in range(80):
        for name in detector.detect_anomalies("a", healthy(random))["scores"]:
            seen.setdefault(name, count)
        detector.add_sample("a", healthy(random))
    assert seen == {**dict.fromkeys(SPREAD, 5), "iqr_based": 10, "isolation_forest": 64}


def test_statistics_have_the_names_and_numbers_of_the_dashboard() -> None:
    detector = AnomalyDetector()
    for value in (1.0, 2.0, 6.0, 7.0):
        detector.add_sample("a", {"execution_time": value, "memory": 3 * value, "mean_activation": 0, "grad_norm": 1})
        detector.add_sample("a", {"my_metric": -value})
    found = detector.get_layer_statistics("a")
    assert set(found) == {"execution_times", "memory_usage", "activations", "gradients", "my_metric"}
    expected = {"mean": 4.0, "std": pytest.approx(math.sqrt(6.5)), "min": 1.0, "max": 7.0, "median": 4.0}
    assert found["execution_times"] == expected
    assert (found["memory_usage"]["max"], found["my_metric"]["median"]) == (21.0, -4.0)


def test_only_the_last_samples_are_remembered() -> None:
    detector = AnomalyDetector(history=10)
    for value in range(25):
        detector.add_sample("a", {"memory": float(value), **({"once": 1.0} if value == 3 else {})})
    assert detector.get_layer_statistics("a") == {
        "memory_usage": {"mean": 19.5, "std": pytest.approx(math.sqrt(8.25)), "min": 15, "max": 24, "median": 19.5}
    }


def test_layers_are_judged_by_their_own_past() -> None:
    detector = trained(100)
    for sample in range(100):
        detector.add_sample("slow", {"execution_time": 4.0 + 0.01 * (sample % 7)})
    assert not detector.detect_anomalies("slow", {"execution_time": 4.02})["is_anomaly"]
    assert detector.detect_anomalies("Conv2D_1", {"execution_time": 4.02})["is_anomaly"]


def test_a_fault_is_found_again_after_it_was_remembered() -> None:
    detector = trained(300)
    for _ in range(4):
        assert detector.detect_anomalies("Conv2D_1", usual(grad_norm=2e4))["is_anomaly"]
        detector.add_sample("Conv2D_1", usual(grad_norm=2e4))
    assert detector.detect_anomalies("Conv2D_1", usual(grad_norm=0.2))["is_anomaly"]  # and does not hide a smaller one


def test_a_slow_first_call_does_not_hide_a_slowdown() -> None:
    detector = AnomalyDetector()
    random = np.random.default_rng(1)
    detector.add_sample("a", {"execution_time": 2.5})
    for _ in range(60):
        detector.add_sample("a", {"execution_time": float(random.lognormal(-3, 0.1))})
    assert detector.detect_anomalies("a", {"execution_time": 0.2})["is_anomaly"]


@pytest.mark.parametrize("spread", [0.05, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("samples", [100, 300, 1000])
def test_a_gradient_that_vanishes_is_found_however_much_it_varied(spread: float, samples: int) -> None:
    for seed in range(5):
        detector, random = AnomalyDetector(), np.random.default_rng(seed)
        for value in random.lognormal(-4, spread, samples).tolist():
            detector.add_sample("a", {"grad_norm": value})
        assert detector.detect_anomalies("a", {"grad_norm": 0.0})["is_anomaly"]
        assert detector.detect_anomalies("a", {"grad_norm": 1e-12})["is_anomaly"]


class Scalar:
    """As torch gives a value: a tensor of one element."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def item(self) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


@pytest.mark.parametrize("value", [3, np.float32(3), np.array([3]), np.int8(3), Scalar(3.0), Fraction(3)])
def test_every_sort_of_number_is_picked_up(value: Any) -> None:
    detector = AnomalyDetector()
    detector.add_sample("a", {"anything": value})
    assert detector.get_layer_statistics("a")["anything"]["max"] == 3.0


@pytest.mark.parametrize(
    "value",
    ["3", b"3", None, True, np.True_, [3], {"x": 3}, 3j, np.array([3, 4]), np.str_("3"), Scalar(RuntimeError("many"))],
)
def test_what_is_no_number_is_left_out(value: Any) -> None:
    detector = AnomalyDetector()
    detector.add_sample("a", {"anything": value, "layer": "a"})
    assert detector.get_layer_statistics("a") == {}
    assert detector.detect_anomalies("a", {"anything": value}) == {"is_anomaly": False, "scores": {}}


def test_a_new_metric_is_judged_once_it_has_a_past() -> None:
    detector = trained(300)
    random = np.random.default_rng(2)
    for _ in range(300):
        detector.add_sample("Conv2D_1", {**healthy(random), "weight_norm": float(random.normal(5, 0.1))})
    judged = detector.judge("Conv2D_1", usual(weight_norm=9.0))
    assert judged.metrics == ("weight_norm",)
    assert set(judged.methods) == METHODS


class Strict(AnomalyDetector):
    """As the original shows it."""

    def detect_custom_anomaly(self, layer_name: str, metrics: Mapping[str, Any]) -> tuple[bool, float] | None:
        return metrics["flops"] > 100, metrics["flops"] / 100


def test_a_subclass_has_a_say() -> None:
    detector = Strict()
    assert detector.detect_anomalies("a", {"flops": 250}) == {"is_anomaly": True, "scores": {"custom": 2.5}}
    assert detector.detect_anomalies("a", {"flops": 50}) == {"is_anomaly": False, "scores": {"custom": 0.5}}
    assert detector.detect_anomalies("a", {"flops": 50, "grad_norm": math.nan})["is_anomaly"] is True


@pytest.mark.parametrize(
    ("answer", "is_anomaly", "scores"),
    [
        (None, False, {}),
        ((np.True_, np.float64(0.5)), True, {"custom": 0.5}),
        ([False, None], False, {}),
        ((True, math.inf), True, {"custom": CEILING}),
    ],
)
def test_whatever_a_subclass_answers_stays_plain(answer: Any, is_anomaly: bool, scores: dict[str, float]) -> None:
    class Custom(AnomalyDetector):
        def detect_custom_anomaly(self, layer_name: str, metrics: Mapping[str, Any]) -> Any:
            return answer

    found = Custom().detect_anomalies("a", {})
    assert found == {"is_anomaly": is_anomaly, "scores": scores}
    json.dumps(found, allow_nan=False)


def test_a_subclass_that_answers_nonsense_is_told_what_is_expected() -> None:
    class Custom(AnomalyDetector):
        def detect_custom_anomaly(self, layer_name: str, metrics: Mapping[str, Any]) -> Any:
            return 0.7

    with pytest.raises(UsageError, match=r"Custom.detect_custom_anomaly gave 0.7 for 'fc'; it returns whether"):
        Custom().detect_anomalies("fc", {})


@pytest.mark.parametrize(
    ("sensitivity", "z", "iqr"), [(0.95, 3.0, 1.5), (0.90, 2.5, 1.26), (0.98, 3.6, 1.78), (1.0, math.inf, math.inf)]
)
def test_the_dial_is_that_of_the_configuration(sensitivity: float, z: float, iqr: float) -> None:
    thresholds = Thresholds(sensitivity)
    assert thresholds.z(10**9) == pytest.approx(z, abs=0.05)
    assert thresholds.iqr(10**9) == pytest.approx(iqr, abs=0.01)
    assert thresholds.contamination == pytest.approx(1 - sensitivity)


def test_a_higher_sensitivity_gives_fewer_alarms_and_1_gives_none_for_a_finite_value() -> None:
    noise = np.random.default_rng(3).normal(size=1500)
    alarms = []
    for sensitivity in (0.0, 0.90, 0.95, 0.98, 1.0):
        detector, found = AnomalyDetector(sensitivity), 0
        for value in noise.tolist():
            found += detector.judge("a", {"x": value}, every_score=False).is_anomaly
            detector.add_sample("a", {"x": value})
        alarms.append(found)
    assert alarms == sorted(alarms, reverse=True)
    assert len(set(alarms)) == 5
    assert alarms[-1] == 0
    assert trained(detector=AnomalyDetector(1.0)).detect_anomalies("Conv2D_1", {"memory": math.nan})["is_anomaly"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sensitivity": 1.2}, "sensitivity is 1.2; it goes from 0"),
        ({"sensitivity": math.nan}, "sensitivity is nan"),
        ({"history": 0}, "history is 0 samples; it takes at least 1"),
    ],
)
def test_impossible_settings_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        AnomalyDetector(**given)


anything = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(-2, 2),
    st.integers(),
    st.integers(10**300, 10**310),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
)
some_metrics = st.dictionaries(st.sampled_from(["grad_norm", "memory", "é", "iqr_based", "", "custom"]), anything)


@given(st.lists(some_metrics, max_size=40), some_metrics, st.sampled_from([0.0, 0.5, 0.95, 1.0]), st.integers(1, 30))
def test_any_metrics_are_taken_and_every_answer_is_json(
    samples: list[dict[str, Any]], last: dict[str, Any], sensitivity: float, history: int
) -> None:
    detector = AnomalyDetector(sensitivity, history)
    for metrics in samples:
        detector.add_sample("a", metrics)
    found = detector.detect_anomalies("a", last)
    json.dumps([found, detector.get_layer_statistics("a")], allow_nan=False)
    numbers = [
        value for name, value in last.items() if isinstance(value, float) and name not in ("iqr_based", "custom")
    ]
    assert found["is_anomaly"] or all(map(math.isfinite, numbers))
    assert all(abs(score) <= CEILING for score in found["scores"].values())


@given(st.permutations(sorted(SPREAD)), st.integers(0, 90))
def test_the_order_of_the_metrics_does_not_matter(order: list[str], samples: int) -> None:
    random = np.random.default_rng(samples)
    one, other = AnomalyDetector(), AnomalyDetector()
    for _ in range(samples):
        metrics = healthy(random)
        one.add_sample("a", metrics)
        other.add_sample("a", {name: metrics[name] for name in order})
    metrics = healthy(random)
    assert one.judge("a", metrics) == other.judge("a", {name: metrics[name] for name in order})
