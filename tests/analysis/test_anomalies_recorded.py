"""The anomalies of a recorded run are found in order, each with its step, layer and numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import MadeRun, made_run

from neuraldbg.analysis.anomalies import Anomaly, AnomalyDetector, anomalies_of
from neuraldbg.records import Kind, Phase
from neuraldbg.trace import TraceWriter, open_trace

Faults = dict[tuple[str, str], dict[int, float]]  # (layer, metric) -> step -> value


class Training:
    """Steps of a convolution, an activation and a linear layer; faults replace what was measured."""

    def __init__(self, run: MadeRun, faults: Faults) -> None:
        self.run, self.faults, self.random = run, faults, np.random.default_rng(3)
        self.model = run.model("model", "Net")
        self.layers = {path: run.module(path, op, self.model) for path, op in (("conv", "Conv2d"), ("act", "ReLU"))}
        self.layers["fc"] = run.module("fc", "Linear", self.model)
        self.parameters = {
            path: [
                run.parameter(f"{path}.{name}", shape, self.model)
                for name, shape in (("weight", (8, 8)), ("bias", (8,)))
            ]
            for path in ("conv", "fc")
        }

    def value(self, step: int, layer: str, metric: str, mean: float) -> float:
        noise = mean * (1 + 0.05 * float(self.random.normal()))
        return self.faults.get((layer, metric), {}).get(step, noise)

    def step(self, step: int) -> None:
        for path, site in self.layers.items():
            milliseconds = self.value(step, path, "milliseconds", 2.0)
            self.run.span(site, Phase.FORWARD, step, milliseconds, host_bytes=int(self.value(step, path, "bytes", 4e6)))
            self.activation(step, site, self.value(step, path, "mean", 0.4), self.value(step, path, "zeros", 20))
            for parameter in self.parameters.get(path, []):
                norm = self.value(step, path, "norm", 0.3)
                self.run.stats(parameter, Kind.GRADIENT, step, Phase.BACKWARD, l2=norm, nan_count=int(math.isnan(norm)))
        self.run.stats(self.layers["act"], Kind.GRADIENT, step, Phase.BACKWARD, l2=self.value(step, "act", "norm", 0.1))

    def activation(self, step: int, site: int, mean: float, zeros: float) -> None:
        bad = {"nan_count": 3} if math.isnan(mean) else {}
        self.run.stats(site, Kind.ACTIVATION, step, mean=mean, zero_count=int(zeros), **bad)
        self.run.stats(site, Kind.ACTIVATION, step, Phase.EVAL, mean=50.0, nan_count=7)  # not of the training


def recorded(out: Path, faults: Faults, *, steps: int = 120) -> Path:
    with made_run(out) as run:
        training = Training(run, faults)
        for step in range(steps):
            training.step(step)
        run.end(steps=steps)
    return run.directory


def found_in(directory: Path, **given: Any) -> list[Anomaly]:
    with open_trace(directory) as trace:
        return list(anomalies_of(trace, **given))


@pytest.mark.parametrize(
    ("layer", "measured", "value", "metric", "shown"),
    [
        ("conv", "milliseconds", 20.0, "execution_time", 0.02),
        ("fc", "bytes", 64e6, "memory", 64.0),
        ("act", "mean", 9.0, "mean_activation", 9.0),
        ("act", "mean", math.nan, "mean_activation", math.nan),
        ("act", "zeros", 100, "zero_ratio", 1.0),
        ("conv", "norm", 3e5, "grad_norm", math.sqrt(2) * 3e5),
        ("conv", "norm", 0.0, "grad_norm", 0.0),
        ("fc", "norm", math.nan, "grad_norm", math.nan),
        ("act", "norm", 40.0, "grad_norm", 40.0),
    ],
)
def test_a_fault_is_found_where_and_when_it_happened(
    tmp_path: Path, layer: str, measured: str, value: float, metric: str, shown: float
) -> None:
    found = found_in(recorded(tmp_path / "run", {(layer, measured): {100: value}}))
    (fault,) = [each for each in found if each.step == 100]
    assert (fault.layer, fault.rank, fault.metrics) == (layer, 0, (metric,))
    assert {"z_score", "iqr_based"} <= set(fault.methods)
    assert fault.values[metric] == pytest.approx(shown, nan_ok=True)
    assert abs(fault.scores[metric]) > 3
    assert len(found) <= 5  # of 360 samples
    json.dumps(dict(fault.scores), allow_nan=False)


def test_anomalies_come_in_the_order_of_the_steps(tmp_path: Path) -> None:
    faults: Faults = {("fc", "norm"): {30: 50.0, 90: math.nan}, ("conv", "milliseconds"): {60: 99.0, 90: 99.0}}
    found = found_in(recorded(tmp_path / "run", faults))
    places = [(each.step, each.layer) for each in found]
    assert places == sorted(places, key=lambda place: place[0])
    assert {(30, "fc"), (60, "conv"), (90, "conv"), (90, "fc")} <= set(places)


def test_a_run_without_rows_has_none(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        run.end()
    assert found_in(run.directory) == []


def test_empty_tensors_and_unknown_sizes_are_absent_not_zero(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        site = run.module("fc", "Linear", run.model())
        for step in range(30):
            run.span(site, Phase.FORWARD, step, 1.0)
            run.stats(site, Kind.ACTIVATION, step, count=0, mean=math.nan, l2=math.nan)
            run.stats(site, Kind.GRADIENT, step, Phase.BACKWARD, count=0, mean=math.nan, l2=math.nan)
        run.end()
    detector = AnomalyDetector()
    assert found_in(run.directory, detector=detector) == []
    assert list(detector.get_layer_statistics("fc")) == ["execution_times"]


def test_a_layer_called_several_times_is_its_mean(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        site = run.module("fc", "Linear", run.model())
        for milliseconds, mean, zeros in ((1.0, 0.2, 10), (3.0, 0.4, 30)):
            run.span(site, Phase.FORWARD, 0, milliseconds, host_bytes=int(milliseconds * 1e6))
            run.stats(site, Kind.ACTIVATION, 0, mean=mean, zero_count=zeros)
        run.end()
    detector = AnomalyDetector()
    found_in(run.directory, detector=detector)
    means = {name: each["mean"] for name, each in detector.get_layer_statistics("fc").items()}
    expected = {"execution_times": 0.002, "memory_usage": 3.0, "activations": 0.3, "zero_ratio": 0.2}
    assert means == pytest.approx(expected)


def test_a_detector_goes_on_where_it_stopped(tmp_path: Path) -> None:
    directory = recorded(tmp_path / "run", {("fc", "norm"): {80: 50.0}})
    detector = AnomalyDetector()
    with open_trace(directory) as trace:
        parts = [*anomalies_of(trace.between(None, 59), detector), *anomalies_of(trace.between(60, None), detector)]
        assert parts == list(anomalies_of(trace))


def test_ranks_are_compared_with_their_own_past(tmp_path: Path) -> None:
    directory = recorded(tmp_path / "run", {}, steps=40)
    with TraceWriter(directory, rank=1, threaded=False) as writer:
        other = MadeRun(directory, writer)
        slow = {("conv", "milliseconds"): {step: 50.0 + step % 3 for step in range(40)} | {35: 5000.0}}
        training = Training(other, slow)
        for step in range(40):
            training.step(step)
    found = [(each.step, each.layer, each.rank) for each in found_in(directory) if "execution_time" in each.metrics]
    assert found == [(35, "conv", 1)]


def test_a_long_run_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = recorded(tmp_path / "run", {("fc", "norm"): {80: 50.0}})
    whole = found_in(directory)
    monkeypatch.setattr("neuraldbg.analysis.anomalies.recorded.STEPS_AT_ONCE", 7)
    assert found_in(directory) == whole
