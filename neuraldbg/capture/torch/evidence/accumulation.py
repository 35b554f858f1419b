"""Several backwards before one update: the factor of each loss, and over how many targets it was averaged."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from neuraldbg.capture.torch.core import Core
from neuraldbg.capture.torch.loss import packed
from neuraldbg.capture.torch.probes.graph_nodes import Unknown, bare_name, saved

MOST_WINDOWS = 12  # that are written down
MOST_BACKWARDS = 64  # of one window
FEW = 1024  # labels
_REDUCTIONS = ("none", "mean", "sum")
_LOSSES = {"NllLoss", "NllLoss2D", "MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy",
           "BinaryCrossEntropyWithLogits", "KlDiv"}  # fmt: skip


class AccumulationWindows:
    def __init__(self, capture: Any) -> None:
        self.core: Core = capture.core
        self._window: list[dict[str, Any]] = []
        self._written = 0
        self.core.take_part("backward_begun", "accumulation windows", self._begun, rarely=True)
        self.core.take_part("update_done", "accumulation windows", self._updated, rarely=True)

    def _begun(self, loss: Tensor | None, source: int) -> None:
        if not self.core.looking or self._written >= MOST_WINDOWS or loss is None or loss.grad_fn is None:
            return
        if len(self._window) < MOST_BACKWARDS:
            self._window.append({"source": source, **_factors(loss.grad_fn)})

    def _updated(self, *_: Any) -> None:
        window, self._window = self._window, []
        if len(window) > 1 and self._written < MOST_WINDOWS:
            self._written += 1
            names = ("source", "factor", "kind", "reduction", "valid")
            self.core.recorder.fact(
                "accumulation_window",
                backwards=len(window),
                **{f"{name}s": [each.get(name) for each in window] for name in names},
            )


def _factors(node: Any) -> dict[str, Any]:
    """The constant a loss was multiplied with on its way up, and the loss function below."""
    factor = 1.0
    try:
        while bare_name(node) in ("Mul", "Div") and not packed(node):
            own = _constant(node)
            if own is None:
                return {"factor": factor}
            factor *= own
            node = next(child for child, _ in node.next_functions if child is not None)
        return {"factor": factor, **_function(node)}
    except Unknown:
        return {"factor": factor}


def _constant(node: Any) -> float | None:
    """What a product or quotient multiplies by, when that is one number; None for other products."""
    if sum(child is not None for child, _ in node.next_functions) != 1 or node.next_functions[0][0] is None:
        return None
    other = saved(node, "other")
    if isinstance(other, Tensor):
        if other.numel() != 1 or other.is_cuda:
            return None
        other = float(other)
    if not isinstance(other, int | float) or not other:
        return None
    return 1.0 / other if bare_name(node) == "Div" else float(other)


def _function(node: Any) -> dict[str, Any]:
    name = bare_name(node)
    if name == "Mean":
        return {"kind": "Mean", "reduction": "mean"}
    if name not in _LOSSES or packed(node):
        return {"kind": name}
    found: dict[str, Any] = {"kind": name, "reduction": _REDUCTIONS[saved(node, "reduction")]}
    target = saved(node, "target")
    if name.startswith("Nll") and isinstance(target, Tensor) and not target.is_cuda:
        found["valid"] = _counted(target, saved(node, "ignore_index"))
    elif isinstance(target, Tensor):
        found["valid"] = int(target.shape[0]) if target.dim() else 1
    return found


def _counted(target: Tensor, ignored: int) -> int:
    """How many labels are not left out. Of few of them Python is quicker."""
    if target.numel() <= FEW:
        return target.numel() - int(target.flatten().tolist().count(ignored))
    return int((target != ignored).sum())
