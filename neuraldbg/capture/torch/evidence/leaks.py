"""Input columns that are copies of the target: collected over some batches, judged on all of them together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Values = dict[str, Any]
MOST_ROWS = 2048
MOST_COLUMNS = 256
ENOUGH_ROWS = 128
COPIED = 1e-3  # what an affine map of the column leaves of the target, relative to the target's own spread
CLASSES = 20


class Columns:
    """Rows of inputs and targets of one loss, up to a bound."""

    def __init__(self) -> None:
        self.inputs: list[Array] = []
        self.targets: list[Array] = []
        self.rows = 0
        self.shape: tuple[int, ...] | None = None  # of one sample
        self.judged = 0

    @property
    def full(self) -> bool:
        return self.rows >= MOST_ROWS

    def add(self, inputs: Array, target: Array) -> None:
        flat, wanted = inputs.reshape(len(inputs), -1), target.reshape(-1)
        if self.shape is None:
            self.shape = tuple(inputs.shape[1:])
        if self.full or len(flat) != len(wanted) or inputs.shape[1:] != self.shape:
            return
        keep = min(MOST_ROWS - self.rows, len(flat))
        self.inputs.append(flat[:keep].astype(np.float32))
        self.targets.append(wanted[:keep].astype(np.float64))
        self.rows += keep

    def judge(self) -> Values | None:
        """The column that gives the target away, if there is one."""
        if self.rows < ENOUGH_ROWS or self.rows == self.judged:
            return None
        self.judged = self.rows
        inputs, target = np.concatenate(self.inputs).astype(np.float64), np.concatenate(self.targets)
        good = np.isfinite(inputs).all(1) & np.isfinite(target)
        inputs, target = inputs[good], target[good]
        if len(target) < ENOUGH_ROWS or target.std() == 0 or inputs.shape[1] < 2:
            return None
        found = _copies(inputs, target)
        if len(found) == 0:
            return None
        rest = np.setdiff1d(np.arange(inputs.shape[1]), found)
        column = int(found[-1])
        return {
            "column": column,
            "columns": int(inputs.shape[1]),
            "copies": len(found),
            "last_column": column == inputs.shape[1] - 1,
            "sample_shape": list(self.shape or ()),
            "rows": len(target),
            "left_unexplained": float(_residuals(inputs[:, column : column + 1], target)[0]),
            "explained_by_others": _explained(inputs[:, rest], target),
        }


def _copies(inputs: Array, target: Array) -> Array:
    if len(np.unique(target)) <= CLASSES and (target == np.round(target)).all():
        return _give_class_away(inputs, target)
    left = _residuals(inputs, target)
    copied = left < COPIED
    for column in np.flatnonzero(~copied & (left < 0.97)):  # log(y), y**2: a copy in other units
        copied[column] = _same_order(inputs[:, column], target)
    return np.flatnonzero(copied)


def _residuals(columns: Array, target: Array) -> Array:
    """Of each column: the spread of the target that a straight line through it leaves, over the whole spread."""
    spread = columns.std(0)
    apart = (target - target.mean()) / (target.std() * len(target))
    correlation = apart @ (columns - columns.mean(0)) / np.where(spread == 0, 1.0, spread)
    left: Array = np.sqrt(1 - np.minimum(np.abs(correlation), 1.0) ** 2)
    left[spread == 0] = 1.0
    return left


def _same_order(column: Array, target: Array) -> bool:
    if len(np.unique(column)) < 0.9 * len(column):
        return False
    order = np.argsort(column, kind="stable")
    steps = np.diff(target[order])
    slack = COPIED * target.std()  # columns are kept in single precision: neighbours may have changed places
    return bool((steps >= -slack).all() or (steps <= slack).all())


def _give_class_away(inputs: Array, target: Array) -> Array:
    """Columns in which every class but one has a value of its own, with every class seen often: the label under
    another name. Of two classes one is enough, when the other's values lie apart."""
    labels, counts = np.unique(target, return_counts=True)
    if len(labels) < 2 or counts.min() < 8:
        return np.empty(0, np.int64)
    spread = inputs.max(0) - inputs.min(0)
    open_columns = np.flatnonzero(spread > 0)
    missing = np.zeros(inputs.shape[1], np.int64)  # classes without a value of their own: one may be
    for label in labels:
        inside = target == label
        own = _own_value(inputs, inside, open_columns, spread)
        missing[open_columns[~own]] += 1
        open_columns = open_columns[missing[open_columns] <= 1]
    return open_columns


def _own_value(inputs: Array, inside: Array, columns: Array, spread: Array) -> Array:
    """Per column, whether the samples inside share a value that those outside stay away from. Of most columns the
    first question settles it, and it looks at one class only."""
    values = inputs[np.ix_(inside, columns)]
    own: Array = np.ptp(values, axis=0) <= 1e-6 * spread[columns]
    for place in np.flatnonzero(own):
        column = columns[place]
        outside = inputs[~inside, column]
        own[place] = np.abs(outside - values[0, place]).min() > 0.02 * spread[column]
    return own


def _explained(inputs: Array, target: Array) -> float:
    """Share of the target's variance that a linear map of the other columns explains, corrected for their number."""
    rows, columns = inputs.shape
    if columns == 0 or rows <= columns + 8:
        return 0.0
    spread = inputs.std(0)
    scaled = (inputs - inputs.mean(0))[:, spread > 0] / spread[spread > 0]
    wanted = target - target.mean()
    weights = np.linalg.lstsq(scaled, wanted, rcond=None)[0]
    left = ((wanted - scaled @ weights) ** 2).sum() / (wanted**2).sum()
    return float(1 - left * (rows - 1) / (rows - 1 - scaled.shape[1]))
