"""Calls of torch's loss functions: what an evaluation gives, which labels a training batch holds, how large targets
are.

The functions that torch.nn.functional and the loss modules end in are replaced (torch._C._nn.cross_entropy_loss, ...);
TorchScript knows its operators by identity, so ours are written into its table for as long as they stand there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.jit import _builtins

from neuraldbg.capture.torch.core import cannot_look, now_ns
from neuraldbg.capture.torch.evidence.data_relation import Relation
from neuraldbg.capture.torch.evidence.data_sets import DataSets
from neuraldbg.capture.torch.evidence.loss_values import counted
from neuraldbg.capture.torch.evidence.rows import Array, as_array
from neuraldbg.capture.torch.stats import measurable

# where it stands, its name, what we call it, which argument says how it is reduced
WATCHED: tuple[tuple[Any, str, str, int], ...] = (
    (torch._C._nn, "cross_entropy_loss", "cross_entropy", 3),
    (torch._C._nn, "nll_loss_nd", "nll", 3),
    (torch._C._nn, "mse_loss", "mse", 2),
    (torch._C._nn, "l1_loss", "l1", 2),
    (torch._C._nn, "smooth_l1_loss", "smooth_l1", 2),
    (torch._C._nn, "huber_loss", "huber", 2),
    (torch._C._nn, "binary_cross_entropy", "bce", 3),
    (torch, "binary_cross_entropy_with_logits", "bce_with_logits", 4),
    (torch, "kl_div", "kl_div", 2),
)
OVER_CLASSES = ("cross_entropy", "nll")
SUMMED = 2  # torch's number for reduction="sum"
FIRST_CALLS = 96  # whose labels are counted
SPACING = 1.1  # later ones: each so many times further into the run
MOST_BATCHES = 192
MOST_LABELS = 32  # different ones in a batch
SMALL = 65_536  # elements
FEW = 1024  # of them
SERIES = 4  # lines that evaluate
SEEN = 0.5  # share of rows trained on, from which on an evaluation is one of the training data
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_NEURALDBG = os.path.abspath(__file__).split(f"{os.sep}capture{os.sep}")[0] + os.sep
CLOSELY = 512  # calls of losses that are all looked at


@dataclass
class Labels:
    """Labels of the batches of one loss function."""

    kind: str
    source: int
    calls: int = 0
    next_call: float = 0.0
    batches: list[list[Any]] = field(default_factory=list)  # [step, [[label, count], ...]]


class LossCalls:
    """Series `eval_loss` (and `eval_loss.1`, ... of further lines, `eval_loss.seen` on training rows): one value per
    evaluation, the mean over its batches. Series `target_peak`. A fact `label_batches` for each classifying loss."""

    def __init__(self, capture: Any, sets: DataSets) -> None:
        self.core = capture.core
        self.sets = sets
        self.relation = Relation(self.core)
        self._sums: dict[tuple[str, int], list[float]] = {}  # (series, step) -> sum, weight
        self._series: dict[int, str] = {}  # line -> series
        self._labels: dict[tuple[str, int], Labels] = {}
        self._calls = 0
        self._spared = 0  # further calls of which nothing is wanted
        self._only: Labels | None = None  # whose they are
        self._ended = False
        self._seen = self.core.guard.shield("calls of losses")(self._called)
        for owner, name, kind, reduced in WATCHED:
            original = getattr(owner, name, None)
            if original is not None:
                self._replace(capture.patches, owner, name, self._watched(original, kind, reduced))
        self.core.take_part("update_done", "evaluation losses", self._flush, rarely=True)
        self.core.take_part("ending", "evaluation losses", self._ending)

    def _watched(self, original: Callable[..., Any], kind: str, reduced: int) -> Callable[..., Any]:
        @wraps(original)
        def loss(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            core = self.core
            if core.heard is not core.moments and torch.is_grad_enabled():
                if self._calls >= CLOSELY:
                    return result  # of a training that has been followed for long, now and then
                if self._spared and core.on and self._only is not None and self._only.kind == kind:
                    self._spared -= 1
                    self._calls += 1
                    self._only.calls += 1
                    return result
            if core.on and not cannot_look():
                self._seen(kind, reduced, args, result, sys._getframe(1))
            return result

        return loss

    @staticmethod
    def _replace(patches: Any, owner: Any, name: str, ours: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        patches.replace(owner, name, ours)
        known = _builtins._find_builtin(original)  # type: ignore[no-untyped-call]
        if known is not None:
            _builtins._register_builtin(ours, known)
            patches.undo(_builtins._get_builtin_table().pop, id(ours), None)  # type: ignore[no-untyped-call]

    def _called(self, kind: str, reduced: int, args: tuple[Any, ...], result: Any, frame: FrameType) -> None:
        if len(args) < 2 or not isinstance(result, Tensor) or not isinstance(args[1], Tensor) or _ours(frame):
            return
        begin = now_ns()
        target = args[1]
        self._calls += 1
        if not torch.is_grad_enabled():
            summed = len(args) > reduced and args[reduced] == SUMMED
            self._evaluated(kind, target, result, summed=summed)
        elif result.requires_grad and target.device.type == "cpu" and target.dim() > 0 and not target.requires_grad:
            self._trained(kind, target)
        self.core.own_ns += now_ns() - begin

    # -- evaluation ----------------------------------------------------------------------------------------------------

    def _evaluated(self, kind: str, target: Tensor, result: Tensor, *, summed: bool) -> None:
        if result.numel() != 1 or target.dim() == 0 or not target.numel() or self.core.recorder.step == 0:
            return
        shared = self.sets.evaluated_on_trained
        line = self.core.recorder.source(5)
        if shared is not None and shared >= SEEN:
            series = "eval_loss.seen"
        elif line in self._series:
            series = self._series[line]
        elif len(self._series) < SERIES:
            series = self._series[line] = f"eval_loss.{len(self._series)}" if self._series else "eval_loss"
        else:
            return
        rows = float(len(target))
        count = (rows if kind in OVER_CLASSES else float(target.numel())) if summed else 1.0
        key = (series, self.core.recorder.step)
        self.core.device.scalar(result.detach(), lambda value: self._add(key, value / count, rows))

    def _add(self, key: tuple[str, int], value: float, weight: float) -> None:
        if self._ended:
            self.core.recorder.scalar(key[0], value, step=key[1])
            return
        sums = self._sums.setdefault(key, [0.0, 0.0])
        sums[0] += value * weight
        sums[1] += weight

    def _flush(self, *_: Any) -> None:
        """Evaluations of earlier steps; the numbers of a device arrive a little later."""
        if self._sums:
            now = self.core.recorder.step
            for key in [key for key in self._sums if self._ended or key[1] < now]:
                total, weight = self._sums.pop(key)
                self.core.recorder.scalar(key[0], total / weight, step=key[1])

    def _ending(self) -> None:
        self._ended = True
        self._flush()
        for labels in self._labels.values():
            self._write(labels)

    # -- training ------------------------------------------------------------------------------------------------------

    def _trained(self, kind: str, target: Tensor) -> None:
        if self.core.budget.share == 0.0:
            return
        self.sets.loss_called(target)
        self.relation.add(kind, self.sets.last_input(), target)
        if kind in OVER_CLASSES or kind.startswith("bce"):
            self._count(kind, target)
        elif target.is_floating_point() and target.numel() <= SMALL:
            array = as_array(target)
            if array is not None and array.dtype.kind == "f" and array.size:
                self.core.recorder.scalar("target_peak", float(np.abs(array).max()))

    def _count(self, kind: str, target: Tensor) -> None:
        source = self.core.recorder.source(6)
        labels = self._labels.get((kind, source))
        if labels is None:
            if len(self._labels) >= 8:
                return
            labels = self._labels[kind, source] = Labels(kind, source)
        labels.calls += 1
        if (labels.calls > FIRST_CALLS and labels.calls < labels.next_call) or len(labels.batches) >= MOST_BATCHES:
            return
        labels.next_call = labels.calls * SPACING
        if labels.calls > FIRST_CALLS and len(self._labels) == 1 and self.relation.over and self.sets.settled:
            self._only, self._spared = labels, int(labels.next_call) - labels.calls - 1
        counts = _counts_of(target)
        if counts is not None:
            labels.batches.append([self.core.recorder.step, counts])
        if labels.calls == FIRST_CALLS:
            self._write(labels)

    def _write(self, labels: Labels) -> None:
        if labels.batches:
            self.core.recorder.fact(
                "label_batches",
                kind=labels.kind,
                source_id=labels.source,
                calls=labels.calls,
                batches=labels.batches,
            )


def _ours(frame: FrameType | None) -> bool:
    """Whether a loss is computed by another part of the debugger, which runs recorded passes again."""
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_NEURALDBG)


def _counts_of(target: Tensor) -> list[list[int]] | None:
    """[label, count] of whole labels; None for probabilities and for very many labels."""
    plain = type(target) is Tensor and target.layout == torch.strided and not target.is_complex()
    if plain and target.numel() <= FEW and measurable(target):
        found = counted(target.tolist() if target.dim() == 1 else target.flatten().tolist())
        if len(found) > MOST_LABELS:
            return None
        if set(map(type, found)) != {int} and not all(float(one).is_integer() for one in found):
            return None
        return [[int(label), found[label]] for label in sorted(found)]
    array = as_array(target)
    return None if array is None or array.size > SMALL else _counts(array)


def _counts(array: Array) -> list[list[int]] | None:
    """The same of an array; of few labels Python is quicker: once NumPy's code has left the processor's cache it takes
    100 us."""
    values, counts = np.unique(array, return_counts=True)
    if len(values) > MOST_LABELS or not np.array_equal(values, np.floor(values)):
        return None
    return [[int(value), int(count)] for value, count in zip(values, counts, strict=True)]
