"""Changes made where the loss is computed: an activation too many is undone, one that is missing is put in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neuraldbg.replay.changes import Place, change

VIEWS = ("View", "UnsafeView", "Reshape", "Transpose", "Permute", "Squeeze", "Unsqueeze", "T", "Slice", "Index", "To")


def made_by(tensor: Any, *names: str) -> bool:
    """Whether a tensor comes out of one of these operations, directly or through views."""
    node = tensor.grad_fn
    for _ in range(8):
        if node is None:
            return False
        name = type(node).__name__
        if name.startswith(names):
            return True
        if not name.startswith(VIEWS) or not node.next_functions:
            return False
        node = node.next_functions[0][0]
    return False


def _instead(place: Place, name: str, edit: Callable[[Any], Any]) -> None:
    """A loss function that edits its first argument."""
    functional = place.torch.nn.functional
    real = getattr(functional, name)

    def edited(input: Any, *args: Any, **kwargs: Any) -> Any:
        return real(edit(input), *args, **kwargs)

    place.patches.replace(functional, name, edited)


@change("no_softmax", "no_softmax", "undoes a softmax before a loss that has one")
def no_softmax(place: Place, _: float | None) -> None:
    _instead(place, "cross_entropy", lambda p: _log(place, p) if made_by(p, "SoftmaxBackward") else p)


@change("no_sigmoid", "no_sigmoid", "undoes a sigmoid before a loss that has one")
def no_sigmoid(place: Place, _: float | None) -> None:
    def logits(p: Any) -> Any:
        return place.torch.logit(p, eps=1e-6) if made_by(p, "SigmoidBackward") else p

    _instead(place, "binary_cross_entropy_with_logits", logits)


@change("log_softmax", "log_softmax", "puts the log_softmax before a loss that needs it")
def log_softmax(place: Place, _: float | None) -> None:
    def logs(x: Any) -> Any:
        if made_by(x, "SoftmaxBackward"):
            return _log(place, x)
        return x if made_by(x, "LogSoftmaxBackward", "LogBackward") else place.torch.log_softmax(x, 1)

    _instead(place, "nll_loss", logs)


def _log(place: Place, p: Any) -> Any:
    return p.clamp_min(place.torch.finfo(p.dtype).tiny).log()
