"""Event files: what TensorBoard reads is what was measured, byte for byte as the format has it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from event_reading import events, messages, slow_crc32c
from hypothesis import given
from hypothesis import strategies as st
from made_runs import made_run, train

from neuraldbg.debug import DebugVisualizer
from neuraldbg.records import Kind
from neuraldbg.surfaces.reports import event_file
from neuraldbg.surfaces.reports.files import write
from neuraldbg.surfaces.reports.tensorboard import MOST_OF_LAYERS
from neuraldbg.trace import open_trace
from neuraldbg.trace.findings import write_findings


def test_the_checksum_is_castagnolis() -> None:
    assert event_file.crc32c(b"123456789") == 0xE3069283
    assert event_file.crc32c(b"") == 0


@given(st.lists(st.binary(max_size=40), max_size=60))
def test_every_record_can_be_read_back(payloads: list[bytes]) -> None:
    payloads += [b"the same length"] * event_file.FEW  # so many are checksummed at once
    assert list(messages(b"".join(event_file.records(payloads)))) == payloads


@given(st.binary(max_size=100))
def test_checksums_are_those_of_the_definition(data: bytes) -> None:
    assert event_file.crc32c(data) == slow_crc32c(data)


def test_plots_become_scalars_histograms_and_images(tmp_path: Path) -> None:
    made = DebugVisualizer(output_directory=tmp_path)
    made.plot_loss([0, 1, 2**40], [2.0, math.nan, 1e300], validation=[1, 2, 3])
    made.plot_tensor_distribution("w", [0.0, 0.5, 1.0, math.nan], 2)
    made.plot_heatmap("grid", np.eye(3))
    first, *rest = events(made.export_tensorboard())
    assert first.version == "brain.Event:2"
    losses = [(one.step, one.scalar) for one in rest if one.tag == "loss/loss"]
    assert [step for step, _ in losses] == [0, 1, 2**40]
    np.testing.assert_array_equal([value for _, value in losses], [2.0, math.nan, math.inf])  # of 32 bits
    (counted,) = (one.histogram for one in rest if one.tag == "w_distribution")
    assert counted == {"ends": [0.0, 1.0], "limits": [0.5, 1.0], "counts": [1.0, 2.0]}
    (picture,) = (one.image for one in rest if one.tag == "grid_heatmap")
    assert picture is not None
    assert picture.startswith(b"\x89PNG")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with made_run(tmp_path / "run") as made:
        train(made, steps=30)
        made.end(steps=30)
    return tmp_path / "run"


def exported(run: Path, tmp_path: Path) -> list[Any]:
    path = tmp_path / "x.tfevents"
    with open_trace(run) as trace:
        write(trace, run, "tensorboard", path)
    return events(path)


def test_a_run_has_its_series_and_its_layers(run: Path, tmp_path: Path) -> None:
    found = exported(run, tmp_path)
    with open_trace(run) as trace:
        loss = trace.history("loss")
        assert [(one.step, one.scalar) for one in found if one.tag == "loss"] == [
            (step, np.float32(value)) for step, value in zip(loss.steps.tolist(), loss.value.tolist(), strict=True)
        ]
        kinds = {(one.tag or "").partition("/")[0] for one in found[1:]}
        assert {"loss", "activation_mean", "gradient_norm"} <= kinds
        norms = trace.history("conv1.weight", "gradient", "l2")
        mine = {one.step: one.scalar for one in found if one.tag == "gradient_norm/conv1.weight"}
        assert mine == {step: np.float32(v) for step, v in zip(norms.steps.tolist(), norms.l2.tolist(), strict=True)}
    assert [one.step for one in found] == sorted(one.step for one in found)


def test_long_curves_are_thinned_with_their_peaks(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as made:
        model = made.model()
        layer = made.module("fc", "Linear", model)
        for step in range(3 * MOST_OF_LAYERS):
            made.stats(layer, Kind.GRADIENT, step, l2=1e6 if step == 1234 else 1.0)
        made.end(steps=3 * MOST_OF_LAYERS)
    found = [one for one in exported(tmp_path / "run", tmp_path) if one.tag == "gradient_norm/fc"]
    assert len(found) <= MOST_OF_LAYERS
    assert [one.step for one in found if one.scalar == 1e6] == [1234]


def test_the_command_writes_a_file_that_tensorboard_looks_for(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "neuraldbg", "export", str(run), "--format", "tensorboard", "--json"]
    told = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert told["file"] == "run.tfevents"
    assert events(tmp_path / "run.tfevents")[0].version == "brain.Event:2"


def test_magnitudes_of_layers_are_histograms_of_their_powers_of_two(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as made:
        layer = made.module("fc", "Linear", made.model())
        made.histogram(layer, Kind.ACTIVATION, 7, {-3: 5, -1: 2}, zeros=4)
        made.end(steps=8)
    (one,) = (one for one in exported(tmp_path / "run", tmp_path) if one.histogram is not None)
    assert (one.tag, one.step) == ("log2_activation/fc", 7)
    assert one.histogram == {"ends": [-3.0, 0.0], "limits": [-2.0, -1.0, 0.0], "counts": [5.0, 0.0, 2.0]}


def test_what_was_found_is_told_as_text(run: Path, tmp_path: Path) -> None:
    write_findings(run, [{"id": "a", "kind": "nan_loss", "severity": "critical", "summary": "NaN", "step": 4}])
    (one,) = (one for one in exported(run, tmp_path) if one.text is not None)
    assert (one.tag, one.step, one.text) == ("findings/nan_loss", 4, "**critical**: NaN")


def test_tensorboard_itself_reads_it(run: Path, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    exported(run, tmp_path)
    made = DebugVisualizer(output_directory=tmp_path)
    made.plot_tensor_distribution("w", [0.0, 0.5, 1.0], 2)
    made.plot_heatmap("grid", np.eye(3))
    loaded = accumulator.EventAccumulator(str(tmp_path / "x.tfevents"))
    loaded.Reload()
    with open_trace(run) as trace:
        loss = trace.history("loss")
    assert [one.step for one in loaded.Scalars("loss")] == loss.steps.tolist()
    np.testing.assert_array_equal([one.value for one in loaded.Scalars("loss")], loss.value.astype(np.float32))
    plots = accumulator.EventAccumulator(str(made.export_tensorboard()))
    plots.Reload()
    counted = plots.Histograms("w_distribution")[0].histogram_value
    assert (counted.num, list(counted.bucket)) == (3, [1.0, 2.0])
    assert plots.Images("grid_heatmap")[0].width == 3
