"""What is remembered of one layer: the last samples, metric by metric, and the forest grown on them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.anomalies.forest import IsolationForest, grow
from neuraldbg.analysis.anomalies.window import LARGEST, Window

FIRST_FOREST = 64  # samples
REGROW = 256  # samples between two forests; while there are fewer, at every doubling
CLIPPED = 6.0  # sigma; a past fault must not stretch what a forest holds for possible
SCORED = 256  # samples that a new forest's threshold is taken from


@dataclass(frozen=True, slots=True)
class Feature:
    """A metric as a column of the forest: centred, in standard deviations of its middle half."""

    name: str
    logarithmic: bool
    centre: float
    spread: float


@dataclass(frozen=True, slots=True)
class LayerForest:
    features: tuple[Feature, ...]
    forest: IsolationForest
    threshold: float  # of the score: so much of what it was grown on lies below as the dial says

    def score(self, values: Mapping[str, float]) -> float:
        """Of one sample. A metric that it lacks counts as usual."""
        point = [_scaled(each, values[each.name]) if each.name in values else 0.0 for each in self.features]
        return float(self.forest.score(np.array([point]))[0])


@dataclass(slots=True)
class Column:
    """One metric: its value in each remembered sample (NaN = absent), and those values sorted."""

    ring: array[float]
    window: Window


class LayerHistory:
    """The last `size` samples. A metric that none of them has is forgotten."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.samples = 0  # ever seen
        self.columns: dict[str, Column] = {}
        self.forest: LayerForest | None = None
        self.forest_at = 0  # samples seen when it was grown

    def add(self, values: Mapping[str, float]) -> None:
        """Takes in the finite metrics of one sample."""
        rows, slot = min(self.samples, self.size), self.samples % self.size
        for name in values.keys() - self.columns.keys():
            self.columns[name] = Column(array("d", [math.nan]) * rows, Window())
        for name in list(self.columns):
            column = self.columns[name]
            new = values.get(name, math.nan)
            if rows < self.size:
                column.ring.append(new)
            else:
                old, column.ring[slot] = column.ring[slot], new
                if old == old:
                    column.window.remove(old)
            if new == new:
                column.window.add(new)
            elif not column.window:
                del self.columns[name]
        self.samples += 1

    def current_forest(self, contamination: float) -> LayerForest | None:
        """Grown when first asked for with enough samples, and again when it is old. None before."""
        due = self.forest_at + min(self.forest_at, REGROW) if self.forest else FIRST_FOREST
        if self.samples >= due and min(self.samples, self.size) >= FIRST_FOREST:
            self.forest, self.forest_at = self._grown(contamination), self.samples
        return self.forest

    def _grown(self, contamination: float) -> LayerForest | None:
        rows = min(self.samples, self.size)
        features, columns = [], []
        for name, column in sorted(self.columns.items()):
            if len(column.window) * 2 >= rows:
                usual = column.window.usual()[-1]
                feature = Feature(name, usual.logarithmic, (usual.low + usual.high) / 2, usual.spread / 1.35)
                features.append(feature)
                columns.append(_scaled_column(feature, np.array(column.ring)))
        if not features:
            return None
        points = np.clip(np.stack(columns, axis=1), -CLIPPED, CLIPPED)
        forest = grow(points)
        scores = forest.score(points[:: max(1, rows // SCORED)])
        return LayerForest(tuple(features), forest, float(np.quantile(scores, 1 - contamination)))


def _scaled(feature: Feature, value: float) -> float:
    return float(_scaled_column(feature, np.array([value]))[0])


def _scaled_column(feature: Feature, values: NDArray[np.float64]) -> NDArray[np.float64]:
    if feature.logarithmic:
        values = np.log(np.maximum(values, 1 / LARGEST))
    scaled = (values - feature.centre) / feature.spread
    return np.where(np.isnan(scaled), 0.0, np.clip(scaled, -LARGEST, LARGEST))
