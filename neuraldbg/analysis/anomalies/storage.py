"""A detector in one file: numpy arrays in a zip (.npz), described by JSON in the array `about`. Nothing is pickled."""

from __future__ import annotations

import json
import math
import os
import struct
import tokenize
import zlib
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.anomalies.forest import IsolationForest, depth_limit
from neuraldbg.analysis.anomalies.layer import Column, Feature, LayerForest, LayerHistory
from neuraldbg.analysis.anomalies.window import LARGEST, Moments, Window
from neuraldbg.errors import NeuralDbgError

if TYPE_CHECKING:
    from neuraldbg.analysis.anomalies.detector import AnomalyDetector

FORMAT, VERSION = "neuraldbg.anomalies", 1
Arrays = Mapping[str, NDArray[Any]]
TREE_ARRAYS = ("feature", "cut", "length")
_UNREADABLE = (  # what numpy, zipfile and json raise for a file that is not what it should be
    *(OSError, ValueError, LookupError, TypeError, ArithmeticError, RuntimeError, EOFError, MemoryError),
    *(BadZipFile, zlib.error, struct.error, SyntaxError, tokenize.TokenError),
)


def write(detector: AnomalyDetector, path: str | os.PathLike[str]) -> None:
    """Whole or not at all: a file that was there before stays until the new one is complete."""
    arrays: dict[str, NDArray[Any]] = {}
    layers = []
    for number, (name, layer) in enumerate(detector.layers.items()):
        columns = layer.columns.values()
        arrays[f"{number}.rings"] = np.array([column.ring for column in columns])
        arrays[f"{number}.moments"] = np.array([_moments_row(column.window) for column in columns])
        entry: dict[str, Any] = {"name": name, "samples": layer.samples, "metrics": list(layer.columns)}
        if layer.forest is not None:
            arrays |= {f"{number}.{each}": getattr(layer.forest.forest, each) for each in (*TREE_ARRAYS, "low", "high")}
            entry["forest"] = _about_forest(layer.forest, layer.forest_at)
        layers.append(entry)
    about = {"format": FORMAT, "version": VERSION, "history": detector.history, "sensitivity": detector.sensitivity}
    arrays["about"] = np.frombuffer(json.dumps({**about, "layers": layers}).encode(), dtype=np.uint8)
    target = Path(path)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        unfinished.replace(target)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        reason = error.strerror or error
        raise NeuralDbgError(f"cannot save the anomaly model as {target}: {reason}; name another place") from error


def read(path: str | os.PathLike[str]) -> tuple[float, int, dict[str, LayerHistory]]:
    """Sensitivity, history and layers."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
            about = json.loads(bytes(stored["about"]))
            if about["format"] != FORMAT:
                raise ValueError(f"it holds {about['format']!r}")
            if about["version"] > VERSION:
                raise NeuralDbgError(
                    f"{path} was saved by a newer neural-debugger (version {about['version']} of the file, "
                    f"this one reads {VERSION}); upgrade, or train the anomaly model again"
                )
            sensitivity, history, layers = float(about["sensitivity"]), int(about["history"]), about["layers"]
            if not (0 <= sensitivity <= 1 and history >= 1):
                raise ValueError(f"a sensitivity of {sensitivity} with a history of {history}")
            found = {each["name"]: _layer(each, number, history, stored) for number, each in enumerate(layers)}
            return sensitivity, history, found
    except FileNotFoundError as error:
        raise NeuralDbgError(f"no anomaly model at {path}; AnomalyDetector.save writes one") from error
    except _UNREADABLE as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise NeuralDbgError(
            f"{path} is not an anomaly model, or damaged ({reason}); AnomalyDetector.save writes one"
        ) from error


def _moments_row(window: Window) -> list[list[float]]:
    both = (window.moments, window.log_moments)
    return [[each.count, each.mean, each.squares, each.leavings] for each in both]


def _about_forest(layer: LayerForest, grown_at: int) -> dict[str, Any]:
    return {
        "grown_at": grown_at,
        "threshold": layer.threshold,
        "subsample": layer.forest.subsample,
        "features": [[each.name, each.logarithmic, each.centre, each.spread] for each in layer.features],
    }


def _layer(about: Mapping[str, Any], number: int, history: int, stored: Arrays) -> LayerHistory:
    layer = LayerHistory(history)
    layer.samples = int(about["samples"])
    rows = min(layer.samples, history)
    rings, moments = stored[f"{number}.rings"], stored[f"{number}.moments"]
    metrics = about["metrics"]
    if rings.shape != (len(metrics), rows) or moments.shape != (len(metrics), 2, 4) or rows < 1:
        raise ValueError(f"the samples of layer {about['name']!r} are incomplete")
    if not np.all(np.isnan(rings) | (np.abs(rings) <= LARGEST)) or not np.isfinite(moments).all():
        raise ValueError(f"the samples of layer {about['name']!r} are not finite")
    for name, ring, sums in zip(metrics, rings, moments.tolist(), strict=True):
        window = Window(array("d", np.sort(ring[~np.isnan(ring)]).tolist()))
        window.moments, window.log_moments = (
            Moments(int(count), mean, squares, int(leavings)) for count, mean, squares, leavings in sums
        )
        if window.moments.count != len(window):
            raise ValueError(f"the sums of {name!r} in layer {about['name']!r} do not fit its samples")
        layer.columns[name] = Column(array("d", ring.tolist()), window)
    if "forest" in about:
        layer.forest, layer.forest_at = _forest(about["forest"], number, stored), int(about["forest"]["grown_at"])
    return layer


def _forest(about: Mapping[str, Any], number: int, stored: Arrays) -> LayerForest:
    features = tuple(Feature(str(name), bool(log), float(at), float(by)) for name, log, at, by in about["features"])
    trees = {each: stored[f"{number}.{each}"] for each in TREE_ARRAYS}
    subsample, threshold = int(about["subsample"]), float(about["threshold"])
    low, high = stored[f"{number}.low"], stored[f"{number}.high"]
    nodes = 2 ** (depth_limit(subsample) + 1) - 1
    sizes_fit = {each.shape for each in trees.values()} == {(len(trees["feature"]), nodes)}
    if not sizes_fit or low.shape != (len(features),) or high.shape != low.shape or not math.isfinite(threshold):
        raise ValueError("a forest is incomplete")
    if trees["feature"].max() >= len(features) or not all(each.spread > 0 for each in features):
        raise ValueError("a forest looks at metrics that it does not have")
    return LayerForest(features, IsolationForest(**trees, low=low, high=high, subsample=subsample), threshold)
