"""The tensor inspector: what was looked at, what is unusual about it, what still lives, and how two of them differ."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from neuraldbg.analysis.results import Result
from neuraldbg.capture.arrays import Numbers, numbers_of
from neuraldbg.debug.alerts import Alerts, AlertSeverity, TensorAlert
from neuraldbg.debug.comparing import Kept, TensorComparison, compared, kept
from neuraldbg.debug.leaks import Living
from neuraldbg.debug.record import Record
from neuraldbg.debug.settings import DebugConfig, Sampling
from neuraldbg.debug.tensors import BINS, Look, TensorDistribution, TensorStats, look_at, look_of
from neuraldbg.errors import NotRecorded, nearest
from neuraldbg.records import Kind

TOGETHER: Final = 256  # looks of hooks that are written down together
LARGEST_KEPT: Final = 4  # a copy takes no more than this part of the bytes that copies may take
KINDS: Final = {
    **dict.fromkeys(("forward", "activation", "output"), Kind.ACTIVATION),
    **dict.fromkeys(("backward", "gradient", "grad"), Kind.GRADIENT),
    **dict.fromkeys(("parameter", "weight", "bias"), Kind.PARAMETER),
    "update": Kind.UPDATE,
    "input": Kind.INPUT,
    "target": Kind.TARGET,
}


@dataclass(frozen=True, eq=False)
class TensorInfo(Result):
    """One look at one tensor."""

    id: int
    name: str
    layer_name: str | None
    operation: str | None
    timestamp: float
    step: int
    stats: TensorStats
    distribution: TensorDistribution | None = None
    gradient_stats: TensorStats | None = None


def _place(name: str, layer: str | None, operation: str | None) -> tuple[Kind, str]:
    """What a tensor is, and where in the trace it belongs."""
    kind = KINDS.get((operation or "forward").lower(), Kind.ACTIVATION)
    inside = layer and kind in (Kind.PARAMETER, Kind.UPDATE)
    return kind, f"{layer}.{name}" if inside else layer or name


def describe(tensor: Any, *, bins: int = BINS) -> tuple[TensorStats, TensorDistribution]:
    """Statistics and distribution of anything that holds numbers, without a session."""
    look = look_at(tensor, bins=bins)
    return look.stats, look.distribution


def compare(one: Any, other: Any) -> TensorComparison:
    """How far two arrays or tensors are apart, without a session."""
    return compared(kept(one), kept(other))


class TensorInspector:
    """Keeps the newest `max_tracked_tensors` looks; the oldest go first."""

    def __init__(self, config: DebugConfig, record: Record, alerts: Alerts) -> None:
        self._config, self._record, self._alerts = config, record, alerts
        self._infos: OrderedDict[int, TensorInfo] = OrderedDict()
        self._copies: OrderedDict[int, Kept] = OrderedDict()
        self._copied_bytes = 0
        self._shapes: dict[tuple[str, str | None], tuple[int, ...]] = {}
        self._sampling = Sampling(config.sampling_rate)
        self._waiting: deque[tuple[Any, str, str, int, float]] = deque()
        self._lock = threading.RLock()
        self._next = 1
        self.living = Living()
        self.evicted = 0
        alerts.settle = self.settle

    def __call__(self) -> TensorInspector:
        return self

    # -- looking -----------------------------------------------------------------------------------------------------

    def inspect_tensor(
        self,
        tensor: Any,
        name: str,
        layer: str | None = None,
        operation: str | None = None,
        *,
        gradient: Any = None,
        distribution: bool = True,
    ) -> int | None:
        """Looks at a tensor and returns the id of that look; None where this call is not sampled.

        `operation` says what it is: forward, backward, parameter, input, target or a word of your own. `gradient`: its
        gradient, looked at with it. Without `distribution` the values are not put in order: no median, percentiles
        and outliers, at a tenth of the time.
        """
        if not self._config.enable_tensor_inspection:
            return None
        step = self._record.comes((*_place(name, layer, operation), name))  # calls that are not sampled count too
        if not self._sampling.takes((name, layer, operation)):
            return None
        numbers = numbers_of(tensor)
        self.settle()
        look = look_at(numbers, distribution=distribution)
        of_gradient = None if gradient is None else look_at(gradient, distribution=False)
        info = self._keep(look, of_gradient, name, layer, operation, (step, time.time()))
        self._copy(info, tensor, numbers)
        self.living.note(name, layer, tensor, look.stats.memory_usage_bytes, info.step)
        self._judge(info)
        return info.id

    def took(self, look: Look, layer: str, operation: str, step: int) -> int:
        """Takes over a look at a layer that somebody else had, such as a hook."""
        self.settle()
        info = self._keep(look, None, layer, layer, operation, (step, time.time()))
        self._judge(info)
        return info.id

    def later(self, raw: Any, layer: str, operation: str, step: int) -> None:
        """The same of a raw look: written down together with others, at once where it holds a NaN or an infinity."""
        waiting = self._waiting
        waiting.append((raw, layer, operation, step, time.time()))
        if len(waiting) >= TOGETHER or waiting[0][3] != step or raw.row[7] or raw.row[8]:
            self.settle()

    def settle(self) -> None:
        """Writes down what waits."""
        while self._waiting:
            try:
                raw, layer, operation, step, when = self._waiting.popleft()
            except IndexError:  # another thread was quicker
                return
            self._judge(self._keep(look_of(raw), None, layer, layer, operation, (step, when)))

    def _keep(
        self,
        look: Look,
        of_gradient: Look | None,
        name: str,
        layer: str | None,
        operation: str | None,
        moment: tuple[int, float],
    ) -> TensorInfo:
        kind, path = _place(name, layer, operation)
        step, when = moment
        with self._lock:
            number, self._next = self._next, self._next + 1
            info = TensorInfo(
                id=number,
                name=name,
                layer_name=layer,
                operation=operation,
                timestamp=when,
                step=step,
                stats=look.stats,
                distribution=look.distribution,
                gradient_stats=None if of_gradient is None else of_gradient.stats,
            )
            self._infos[number] = info
            while len(self._infos) > self._config.max_tracked_tensors:
                gone, _ = self._infos.popitem(last=False)
                self._forget_copy(gone)
                self.evicted += 1
        self._record.stats(path, kind, look.row, name=name, step=step)
        if of_gradient is not None:
            self._record.stats(path, Kind.GRADIENT, of_gradient.row, name=name, step=step)
        return info

    def _copy(self, info: TensorInfo, tensor: Any, numbers: Numbers) -> None:
        """For comparisons: the tensor itself may change or go."""
        most = self._config.max_kept_bytes
        if numbers.sparse or max(numbers.memory_bytes, 4 * numbers.compact.size) > most / LARGEST_KEPT:
            return
        copy = kept(tensor)
        with self._lock:
            self._copies[info.id] = copy
            self._copied_bytes += copy.values.nbytes
            while self._copied_bytes > most and len(self._copies) > 1:
                self._forget_copy(next(iter(self._copies)))

    def _forget_copy(self, number: int) -> None:
        copy = self._copies.pop(number, None)
        if copy is not None:
            self._copied_bytes -= copy.values.nbytes

    # -- asking ------------------------------------------------------------------------------------------------------

    def get_tensor_info(self, tensor_id: int | None) -> TensorInfo | None:
        """None where it was not sampled, or the newest ones have taken its place."""
        self.settle()
        return None if tensor_id is None else self._infos.get(tensor_id)

    def get_tensors(self, *, name: str | None = None, layer: str | None = None) -> list[TensorInfo]:
        """The looks that are kept, oldest first."""
        self.settle()
        with self._lock:
            infos = list(self._infos.values())
        return [
            one for one in infos if (name is None or one.name == name) and (layer is None or one.layer_name == layer)
        ]

    def compare_tensors(self, tensor1_id: int, tensor2_id: int) -> TensorComparison:
        """Two looks: of one tensor at two steps, or of two layers."""
        one, other = self._copy_of(tensor1_id), self._copy_of(tensor2_id)
        return compared(one, other, (tensor1_id, tensor2_id))

    def compare_steps(self, name: str, *, layer: str | None = None) -> TensorComparison:
        """The newest look at a tensor with the one before it of the same layer and operation."""
        looks = [one for one in self.get_tensors(name=name, layer=layer) if one.id in self._copies]
        last = looks[-1:] and (looks[-1].layer_name, looks[-1].operation)
        seen = [one.id for one in looks if (one.layer_name, one.operation) == last]
        if len(seen) < 2:
            known = sorted({one.name for one in self._infos.values()})
            near = nearest(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near and near[0] != name else f"{len(seen)} of it are kept"
            raise NotRecorded(f"no two values of {name!r} to compare; {hint}")
        return self.compare_tensors(seen[-2], seen[-1])

    def _copy_of(self, number: int) -> Kept:
        copy = self._copies.get(number)
        if copy is not None:
            return copy
        if number not in self._infos:
            raise NotRecorded(f"no tensor {number} is kept: the newest {self._config.max_tracked_tensors} are")
        limit = self._config.max_kept_bytes / 1e6
        raise NotRecorded(
            f"the values of tensor {number} are not kept: copies take {limit:.0f} MB in all, a quarter of it each; "
            "raise max_kept_bytes, or compare arrays with neuraldbg.debug.compare"
        )

    @property
    def alerts(self) -> list[TensorAlert]:
        """All that are kept, oldest first."""
        return list(self._alerts)

    def get_alerts(self, severity: AlertSeverity | None = None) -> list[TensorAlert]:
        """Those of one severity, or all."""
        return [one for one in self._alerts if severity is None or one.severity is severity]

    def memory_report(self) -> dict[str, Any]:
        """Bytes of the tensors that were looked at and still live, and which of them pile up."""
        return self.living.report()

    def clear(self, *, older_than: int | None = None) -> None:
        """Forgets all looks, or those of steps before `older_than`."""
        self.settle()
        with self._lock:
            gone = [one.id for one in self._infos.values() if older_than is None or one.step < older_than]
            for number in gone:
                del self._infos[number]
                self._forget_copy(number)

    # -- judging -----------------------------------------------------------------------------------------------------

    def _judge(self, info: TensorInfo) -> None:
        for kind, severity, text, value in self._unusual(info):
            place = info.layer_name or info.name
            message = f"{info.name} at step {info.step}: {text}"
            self._alerts.raised(TensorAlert(kind, severity, message, place, info.id, info.step, value))

    def _unusual(self, info: TensorInfo) -> Iterable[tuple[str, AlertSeverity, str, float | None]]:
        stats, config = info.stats, self._config
        if stats.nan_count:
            yield "NaNValues", AlertSeverity.Critical, f"{stats.nan_count} of {stats.total_elements} are NaN", None
        if stats.inf_count:
            yield "InfiniteValues", AlertSeverity.Critical, f"{stats.inf_count} values are infinite", None
        if stats.infinity_norm is not None and stats.infinity_norm > config.extreme_value:
            yield (
                "ExtremeValues",
                AlertSeverity.Warning,
                f"magnitudes up to {stats.infinity_norm:.3g}",
                stats.infinity_norm,
            )
        gradient = stats if KINDS.get((info.operation or "").lower()) is Kind.GRADIENT else info.gradient_stats
        if gradient is not None and gradient.l2_norm is not None and gradient.total_elements:
            norm = gradient.l2_norm
            if norm < config.tensor_vanishing:
                yield "VanishingGradients", AlertSeverity.Warning, f"the gradient's norm is {norm:.3g}", norm
            if norm > config.tensor_exploding:
                yield "ExplodingGradients", AlertSeverity.Warning, f"the gradient's norm is {norm:.3g}", norm
        if stats.memory_usage_bytes > config.large_tensor_bytes:
            size = stats.memory_usage_bytes
            yield "MemoryUsage", AlertSeverity.Warning, f"it takes {size / 2**20:.0f} MB", float(size)
        yield from self._another_shape(info)

    def _another_shape(self, info: TensorInfo) -> Iterable[tuple[str, AlertSeverity, str, float | None]]:
        key = (info.name, info.layer_name)
        before = self._shapes.get(key)
        if len(self._shapes) < Sampling.MOST_NAMES or before is not None:
            self._shapes[key] = info.stats.shape
        if before is None or before == info.stats.shape:
            return
        smaller_batch = before[1:] == info.stats.shape[1:] and len(before) == len(info.stats.shape)
        severity = AlertSeverity.Info if smaller_batch else AlertSeverity.Warning
        yield "ShapeMismatch", severity, f"its shape was {before} and is {info.stats.shape}", None
