"""Is this sample of a layer unlike those before it? Three methods look; two must agree, or one be very sure.

z-score      a metric is many standard deviations from its mean
iqr_based    a metric is many interquartile ranges beyond its quartiles; a past fault does not blind it
forest       the sample as a whole is soon set apart (isolation forest). By the meaning of contamination it marks
             1 - sensitivity of all healthy samples, hence it never raises an alarm alone

A metric raises no alarm where that is nothing new: where more than 1 % of its remembered values, and more than five,
lie as far out. Of noise, normal or lognormal, 0.2 to 0.6 % of all samples are anomalies at the default (measured).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from neuraldbg.analysis.anomalies.layer import LayerHistory
from neuraldbg.analysis.anomalies.samples import as_number, numbers_of
from neuraldbg.analysis.anomalies.thresholds import DEFAULT, Thresholds, sigma_to_iqr
from neuraldbg.analysis.anomalies.window import Window
from neuraldbg.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Self

HISTORY = 1000  # samples of a layer
Z_SAMPLES, IQR_SAMPLES = 5, 10  # of a metric, before a method judges it
VANISHING_SAMPLES, VANISHED = 30, 1e-3  # of the smallest remembered
TAIL_SAMPLES = 100  # of a metric, before its tails are known
SURE = 2.0  # times its threshold: then one method is enough
CEILING = 1e9  # no score is further from 0: scores are always JSON. That of a value which is not finite
STATISTICS_NAMES = {  # as the original dashboard calls them; every other metric keeps its own name
    "execution_time": "execution_times",
    "memory": "memory_usage",
    "mean_activation": "activations",
    "grad_norm": "gradients",
}


@dataclass(frozen=True, slots=True)
class Judgement:
    """One sample, judged by what was remembered of its layer."""

    is_anomaly: bool
    scores: dict[str, float]  # z by metric; "iqr_based", "isolation_forest", "custom" where they have one
    metrics: tuple[str, ...]  # those that a method finds unusual
    methods: tuple[str, ...]  # which do: "z_score", "iqr_based", "isolation_forest", "custom"


@dataclass(frozen=True, slots=True)
class _Opinion:
    """Of one metric: its two scores, each as a number and as a share of the threshold."""

    z: float
    iqr: float | None
    z_share: float
    iqr_share: float | None

    @property
    def by_z(self) -> bool:
        return self.z_share > 1

    @property
    def by_iqr(self) -> bool:
        return self.iqr_share is not None and self.iqr_share > 1

    @property
    def is_sure(self) -> bool:
        if self.iqr_share is None:
            return self.by_z  # nobody else to ask
        return (self.by_z and self.by_iqr) or max(self.z_share, self.iqr_share) > SURE


class AnomalyDetector:
    """Remembers the last `history` samples of every layer. One thread at a time."""

    def __init__(self, sensitivity: float = DEFAULT, history: int = HISTORY) -> None:
        if not 0 <= sensitivity <= 1:
            raise UsageError(f"anomaly sensitivity is {sensitivity}; it goes from 0 (most alarms) to 1 (fewest)")
        if history < 1:
            raise UsageError(f"anomaly history is {history} samples; it takes at least 1, usually {HISTORY}")
        self.sensitivity = sensitivity
        self.history = history
        self.layers: dict[str, LayerHistory] = {}
        self._thresholds = Thresholds(sensitivity)

    def add_sample(self, layer: str, metrics: Mapping[str, Any]) -> None:
        """Remembers every metric that is a finite number."""
        finite, _ = numbers_of(metrics)
        if finite:
            self.layers.setdefault(layer, LayerHistory(self.history)).add(finite)

    def detect_anomalies(self, layer: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """`{"is_anomaly": bool, "scores": {metric: z, ..., "iqr_based": ..., "isolation_forest": ...}}`.

        Remembers nothing. A NaN or an infinity is an anomaly from the first sample on, with the largest scores.
        """
        judged = self.judge(layer, metrics)
        return {"is_anomaly": judged.is_anomaly, "scores": judged.scores}

    def detect_custom_anomaly(self, layer_name: str, metrics: Any) -> tuple[bool, float] | None:  # noqa: ARG002
        """For subclasses: whether the sample is an anomaly, and a score. None has no say.

        `metrics` maps names to numbers; declared so that a subclass may call it a dict, a Mapping or nothing at all.
        """
        return None

    def get_layer_statistics(self, layer: str) -> dict[str, dict[str, float]]:
        """Mean, std, min, max and median of what is remembered, by metric; empty for an unknown layer."""
        known = self.layers.get(layer)
        columns = known.columns if known else {}
        return {STATISTICS_NAMES.get(name, name): _statistics(each.window) for name, each in sorted(columns.items())}

    def judge(self, layer: str, metrics: Mapping[str, Any], *, every_score: bool = True) -> Judgement:
        """With what convinced us. Without `every_score` the forest is asked only where its vote decides."""
        finite, broken = numbers_of(metrics)
        known = self.layers.get(layer)
        opinions = self._opinions(known, finite) if known else {}
        by_z = [name for name, each in opinions.items() if each.by_z]
        by_iqr = [name for name, each in opinions.items() if each.by_iqr]
        is_anomaly = bool(broken) or any(each.is_sure for each in opinions.values())
        forest = None
        if known and opinions and (every_score or ((by_z or by_iqr) and not is_anomaly)):
            forest = known.current_forest(self._thresholds.contamination)
        forest_score = forest.score(finite) if forest else None
        by_forest = forest is not None and forest_score is not None and forest_score > forest.threshold
        is_anomaly |= by_forest and bool(by_z or by_iqr)
        custom, custom_score = self._custom(layer, metrics)
        votes = {
            "z_score": bool(by_z or broken),
            "iqr_based": bool(by_iqr or broken),
            "isolation_forest": by_forest or bool(broken),
            "custom": custom,
        }
        return Judgement(
            is_anomaly=is_anomaly or custom,
            scores={**_scores(opinions, broken, forest_score), **custom_score},
            metrics=tuple(sorted({*by_z, *by_iqr, *broken})),
            methods=tuple(method for method, votes_for in votes.items() if votes_for),
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Everything remembered and every forest grown, in one file."""
        from neuraldbg.analysis.anomalies.storage import write

        write(self, path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """As it was saved; a file that cannot be read is a NeuralDbgError that says why."""
        from neuraldbg.analysis.anomalies.storage import read

        sensitivity, history, layers = read(path)
        detector = cls(sensitivity=sensitivity, history=history)
        detector.layers = layers
        return detector

    def _opinions(self, known: LayerHistory, finite: Mapping[str, float]) -> dict[str, _Opinion]:
        columns = known.columns
        windows = {name: columns[name].window for name in finite if name in columns}
        windows = {name: window for name, window in windows.items() if len(window) >= Z_SAMPLES}
        moving = sum(window.sorted[0] < window.sorted[-1] for window in windows.values())
        return {name: self._opinion(window, finite[name], max(moving, 1)) for name, window in windows.items()}

    def _opinion(self, window: Window, value: float, metrics: int) -> _Opinion:
        count, scales = len(window), window.usual()
        if count >= VANISHING_SAMPLES and 0 <= value < VANISHED * window.sorted[0]:
            scales = scales[-1:]  # the logarithm where it is in question: chance does not bring so small a value
        usual = min(scales, key=lambda each: abs(each.z(value)))
        z, iqr = usual.z(value), min(each.iqr(value) for each in scales)
        z_share, iqr_share = abs(z) / self._thresholds.z(count, metrics), iqr / self._thresholds.iqr(count, metrics)
        if max(z_share, iqr_share) > 1:
            if window.as_far(value) > self._thresholds.rare(count):
                z_share = iqr_share = 0.0
            elif count >= TAIL_SAMPLES:  # a long tail has its own idea of far
                edge, sigma = window.far_out(above=value > window.quantile(0.5))
                z_share /= max(1.0, abs(usual.z(edge)) / sigma)
                iqr_share /= max(1.0, usual.iqr(edge) / sigma_to_iqr(sigma))
        if count < IQR_SAMPLES:
            return _Opinion(z, None, z_share, None)
        return _Opinion(z, iqr, z_share, iqr_share)

    def _custom(self, layer: str, metrics: Mapping[str, Any]) -> tuple[bool, dict[str, float]]:
        answer: Any = self.detect_custom_anomaly(layer, metrics)
        if answer is None:
            return False, {}
        try:
            found, score = answer
        except (TypeError, ValueError):
            raise UsageError(
                f"{type(self).__name__}.detect_custom_anomaly gave {answer!r} for {layer!r}; "
                "it returns whether the sample is an anomaly, and a score"
            ) from None
        number = as_number(score)
        return bool(found), {} if number is None else {"custom": _bounded(number)}


def _scores(
    opinions: Mapping[str, _Opinion], broken: Mapping[str, float], forest_score: float | None
) -> dict[str, float]:
    scores = {name: _bounded(each.z) for name, each in opinions.items()}
    ranges = [_bounded(each.iqr) for each in opinions.values() if each.iqr is not None]
    if ranges:
        scores["iqr_based"] = max(ranges)
    if forest_score is not None:
        scores["isolation_forest"] = forest_score
    if broken:
        worst = {name: _bounded(value) for name, value in broken.items()}
        scores.update(worst, iqr_based=CEILING, isolation_forest=1.0)
    return scores


def _bounded(score: float) -> float:
    return CEILING if math.isnan(score) else max(-CEILING, min(CEILING, score))


def _statistics(window: Window) -> dict[str, float]:
    return {
        "mean": window.moments.mean,
        "std": window.moments.std,
        "min": window.sorted[0],
        "max": window.sorted[-1],
        "median": window.quantile(0.5),
    }
