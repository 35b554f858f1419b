"""Cross entropy over targets that are all ignored: nothing to learn, and with a mean 0/0."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor

from neuraldbg.capture.torch.evidence.graph_walk import LEAF, Walk, known_walk
from neuraldbg.capture.torch.loss import packed
from neuraldbg.capture.torch.origin.graph import saved

if TYPE_CHECKING:
    from neuraldbg.capture.torch.attach import TorchCapture

MOST_FACTS = 20
NODES = 600
FEW = 1024


class MaskedLabels:
    """Looks where the loss is exactly 0 or NaN, and on full steps."""

    def __init__(self, capture: TorchCapture) -> None:
        self.core = capture.core
        self._left = MOST_FACTS
        self._none_left = self._looked = 0
        self.core.take_part("backward_begun", "masked labels", self._begun, rarely=True)  # and of odd losses
        self.core.take_part("ending", "masked labels", self._ending)

    def _begun(self, loss: Tensor | None, _: int) -> None:
        value = self.core.recorder.latest.get("loss", 1.0)
        suspicious = value == 0.0 or math.isnan(value)
        if not (suspicious or self.core.looking):
            return
        if loss is None or loss.device.type != "cpu" or loss.grad_fn is None:
            return
        graph = known_walk(self.core, loss)
        for node in _over_labels(loss.grad_fn) if graph is None else _met(graph):
            self._look(saved(node, "target", "ignore_index"), value)

    def _look(self, kept: dict[str, Any], value: float) -> None:
        target, ignored = kept.get("target"), kept.get("ignore_index")
        if not isinstance(target, Tensor) or not isinstance(ignored, int) or not target.numel():
            return
        if ignored >= 2**63:
            ignored -= 2**64  # the graph keeps -100 as an unsigned number
        self._looked += 1
        if _counts_some(target, ignored):
            return
        self._none_left += 1
        if self._left:
            self._left -= 1
            recorder = self.core.recorder
            recorder.fact(
                "labels_masked",
                ignore_index=ignored,
                targets=target.numel(),
                loss=str(value),
                source=recorder.frames.line(),
                backward=self.core.backwards,
            )

    def _ending(self) -> None:
        if self._none_left:
            self.core.recorder.fact("labels_masked_total", all_masked=self._none_left, looked_at=self._looked)


def _counts_some(target: Tensor, ignored: int) -> bool:
    """Of few labels Python is quicker."""
    if target.numel() <= FEW:
        return any(label != ignored for label in target.flatten().tolist())
    return bool((target != ignored).any())


def _met(graph: Walk) -> list[Any]:
    return [visit.node for visit in graph.visits[:NODES] if visit.name.startswith("NllLoss")]


def _over_labels(root: Any) -> Iterator[Any]:
    """Cross entropies over labels in the graph below, nearest first; not inside of activation checkpointing, where to
    look at labels would run the forward again."""
    waiting, seen = deque([] if packed(root) else [root]), {root}
    room = NODES
    while waiting and room:
        node = waiting.popleft()
        room -= 1
        if type(node).__name__.startswith("NllLoss"):
            yield node
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                if type(child) is not LEAF and not packed(child):
                    waiting.append(child)
