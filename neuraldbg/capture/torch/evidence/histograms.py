"""Histograms of activations, gradients and parameters by the power of two of their magnitude: few, and of few values.

A tensor gets one at its first full step, then again after a sixteenth of the steps done so far: fewer than ninety in a
run of 10,000 steps, sixteen more for every further e-fold. At most 4,096 values of a tensor are looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from torch import Tensor
from torch.optim import Optimizer

from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.kernels import host, twin
from neuraldbg.capture.kernels.elements import BINS, WIDTH
from neuraldbg.capture.torch.core import now_ns
from neuraldbg.capture.torch.nested import tensors
from neuraldbg.capture.torch.passes import Pass
from neuraldbg.capture.torch.stats import dense, measurable, plain, thinned
from neuraldbg.capture.torch.sweep import owned
from neuraldbg.capture.torch.tree import Layer
from neuraldbg.records import Kind, Phase

if TYPE_CHECKING:
    from neuraldbg.capture.torch.attach import TorchCapture

PIECE: Final = 512  # values in a row that are looked at
PIECES: Final = 8  # of them, spread over a tensor that is larger than all
LEAST_GAP: Final = 8  # steps between two of a tensor
GROWTH: Final = 16  # the gap is this part of the steps done
Counted = tuple[int, int, int, int, bytes]  # values, looked at, zeros, NaN or Inf, octaves


class Histograms:
    """Only of tensors in host memory: counting on a device would take a kernel of its own."""

    def __init__(self, capture: TorchCapture) -> None:
        self.core = capture.core
        self._passes = capture.passes
        self._due: dict[Kind, dict[int, int]] = {kind: {} for kind in Kind}  # site -> step before which it has none
        self._rests: dict[int, int] = {}  # site of a layer -> step before which nothing of it is due
        self._swept: IdentityTable[tuple[int, int]] = IdentityTable()  # optimizer -> its parameters, and such a step
        self._gradient_arrived = self.core.guard.shield("histograms of gradients")(self._gradient)
        self.core.take_part("layer_run", "histograms of activations", self._layer_run)
        self.core.take_part("update_done", "histograms of parameters", self._update_done, rarely=True)
        self._quick = self._passes.quick
        due = (self._due[Kind.ACTIVATION], self._due[Kind.GRADIENT], self._due[Kind.PARAMETER])
        left_by_c = self.core.guard.inside("histograms of gradients")(self._left_by_c)
        if self._quick.count(due, (PIECE, PIECES, LEAST_GAP, GROWTH), left_by_c):
            self._passes.layers.done_by_c(self._layer_run)

    def _layer_run(self, _: Any, layer: Layer, one: Pass, values: Any) -> None:
        core, site, due = self.core, layer.site, self._due
        if core.recorder.step < self._rests.get(site, 0) or not layer.watched or one.phase is not Phase.FORWARD:
            return
        first = values[2] if isinstance(values[2], Tensor) else next(tensors(values[2]), None)
        if first is None or not first.is_cpu:
            return
        if core.wants(Kind.ACTIVATION):
            self._count(first, site, (Kind.ACTIVATION, one.phase, 0, one.id))
        of_gradient = due[Kind.GRADIENT].get(site, 0)
        if first.requires_grad and one.grad and core.wants(Kind.GRADIENT) and core.recorder.step >= of_gradient:
            self._await(first, site, one)
        self._rests[site] = min(due[Kind.ACTIVATION].get(site, 0), of_gradient)

    def _await(self, tensor: Tensor, site: int, one: Pass) -> None:
        """The gradient by a hook of its own, on the few passes that are due: the others are left alone."""
        core, observe = self.core, self._gradient_arrived

        def arrived(gradient: Tensor | None) -> None:
            if core.on and gradient is not None:
                observe(gradient, site, one.id)

        self._passes._hook(tensor, arrived)

    def _gradient(self, gradient: Tensor, site: int, pass_id: int) -> None:
        begin = now_ns()
        self._count(gradient, site, (Kind.GRADIENT, Phase.BACKWARD, 0, pass_id))
        took = now_ns() - begin
        self.core.own_ns += took
        self._passes.layers.set_aside(took)

    def _left_by_c(self, gradient: Tensor, site: int, pass_id: int) -> None:
        if self.core.on:
            self._count(gradient, site, (Kind.GRADIENT, Phase.BACKWARD, 0, pass_id))

    def _update_done(self, optimizer: Optimizer, _: Any) -> None:
        if not self.core.looking:
            return
        tree, parameters = self.core.tree, owned(optimizer)
        known, rests = self._swept.get(optimizer) or (0, 0)
        if known == len(parameters) and self.core.recorder.step < rests:
            return
        found = tree.parameter_site.pairs(parameters)
        if found is None:
            found = [(site, p) for p in parameters if (site := tree.parameter_site.get(p)) is not None]
        if tree.unwanted:
            found = [(site, parameter) for site, parameter in found if site not in tree.unwanted]
        for site, parameter in self._quick.count_parameters(found):
            self._count(parameter, site, (Kind.PARAMETER, Phase.UPDATE, 0, -1))
        due = self._due[Kind.PARAMETER]
        rests = min([due.get(site, 0) for site, _ in found], default=0)
        self._swept[optimizer] = (len(parameters), rests)

    def _count(self, tensor: Tensor, site: int, where: tuple[Kind, Phase, int, int]) -> None:
        step, due = self.core.recorder.step, self._due[where[0]]
        if step < due.get(site, 0) or not tensor.is_cpu:
            return
        counted = octaves_of(tensor)
        if counted is not None:
            due[site] = step + max(LEAST_GAP, step // GROWTH)
            self.core.recorder.histogram(site, where, counted)


def octaves_of(tensor: Tensor) -> Counted | None:
    """The magnitudes of some of a host tensor's values; None where they cannot be read here."""
    quickly = None if host.fused is None else host.octaves
    counted: Counted | None = None if quickly is None else quickly(tensor, PIECE, PIECES)
    if counted is not None:
        return counted
    span = host.span_of(tensor) if host.fused is not None else None
    if span is not None:
        return _by_kernel(*span)
    if not measurable(tensor) or not tensor.numel():
        return None
    values = plain(thinned(dense(tensor))).reshape(-1).numpy()
    zeros, bad = values.size - int(np.count_nonzero(values)), values.size - int(np.isfinite(values).sum())
    return tensor.numel(), values.size, zeros, bad, twin.histogram(values).astype("<u2").tobytes()


def _by_kernel(address: int, code: int, count: int) -> Counted | None:
    if not count:
        return None
    bins = np.zeros(BINS, np.int64)
    size, pieces = (count, 1) if count <= PIECE * PIECES else (PIECE, PIECES)
    zeros = bad = 0
    for piece in range(pieces):
        start = piece * (count - size) // max(1, pieces - 1)
        row = host.fused.measure(address + start * WIDTH[code], code, size, 0, bins)
        zeros, bad = zeros + row[6], bad + row[7] + row[8]
    return count, size * pieces, zeros, bad, bins.astype("<u2").tobytes()
