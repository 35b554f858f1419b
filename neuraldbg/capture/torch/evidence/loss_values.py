"""What the values that went into a loss say: ranges, row sums, labels, predictions. NumPy on small host copies."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]
Values = dict[str, Any]
MOST_LABELS = 64  # different labels that are counted one by one
FEWER = 256
FEW = 2048  # of which NumPy takes longer than Python
ROWS_OF_SCORES = 32_768  # elements of the predictions that are looked at
TARGETS = 32_768
MOST_CONFUSED = 12  # classes between which mistaken probability is told apart
LATELY = 8  # looks that are judged together
CLASSIFYING = ("cross_entropy", "nll", "picked_log_prob")


def first_rows(tensor: Tensor | None, elements: int) -> Tensor | None:
    """As many leading rows as fit."""
    if tensor is None or tensor.dim() == 0 or tensor.numel() <= elements:
        return tensor
    per_row = max(tensor.numel() // tensor.shape[0], 1)
    return tensor[: max(elements // per_row, 1)] if per_row <= 4 * elements else None


def class_rows(scores: Array, labels: Array | None = None) -> tuple[Array, Array | None]:
    """Scores as (rows, classes) and labels as (rows,): the class axis of an image or sequence is axis 1."""
    if scores.ndim == 1:
        return scores[None], None if labels is None else labels.reshape(-1)
    if scores.ndim > 2:
        scores = np.moveaxis(scores, 1, -1)
    rows = scores.reshape(-1, scores.shape[-1])
    if labels is None:
        return rows, None
    flat = labels.reshape(-1)
    fewest = min(len(rows), len(flat))
    return rows[:fewest], flat[:fewest]


def of_target(target: Array) -> Values:
    """Statistics of a target, whatever its sort."""
    if target.dtype.kind in "iub" and 0 < target.size <= FEWER:
        return _of_few(target.reshape(-1).tolist())
    numbers = target.astype(np.float64)
    whole = target.dtype.kind in "iub"
    finite = numbers.reshape(-1) if whole else numbers[np.isfinite(numbers)]
    if finite.size == 0:
        return {}
    ordered = np.sort(finite)
    middle = len(ordered) // 2
    facts: Values = {
        "target_min": float(ordered[0]),
        "target_max": float(ordered[-1]),
        "target_mean": float(finite.mean()),
        "target_std": float(finite.std()),
        "target_integer": whole or bool((finite == np.round(finite)).all()),
        "target_distinct": min(int(np.count_nonzero(ordered[1:] != ordered[:-1])) + 1, MOST_LABELS + 1),
        "target_median": float(ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2),
    }
    if target.ndim == 2 and target.shape[1] > 1 and target.dtype.kind == "f":
        sums = numbers.sum(1)
        facts["target_row_sums"] = [float(sums.min()), float(sums.mean()), float(sums.max())]
        facts["target_rows_sum_to_one"] = float((np.abs(sums - 1) < 1e-3).mean())
        facts["target_binary"] = bool(np.isin(numbers, (0.0, 1.0)).all())
    return facts


def _of_few(numbers: list[int]) -> Values:
    """The same of few whole numbers, for which NumPy's code has to be fetched into the processor's cache."""
    ordered, count = sorted(numbers), len(numbers)
    middle, mean = count // 2, sum(numbers) / count
    return {
        "target_min": float(ordered[0]),
        "target_max": float(ordered[-1]),
        "target_mean": mean,
        "target_std": math.sqrt(sum([(number - mean) ** 2 for number in numbers]) / count),
        "target_integer": True,
        "target_distinct": min(len(set(numbers)), MOST_LABELS + 1),
        "target_median": float(ordered[middle] if count % 2 else (ordered[middle - 1] + ordered[middle]) / 2),
    }


def is_input(given: Array, target: Array) -> bool:
    """Whether a target of zeros and ones is what the model was given, scaled or with parts left out: an autoencoder."""
    if given.shape != target.shape:
        return False
    there, wanted = given != 0, target != 0
    return bool(there.any(1).mean() > 0.5 and not (there & ~wanted).any())


def outside(target: Array, span: list[float | None]) -> float:
    """Share of the targets that lie clearly outside the range an activation can put out."""
    low, high = span
    if low is None:
        return 0.0
    finite = target[np.isfinite(target)].astype(np.float64)
    slack = 0.05 * (high - low if high is not None else max(float(finite.std()), 1e-12)) if finite.size else 0.0
    off = finite < low - slack
    if high is not None:
        off |= finite > high + slack
    return float(off.mean()) if finite.size else 0.0


def counted(values: list[Any]) -> dict[Any, int]:
    """How often each occurs. For few of them a Counter is slower: it begins with a question to an abstract class."""
    if len(values) > FEWER:
        return Counter(values)
    found: dict[Any, int] = {}
    for value in values:
        found[value] = found.get(value, 0) + 1
    return found


def label_counts(values: Array) -> dict[float, int] | None:
    """How often each value occurs; None when there are too many. Of few labels Python is quicker."""
    if values.dtype.kind in "iu" and values.size <= FEW:
        found = counted(values.reshape(-1).tolist())
        return None if len(found) > MOST_LABELS else {float(value): found[value] for value in sorted(found)}
    known, counts = np.unique(values, return_counts=True)
    if len(known) > MOST_LABELS:
        return None
    return {float(value): int(count) for value, count in zip(known, counts, strict=True)}


def sentinel_of(target: Array) -> Values:
    """A single value, far from all the rest, that occurs again and again: a marker for "missing" taken as a number."""
    finite = target[np.isfinite(target)].astype(np.float64)
    if finite.size < 32:
        return {}
    for value in (finite.min(), finite.max()):
        rest = finite[finite != value]
        share = 1 - rest.size / finite.size
        if rest.size < 16 or not 0.002 < share < 0.4:
            continue
        spread = rest.max() - rest.min()
        gap = min(abs(value - rest.min()), abs(value - rest.max()))
        if len(np.unique(rest)) >= 3 and finite.size - rest.size >= 2 and gap > 2 * spread:
            return {
                "sentinel": float(value),
                "sentinel_share": float(share),
                "sentinel_gap": float(gap / max(spread, 1e-12)),
            }
    return {}


def of_scores(scores: Array, labels: Array | None, ignore: int | None) -> Values:
    """Of a loss over classes: whether the rows are log-probabilities, and what is predicted."""
    rows, flat = class_rows(scores, labels)
    finite = np.isfinite(rows)
    if np.count_nonzero(finite) < finite.size:
        good = finite.all(1)
        rows, flat = rows[good], None if flat is None else flat[good]
    rows = rows.astype(np.float64)
    if rows.shape[0] == 0:
        return {}
    top = np.maximum.reduce(rows, 1, keepdims=True)
    shares = np.exp(rows - top)
    sums, best = np.add.reduce(shares, 1, keepdims=True), rows.argmax(1)
    chosen = np.bincount(best)
    major = int(chosen.argmax())
    facts: Values = {
        "classes": int(rows.shape[1]),
        "rows": int(rows.shape[0]),
        "log_normalised": _share(np.abs((top + np.log(sums))[:, 0]) < 0.02),
        "positive_scores": _share(rows > 1e-6),
        "probability_rows": _share(np.logical_and.reduce(rows >= 0, 1) & (np.abs(np.add.reduce(rows, 1) - 1) < 1e-3)),
        "prediction": major,
        "prediction_share": float(chosen[major] / len(rows)),
        "predictions_distinct": int(np.count_nonzero(chosen)),
        "row_spread": float(_mean(_deviations(rows))),
    }
    if flat is not None and flat.dtype.kind in "iu":
        counted = (flat >= 0) & (flat < rows.shape[1])
        if ignore is not None:
            facts["ignored_share"] = _share(flat == ignore)
            counted &= flat != ignore
        if rows.shape[1] <= MOST_CONFUSED:
            shares /= sums
        if np.count_nonzero(counted) == len(counted):
            facts |= _of_labels(rows, flat, best, shares)
        elif np.count_nonzero(counted):
            facts |= _of_labels(*[one[counted] for one in (rows, flat, best, shares)])
    return facts


def _share(flags: Array) -> float:
    """As `flags.mean()`, in a fifth of the time."""
    return float(np.count_nonzero(flags) / flags.size)


def _mean(numbers: Array) -> Any:
    """Of all, as `numbers.mean()`, without the Python in it."""
    return np.add.reduce(numbers, None) / numbers.size


def _deviations(numbers: Array) -> Array:
    """As `numbers.std(0)`."""
    off = numbers - np.add.reduce(numbers, 0) / len(numbers)
    found: Array = np.sqrt(np.add.reduce(off * off, 0) / len(numbers))
    return found


def _of_labels(rows: Array, labels: Array, best: Array, shares: Array) -> Values:
    """`best` = the class predicted, `shares` = the probabilities, of each row."""
    own = -rows[np.arange(len(rows)), labels]
    counts = np.bincount(labels.astype(np.int64, copy=False), minlength=rows.shape[1])
    major = int(counts.argmax())
    rest = labels != major
    right = best == labels
    others = int(np.count_nonzero(rest))
    facts: Values = {
        "label_share": float(counts[major] / len(labels)),
        "label_major": major,
        "accuracy": _share(right),
        "loss_on_major": float(_mean(own[~rest])),
        "loss_on_rest": float(_mean(own[rest])) if others else None,
        "rest": [others, int(np.count_nonzero(right & rest))],
    }
    if rows.shape[1] <= MOST_CONFUSED:
        together = np.zeros((rows.shape[1], rows.shape[1]))
        np.add.at(together, labels, shares)
        facts["shares"] = together
        into = shares[rest, major]
        facts["spread_into_major"] = float(_deviations(into)) if others else None
        facts["into_major"] = (major, others, float(np.add.reduce(into)), float(np.add.reduce(into * into)))
        facts["counts"] = counts
    return facts


@dataclass
class Lately:
    """What the last looks saw of the classes: each batch by itself may hold few of a rare one."""

    rest: deque[tuple[int, int]] = field(default_factory=partial(deque, maxlen=LATELY))
    shares: deque[tuple[Array, Array]] = field(default_factory=partial(deque, maxlen=LATELY))
    into: deque[tuple[int, int, float, float]] = field(default_factory=partial(deque, maxlen=LATELY))

    def add(self, facts: Values) -> Values:
        """Takes what one look saw out of its facts, and gives what all of them together say."""
        rest, shares, counts, into = (facts.pop(name, None) for name in ("rest", "shares", "counts", "into_major"))
        if rest is None:
            return {}
        self.rest.append(rest)
        found: Values = {"rare_seen": sum(n for n, _ in self.rest), "rare_found": sum(n for _, n in self.rest)}
        if shares is not None and counts is not None:
            self.shares.append((shares, counts))
            fitting = [one for one in self.shares if one[0].shape == shares.shape]
            number = np.maximum(sum(one[1] for one in fitting), 1)
            mean = np.round(sum(one[0] for one in fitting) / number[:, None], 3)
            found |= {"confusion": mean.tolist(), "confusion_rows": number.tolist()}
        return found | self._spread(into)

    def _spread(self, into: tuple[int, int, float, float] | None) -> Values:
        """How much the probability of the most common label differs between samples of all others."""
        if into is None:
            return {}
        self.into.append(into)
        same = [one for one in self.into if one[0] == into[0]]
        number, total, squares = (sum(one[at] for one in same) for at in (1, 2, 3))
        if not number:
            return {}
        return {"spread_into_major": math.sqrt(max(squares / number - (total / number) ** 2, 0.0))}


def of_numbers(predictions: Array, target: Array | None) -> Values:
    """Of a loss over numbers: the scale of the predictions beside that of the target, and whether all are one."""
    values = predictions[np.isfinite(predictions)].astype(np.float64)
    if values.size == 0:
        return {}
    facts: Values = {
        "input_min": float(values.min()),
        "input_max": float(values.max()),
        "input_mean": float(values.mean()),
        "input_std": float(values.std()),
        "input_in_unit": float(((values >= 0) & (values <= 1)).mean()),
    }
    if predictions.ndim and predictions.shape[0] > 1:
        facts["row_spread"] = float(predictions.astype(np.float64).std(0).mean())
    if target is not None and target.shape == predictions.shape:
        off = (predictions - target).astype(np.float64)
        off = off[np.isfinite(off)]
        if off.size:
            facts["error_rms"] = float(np.sqrt((off**2).mean()))
            facts["bias"] = float(off.mean())
    return facts


def pairs_every_sample(difference: Array, prediction: tuple[int, ...]) -> bool | None:
    """Whether `prediction[i] - target[j]` was taken for all pairs: the target then has one value per row or column."""
    if difference.ndim != 2 or min(difference.shape) < 3:
        return None
    turned = difference if prediction[-1:] == (1,) and len(prediction) == 2 else difference.T
    moved = turned - turned[:1]
    scale = float(np.abs(turned).max()) or 1.0
    return bool((np.abs(moved - moved[:, :1]) <= 1e-4 * scale).all())
