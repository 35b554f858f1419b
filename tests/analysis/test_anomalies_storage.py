"""A detector outlives its process, and a file that is none says so."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuraldbg.analysis.anomalies import AnomalyDetector
from neuraldbg.errors import NeuralDbgError


def fed(samples: int, *, history: int = 1000, seed: int = 0) -> AnomalyDetector:
    detector = AnomalyDetector(0.9, history)
    feed(detector, samples, seed=seed)
    return detector


def feed(detector: AnomalyDetector, samples: int, *, seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    judged = []
    for number in range(samples):
        for layer in ("conv1", "fc"):
            metrics = {"grad_norm": float(random.lognormal()), "mean_activation": float(random.normal())}
            if number % 3:
                metrics["sometimes"] = float(number % 7)
            judged.append(detector.judge(layer, metrics))
            detector.add_sample(layer, metrics)
    return judged


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(samples=st.integers(0, 150), history=st.integers(1, 120), more=st.integers(0, 40))
def test_a_loaded_detector_goes_on_as_the_saved_one(tmp_path: Path, samples: int, history: int, more: int) -> None:
    saved = fed(samples, history=history)
    saved.save(tmp_path / "model")
    loaded = AnomalyDetector.load(tmp_path / "model")
    assert (loaded.sensitivity, loaded.history) == (0.9, history)
    for layer in ("conv1", "fc", "unknown"):
        assert loaded.get_layer_statistics(layer) == saved.get_layer_statistics(layer)
    assert feed(loaded, more, seed=1) == feed(saved, more, seed=1)


def test_a_forest_is_saved_not_grown_again(tmp_path: Path) -> None:
    saved = fed(200)
    saved.save(str(tmp_path / "model.npz"))
    loaded = AnomalyDetector.load(str(tmp_path / "model.npz"))
    forest = loaded.layers["fc"].forest
    assert forest is not None
    assert np.array_equal(forest.forest.cut, saved.layers["fc"].forest.forest.cut)  # type: ignore[union-attr]
    assert loaded.layers["fc"].forest_at == saved.layers["fc"].forest_at


def test_a_subclass_is_loaded_as_itself(tmp_path: Path) -> None:
    class Custom(AnomalyDetector):
        def detect_custom_anomaly(self, layer_name: str, metrics: Any) -> tuple[bool, float]:
            return True, 7.0

    fed(3).save(tmp_path / "model")
    assert Custom.load(tmp_path / "model").detect_anomalies("fc", {})["scores"] == {"custom": 7.0}


def test_saving_replaces_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    fed(3).save(tmp_path / "model")
    fed(30).save(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert AnomalyDetector.load(tmp_path / "model").layers["fc"].samples == 30


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(NeuralDbgError, match=r"cannot save the anomaly model as .*nowhere/model: No such file"):
        fed(3).save(tmp_path / "nowhere" / "model")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NeuralDbgError, match=r"no anomaly model at .*model; AnomalyDetector.save writes one"):
        AnomalyDetector.load(tmp_path / "model")


def stored(path: Path) -> dict[str, Any]:
    with np.load(path) as arrays:
        return dict(arrays)


def with_about(arrays: dict[str, Any], **changes: Any) -> dict[str, Any]:
    about = {**json.loads(bytes(arrays["about"])), **changes}
    return {**arrays, "about": np.frombuffer(json.dumps(about).encode(), np.uint8)}


Arrays = dict[str, Any]
SPOILED: dict[str, Callable[[Arrays], Arrays]] = {
    "another program's": lambda good: with_about(good, format="other"),
    "no version": lambda good: with_about(good, version=None),
    "nonsense for settings": lambda good: with_about(good, sensitivity="high"),
    "settings out of range": lambda good: with_about(good, sensitivity=7),
    "no samples": lambda good: {key: value for key, value in good.items() if key != "0.rings"},
    "too few samples": lambda good: {**good, "0.rings": good["0.rings"][:, :-1]},
    "infinite samples": lambda good: {**good, "0.rings": np.full_like(good["0.rings"], math.inf)},
    "other samples": lambda good: {**good, "0.rings": np.full_like(good["0.rings"], math.nan)},
    "half a forest": lambda good: {**good, "0.cut": good["0.cut"][:, :9]},
    "fewer trees in one array": lambda good: {**good, "0.cut": good["0.cut"][:9]},
    "a forest of something else": lambda good: {**good, "0.feature": good["0.feature"] + 5},
    "text": lambda good: {**good, "0.rings": np.array(["a", "b"])},
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_file_that_does_not_hold_together_is_refused(tmp_path: Path, name: str) -> None:
    fed(100).save(tmp_path / "good")
    with (tmp_path / "bad").open("wb") as file:
        np.savez(file, **SPOILED[name](stored(tmp_path / "good")))
    with pytest.raises(NeuralDbgError, match=r"bad is not an anomaly model, or damaged \(.+\); AnomalyDetector.save"):
        AnomalyDetector.load(tmp_path / "bad")


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 not really", b"\x93NUMPY\x01\x00", b"[1, 2]"])
def test_a_file_of_another_sort_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(NeuralDbgError, match="bad is not an anomaly model"):
        AnomalyDetector.load(tmp_path / "bad")


def test_a_torn_file_is_refused(tmp_path: Path) -> None:
    fed(100).save(tmp_path / "model")
    whole = (tmp_path / "model").read_bytes()
    for share in (0.1, 0.5, 0.9, 0.99):
        (tmp_path / "model").write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(NeuralDbgError, match="is not an anomaly model, or damaged"):
            AnomalyDetector.load(tmp_path / "model")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_refused_or_does_no_harm(tmp_path: Path, place: float, bit: int) -> None:
    path = tmp_path / "model"
    if not (tmp_path / "whole").exists():
        fed(70).save(tmp_path / "whole")
    damaged = bytearray((tmp_path / "whole").read_bytes())
    damaged[int(place * len(damaged))] ^= 1 << bit
    path.write_bytes(damaged)
    try:
        detector = AnomalyDetector.load(path)
    except NeuralDbgError:
        return
    feed(detector, 3, seed=2)


@pytest.mark.parametrize("header", ["{'descr': '<i2', 'shape': (64, 127), F", "{'descr': '<i2'}", "'open", "\\x00"])
def test_an_array_with_a_damaged_header_is_refused(tmp_path: Path, header: str) -> None:
    fed(3).save(tmp_path / "whole")
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    with ZipFile(tmp_path / "whole") as whole, ZipFile(tmp_path / "bad", "w") as bad:
        for name in whole.namelist():
            bad.writestr(name, content if name == "0.rings.npy" else whole.read(name))
    with pytest.raises(NeuralDbgError, match="bad is not an anomaly model, or damaged"):
        AnomalyDetector.load(tmp_path / "bad")


def test_a_file_of_a_newer_version_asks_for_an_upgrade(tmp_path: Path) -> None:
    fed(3).save(tmp_path / "good")
    with (tmp_path / "new").open("wb") as file:
        np.savez(file, **with_about(stored(tmp_path / "good"), version=2))
    with pytest.raises(NeuralDbgError, match=r"new was saved by a newer neural-debugger .*; upgrade, or train"):
        AnomalyDetector.load(tmp_path / "new")
