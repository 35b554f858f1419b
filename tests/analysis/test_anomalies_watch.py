"""A run is watched for anomalies piece by piece, its series and the user's too; the work goes on where it ended."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from made_runs import MadeRun, made_run, train

from neuraldbg.analysis.anomalies import Anomaly, AnomalyDetector, AnomalyWatch, anomalies_of, survey
from neuraldbg.analysis.anomalies.watch import FOUND_FILE, MODEL_FILE, STILL_COMING, settled_step, watch_of
from neuraldbg.analysis.summary import summarise
from neuraldbg.trace import open_trace

Series = dict[str, list[float]]


def noise(count: int, mean: float = 1.0, *, seed: int = 5, **faults: float) -> list[float]:
    """Numbers around `mean`; `at_40=9.0` puts another one at place 40."""
    values = (mean * (1 + 0.05 * np.random.default_rng(seed).normal(size=count))).tolist()
    for place, value in faults.items():
        values[int(place.removeprefix("at_"))] = value
    return values


def recorded(out: Path, series: Series, **settings: float) -> Path:
    with made_run(out, settings=settings) as run:
        write(run, series)
        run.end()
    return run.directory


def write(run: MadeRun, series: Series, first: int = 0) -> None:
    for step in range(max(map(len, series.values()))):
        for name, values in series.items():
            if step < len(values):
                run.scalar(name, first + step, values[step])


def places(found: list[Anomaly]) -> list[tuple[int, tuple[str, ...]]]:
    return [(each.step, each.metrics) for each in found]


@pytest.mark.parametrize("name", ["loss", "grad_norm", "rss_bytes", "user.accuracy"])
@pytest.mark.parametrize("value", [50.0, math.nan, math.inf, -math.inf])
def test_every_measured_series_is_watched_by_its_own_name(tmp_path: Path, name: str, value: float) -> None:
    with open_trace(recorded(tmp_path / "run", {name: noise(120, at_100=value)})) as trace:
        found = [each for each in anomalies_of(trace) if each.step == 100]
    assert places(found) == [(100, (name,))]
    assert found[0].layer is None
    assert found[0].severity > 3


def test_a_nan_is_unusual_from_the_first_step(tmp_path: Path) -> None:
    with open_trace(recorded(tmp_path / "run", {"user.loss": [math.nan, 1.0]})) as trace:
        assert places(list(anomalies_of(trace))) == [(0, ("user.loss",))]


@pytest.mark.parametrize("name", ["lr", "lr.adam", "loss_scale"])
def test_what_somebody_sets_is_not_watched(tmp_path: Path, name: str) -> None:
    with open_trace(recorded(tmp_path / "run", {name: [1.0] * 50 + [100.0]})) as trace:
        assert survey(trace).samples == 0


def test_a_series_that_comes_rarely_keeps_its_own_past(tmp_path: Path) -> None:
    with made_run(tmp_path / "run", settings={"anomaly_history": 40}) as run:
        for step, value in enumerate(noise(3000)):
            run.scalar("loss", step, value)
            if step % 100 == 99:
                run.scalar("user.accuracy", step, 0.01 if step == 2999 else 0.9 + value / 100)
        run.end()
    with open_trace(run.directory) as trace:
        assert [each for each in survey(trace).found if each.metrics == ("user.accuracy",)][-1].step == 2999


def test_looking_piece_by_piece_finds_the_same(tmp_path: Path) -> None:
    series = {"loss": noise(300, at_90=40.0, at_250=0.0001), "grad_norm": noise(300, seed=6, at_120=math.nan)}
    with open_trace(recorded(tmp_path / "run", series)) as trace:
        watch = AnomalyWatch()
        pieces = [one for last in (50, 90, 90, 200, None) for one in watch.look(trace, through=last)]
        assert pieces == list(watch.found)
        assert repr(pieces) == repr(list(anomalies_of(trace)))  # NaN is not equal to itself
        assert watch.report().samples == 600
        assert watch.look(trace) == []


def test_a_watch_goes_on_in_another_process_where_it_ended(tmp_path: Path) -> None:
    directory = recorded(tmp_path / "run", {"loss": noise(300, at_90=math.nan, at_250=40.0)})
    with open_trace(directory) as trace:
        whole = survey(trace)
        first = AnomalyWatch()
        first.look(trace, through=149)
        assert first.save(directory)
        again = watch_of(trace)
        assert (again.next_step, again.samples) == (150, 150)
        again.look(trace)
        assert repr(again.report()) == repr(whole)
        assert AnomalyDetector.load(directory / MODEL_FILE).get_layer_statistics("series loss")


@pytest.mark.parametrize("harm", ["another model", "no model", "no progress", "not JSON", "another dial"])
def test_files_that_do_not_fit_are_left_aside(tmp_path: Path, harm: str) -> None:
    settings = {"anomaly_sensitivity": 0.98} if harm == "another dial" else {}
    directory = recorded(tmp_path / "run", {"loss": noise(100)}, **settings)
    with open_trace(directory) as trace:
        kept = AnomalyWatch()
        kept.look(trace)
        assert kept.save(directory)
        if harm == "another model":
            AnomalyDetector().save(directory / MODEL_FILE)
        elif harm == "not JSON":
            (directory / FOUND_FILE).write_text("{")
        elif harm != "another dial":
            (directory / (MODEL_FILE if harm == "no model" else FOUND_FILE)).unlink()
        assert watch_of(trace).next_step == 0
        assert survey(trace).samples == 100


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    assert not AnomalyWatch().save(tmp_path / "gone")


def test_the_disk_of_a_run_is_not_exceeded(tmp_path: Path) -> None:
    directory = recorded(tmp_path / "run", {"loss": noise(200)})
    taken = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    with open_trace(directory) as trace:
        watch = AnomalyWatch()
        watch.look(trace)
    before = sorted(directory.iterdir())
    assert not watch.save(directory, most_bytes=taken + 100)
    assert sorted(directory.iterdir()) == before
    assert watch.save(directory, most_bytes=taken + 100_000)


def test_the_work_of_one_look_is_bounded_and_what_was_left_out_is_counted(tmp_path: Path) -> None:
    with open_trace(recorded(tmp_path / "run", {"loss": noise(2000, at_1900=40.0)})) as trace:
        watch = AnomalyWatch()
        found = watch.look(trace, most=500)
    assert watch.report().samples == 500
    assert watch.report().unseen_steps == 1500
    assert (1900, ("loss",)) in places(found)


def test_only_so_many_anomalies_are_kept(tmp_path: Path) -> None:
    bad = {f"at_{step}": math.nan for step in range(20, 140, 2)}
    with open_trace(recorded(tmp_path / "run", {"loss": noise(150, **bad)}, anomaly_history=25)) as trace:
        report = survey(trace)
    assert report.total >= 60
    assert len(report.found) == report.history == 25


def test_of_a_value_that_stays_nan_the_first_is_kept(tmp_path: Path) -> None:
    values = [*noise(40), *[math.nan] * 30, *noise(10), *[math.nan] * 5]
    directory = recorded(tmp_path / "run", {"loss": values})
    with open_trace(directory) as trace:
        watch = AnomalyWatch()
        watch.look(trace, through=50)
        watch.save(directory)
        report = survey(trace)
    assert report.total >= 35
    assert [each.step for each in report.found if math.isnan(each.values["loss"])] == [40, 80]


def test_sensitivity_and_history_are_those_the_run_was_started_with(tmp_path: Path) -> None:
    series = {"loss": noise(400, at_300=1.21)}
    totals = {}
    for sensitivity in (0.5, 0.95, 1.0):
        directory = recorded(tmp_path / str(sensitivity), series, anomaly_sensitivity=sensitivity)
        with open_trace(directory) as trace:
            report = survey(trace)
        assert report.sensitivity == sensitivity
        totals[sensitivity] = report.total
    assert totals[0.5] > totals[0.95] >= totals[1.0] == 0


def test_of_a_running_training_the_last_steps_are_left_for_later(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        write(run, {"loss": noise(STILL_COMING + 40)})
    with open_trace(run.directory) as trace:
        assert settled_step(trace) == 39
        assert survey(trace, alive=True).samples == 40
        assert survey(trace).samples == STILL_COMING + 40
    with made_run(tmp_path / "young") as run:
        write(run, {"loss": noise(9)})
    with open_trace(run.directory) as trace:
        assert survey(trace, alive=True).samples == 0


def test_the_strongest_come_first(tmp_path: Path) -> None:
    with open_trace(recorded(tmp_path / "run", {"loss": noise(200, at_150=1.5, at_180=90.0)})) as trace:
        report = survey(trace)
    assert [each.step for each in report.strongest(2)] == [180, 150]
    json.dumps([dict(each.scores) for each in report.found], allow_nan=False)


def test_anomalies_never_make_a_healthy_run_unhealthy(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        train(run)
        write(run, {"user.metric": noise(50, at_40=math.nan, at_45=1e9)})
        run.end(steps=50)
    with open_trace(run.directory) as trace:
        report = survey(trace)
        summary = summarise(trace, anomalies=report)
    assert report.total >= 2
    assert summary.verdict.state == "healthy"
    assert not [one for one in summary.findings if one["severity"] != "info"]
