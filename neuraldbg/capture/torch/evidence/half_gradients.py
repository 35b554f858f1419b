"""Gradients that are zero only because half precision cannot hold them: the same pass once more in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.torch.loss import anatomy_of
from neuraldbg.capture.torch.nested import map_leaves, tensors
from neuraldbg.capture.torch.origin.rerun import Rerun, as_it_was, unseen
from neuraldbg.capture.torch.passes import KeptTensor, Pass
from neuraldbg.capture.torch.stats import plain

if TYPE_CHECKING:
    from neuraldbg.capture.torch.attach import TorchCapture

LOOKS = 3  # passes that are run again
LAST_LOOK = 50  # update after which nobody looks any more
SUSPICIOUS = 0.5  # share of exact zeros in the gradients of weights


class HalfGradients:
    """On full steps of a model that computes in float16 on the host."""

    def __init__(self, capture: TorchCapture) -> None:
        self.core = capture.core
        self.passes = capture.passes
        self._left = LOOKS
        self._loss: list[tuple[str, Tensor, Tensor]] = []
        self.core.take_part("backward_begun", "half gradients", self._begun, rarely=True)
        self.core.take_part("update_begun", "half gradients", self._update_begun, rarely=True)

    def _pass(self) -> Pass | None:
        if not self._left or not self.core.looking or self.core.recorder.step > LAST_LOOK:
            return None
        return next(
            (one for one in reversed(self.passes.current.copy()) if one.record is not None and _is_half(one)), None
        )

    def _begun(self, loss: Tensor | None, _: int) -> None:
        self._loss = []
        if loss is not None and not loss.is_cuda and self._pass() is not None:
            terms = anatomy_of(loss).terms[:4]
            self._loss = [(t.kind, t.inputs, t.target) for t in terms if t.inputs is not None and t.target is not None]

    def _update_begun(self, *_: Any) -> None:
        terms, self._loss = self._loss, []
        one = self._pass()
        if one is None or one.arrived is None:
            return
        root = one.model.ref()
        weights = [] if root is None else [p for p in root.parameters() if p.dim() > 1 and p.grad is not None]
        if root is None or not weights or any(p.is_cuda for p in weights):
            return
        share = _zero_share([p.grad for p in weights if p.grad is not None])
        if share < SUSPICIOUS:
            return
        self._left -= 1
        wide = attempt(lambda: self._in_float32(one, root, terms))
        if wide is not None:
            worst = max(weights, key=lambda p: _zero_share([p.grad]) if p.grad is not None else 0.0)
            site = self.core.tree.parameter_site.get(worst)
            self.core.recorder.fact("half_gradients", zeros_half=share, zeros_float32=wide, parameter_site=site)

    def _in_float32(self, one: Pass, root: nn.Module, terms: list[tuple[str, Tensor, Tensor]]) -> float | None:
        again = Rerun(self.core, one)
        if again.refused or again.record is None or again.entry is None or one.arrived is None:
            return None
        record, entry = again.record, again.entry
        wide = {name: p.detach().float().requires_grad_() for name, p in entry.named_parameters()}
        args, kwargs = map_leaves((record.args, record.kwargs), KeptTensor, lambda kept: _wide(kept.tensor.clone()))
        buffers = {name: _wide(buffer.clone()) for name, buffer in entry.named_buffers()}
        with unseen(self.core), as_it_was(root), torch.enable_grad(), torch.autocast("cpu", enabled=False):
            state = torch.get_rng_state()
            try:
                outputs = torch.func.functional_call(entry, {**wide, **buffers}, args, kwargs)
                given = [t for t in tensors(outputs) if t.requires_grad]
                arriving = [_arriving(t, one.arrived.get(slot), terms) for slot, t in enumerate(given)]
                pairs = [(t, g) for t, g in zip(given, arriving, strict=True) if g is not None]
                leaves = [p for p in wide.values() if p.dim() > 1]
                found = torch.autograd.grad([t for t, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True)
            finally:
                torch.set_rng_state(state)
        return _zero_share([g for g in found if g is not None])


def _arriving(output: Tensor, arrived: Tensor | None, terms: list[tuple[str, Tensor, Tensor]]) -> Tensor | None:
    """The gradient of the output in float32: of the loss itself where that is known, since the one that came may be
    zero already."""
    for kind, inputs, target in terms:
        if inputs.shape == output.shape:
            loss = _loss(kind, output.detach().requires_grad_(), target)
            if loss is not None:
                return loss
    return None if arrived is None else arrived.float()


def _loss(kind: str, output: Tensor, target: Tensor) -> Tensor | None:
    makers: dict[str, Any] = {
        "mse": lambda: functional.mse_loss(output, target.float()),
        "bce_with_logits": lambda: functional.binary_cross_entropy_with_logits(output, target.float()),
        "smooth_l1": lambda: functional.smooth_l1_loss(output, target.float()),
    }
    if kind not in makers:
        return None
    return torch.autograd.grad(makers[kind](), output)[0]


def _is_half(one: Pass) -> bool:
    record, root = one.record, one.model.ref()
    if record is not None and any(cast.enabled and cast.dtype is torch.float16 for cast in record.autocast):
        return True
    first = None if root is None else next(root.parameters(), None)
    return first is not None and first.dtype is torch.float16


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


@torch.no_grad()
def _zero_share(gradients: list[Any]) -> float:
    values = [plain(g, widen=False) for g in gradients]
    total = sum(v.numel() for v in values)
    return sum(v.numel() - int(torch.count_nonzero(v)) for v in values) / total if total else 0.0
