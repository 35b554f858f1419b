"""Parameters around an update: values, gradients as the optimizer saw them, and how far each one moved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from neuraldbg.capture.kernels.host import measured_each, moved_each
from neuraldbg.capture.torch.core import Core, now_ns
from neuraldbg.capture.torch.device import Wanted
from neuraldbg.capture.torch.earlier import TURN_BYTES, EarlierValues
from neuraldbg.capture.torch.stats import Measured, measurable, plain
from neuraldbg.capture.torch.ungraded import ungraded
from neuraldbg.records import Kind, Phase
from neuraldbg.trace.tables import KIND_CODE, PHASE_CODE

TOO_LARGE = f"updates of parameters above {TURN_BYTES >> 20} MB are not measured under a budget (--budget full does)"
_first, _second = itemgetter(0), itemgetter(1)
_Kept = list[tuple[int, Tensor, Tensor | None]]  # site, parameter, value before the step


def owned(optimizer: Optimizer) -> list[Tensor]:
    """A generator would be a frame for each of them."""
    held: list[Tensor] = []
    for group in optimizer.param_groups:
        held += group["params"]
    return held


class Sweep:
    """Runs before and after `optimizer.step()` on sampled steps; in between steps only the gradient norm is watched."""

    def __init__(self, core: Core, quick: Any) -> None:
        self.core = core
        self.quick = quick
        self.earlier = EarlierValues(under_budget=core.budget.share is not None)
        self._told = False
        self._missing: dict[int, frozenset[int]] = {}
        self.keep_norms = False
        self.local: Callable[[Tensor], Tensor] | None = None  # of a parameter that several ranks share: the part here
        self.norms: dict[int, tuple[Tensor, int, int]] = {}  # of the last update: site -> norm, elements, dimensions

    def sites(self, parameters: Iterable[Tensor], *, adopt: bool = False) -> list[tuple[int, Tensor]]:
        """Raw tensors are taken in at once; a Parameter may belong to a model that has not been called yet."""
        tree, parameters = self.core.tree, list(parameters)
        known = tree.parameter_site.pairs(parameters)
        found = [] if known is None else known
        for parameter in parameters if known is None else ():
            site = tree.parameter_site.get(parameter)
            if site is None and tree.only is None and not (isinstance(parameter, nn.Parameter) and not adopt):
                site = tree.adopt_leaf(parameter)
            if site is not None:
                found.append((site, parameter))
        return found if self.local is None else [(site, self.local(parameter)) for site, parameter in found]

    @ungraded
    def before(self, parameters: Iterable[Tensor], *, norm_too: bool = False) -> _Kept:
        found = self.sites(parameters)
        values = list(map(_second, found))
        plan, copies = self.earlier.planned(values) if norm_too and not self.core.recorded else ([], [])
        done, copied = self._gradients_by_c(found, plan) if norm_too else (False, False)
        if not (done or (norm_too and self._gradients_on_device(found))):
            if norm_too:
                self.watch_norm(p for _, p in found)
            self._stats_of_all([(site, p.grad) for site, p in found if p.grad is not None], Kind.GRADIENT)
        before = copies if copied else self.earlier.take(values, self.core.recorded)
        if self.earlier.too_large and not self._told:
            self._told = True
            self.core.recorder.note("info", TOO_LARGE)
        return list(zip(map(_first, found), values, before, strict=True))

    @ungraded
    def after(self, kept: _Kept) -> None:
        if self.core.tree.unwanted:
            kept = [one for one in kept if one[0] not in self.core.tree.unwanted]
        if self.quick.c is not None:
            kept = self.quick.moved(kept)
        if not kept:
            return
        if all(parameter.is_cuda for _, parameter, _ in kept):
            self._after_elsewhere(kept)
            return
        pairs = [(parameter, parameter if before is None else before) for _, parameter, before in kept]
        left: _Kept = []
        for one, rows in zip(kept, moved_each(pairs), strict=True):
            if rows is None:
                left.append(one)
                continue
            self._write(one[0], Kind.PARAMETER, rows[0])
            if one[2] is not None:
                self._write(one[0], Kind.UPDATE, rows[1])
        if left:
            self._after_elsewhere(left)

    def _after_elsewhere(self, kept: _Kept) -> None:
        """Parameters on a device, or of a kind that the host's kernel cannot read."""
        self._stats_of_all([(site, parameter) for site, parameter, _ in kept], Kind.PARAMETER)
        moved = [(site, p, b) for site, p, b in kept if b is not None and b.shape == p.shape and b.device == p.device]
        wanted = self._headed([(site, parameter) for site, parameter, _ in moved], Kind.UPDATE)
        if not self.core.device.stats_of_all(wanted, [before for _, _, before in moved]):
            for site, parameter, before in moved:
                self._stats(plain(parameter) - plain(before), site, Kind.UPDATE)

    def note_missing(self, key: int, parameters: Iterable[Tensor]) -> None:
        """Which trainable parameters have no gradient at a step: a fact whenever the set changes."""
        missing = frozenset(
            site for site, parameter in self.sites(parameters) if parameter.requires_grad and parameter.grad is None
        )
        if self._missing.get(key, frozenset()) != missing:
            self._missing[key] = missing
            self.core.recorder.fact("missing_gradients", optimizer=key, parameter_sites=sorted(missing))

    def _gradients_by_c(self, found: list[tuple[int, Tensor]], plan: list[Any]) -> tuple[bool, bool]:
        """Statistics of all gradients and their norm in one call, and the parameters copied by the plan meanwhile:
        whether that was the whole of it, and whether they were."""
        if self.quick.c is None or self.keep_norms or self.core.tree.unwanted or not found or found[0][1].is_cuda:
            return False, False
        start = now_ns()
        norm, left, copied = self.quick.gradients(found, plan)
        if left:
            self._stats_of_all([(site, p.grad) for site, p in left if p.grad is not None], Kind.GRADIENT)
        if left:
            self.watch_norm(p for _, p in found)
        elif any(p.grad is not None for _, p in found):
            self.core.recorder.scalar("grad_norm", norm)
            self.core.budget.watch_cost(now_ns() - start)
        return True, copied

    def _gradients_on_device(self, found: list[tuple[int, Tensor]]) -> bool:
        """The same where all of them are on one device: one launch, and the norm comes from its rows."""
        if self.core.tree.unwanted:
            return False
        return self._together(self._headed([(site, p.grad) for site, p in found], Kind.GRADIENT))

    def _together(self, wanted: list[Wanted]) -> bool:
        if self.keep_norms or not wanted or not wanted[0][0].is_cuda:
            return False
        if not all(dtype.is_floating_point and dtype.itemsize > 1 for dtype in {one.dtype for one, _ in wanted}):
            return False  # what is not part of the norm of all gradients
        recorder = self.core.recorder
        step = recorder.step

        def together(rows: NDArray[np.float64]) -> None:
            recorder.scalar("grad_norm", norm_of(rows), step=step)

        return self.core.device.stats_of_all(wanted, together=together)

    @ungraded
    def watch_norm(self, parameters: Iterable[Tensor]) -> None:
        """One number for all gradients, without waiting for the device."""
        start = now_ns()
        recorder = self.core.recorder
        step = recorder.step
        if self.local is not None:
            parameters = [self.local(parameter) for parameter in parameters]
        found = [p for p in parameters if p.grad is not None and _dense_or_listed(p.grad)]
        if self._together([(p.grad, None) for p in found if p.grad is not None]):
            self.core.budget.watch_cost(now_ns() - start)
            return  # torch's own norms would load their kernels, which nothing else may need, into the host's memory
        groups: dict[Any, list[Tensor]] = {}
        for parameter in found:
            gradient = parameter.grad
            if gradient is not None and gradient.is_floating_point() and gradient.element_size() > 1:
                groups.setdefault((gradient.device, gradient.dtype), []).append(parameter)
        if not groups:
            return
        norms = []
        for group in groups.values():
            of_group = [
                norm.float() for norm in torch._foreach_norm([_listed(p.grad) for p in group if p.grad is not None])
            ]
            norms += of_group
            if self.keep_norms:
                self._keep(group, of_group)
        first = norms[0].device
        total = torch.linalg.vector_norm(torch.stack([norm.to(first, non_blocking=True) for norm in norms]))
        self.core.device.scalar(total, lambda value: recorder.scalar("grad_norm", value, step=step))
        self.core.budget.watch_cost(now_ns() - start)

    def _keep(self, group: list[Tensor], norms: list[Tensor]) -> None:
        for parameter, norm in zip(group, norms, strict=True):
            site = self.core.tree.parameter_site.get(parameter)
            if site is not None:
                self.norms[site] = (norm, parameter.numel(), parameter.dim())

    def _stats_of_all(self, found: list[tuple[int, Tensor]], kind: Kind) -> None:
        left = []
        if self.core.tree.unwanted:
            found = [(site, tensor) for site, tensor in found if site not in self.core.tree.unwanted]
        if found and found[0][1].is_cuda and self._on_device(found, kind):
            return
        for (site, tensor), row in zip(found, measured_each([tensor for _, tensor in found]), strict=True):
            if row is not None:
                self._write(site, kind, row)
            else:
                left.append((site, tensor))
        if left and not self._on_device(left, kind):
            for site, tensor in left:
                self._stats(tensor, site, kind)

    def _on_device(self, found: list[tuple[int, Tensor]], kind: Kind) -> bool:
        return self.core.device.stats_of_all(self._headed(found, kind))

    def _headed(self, found: Iterable[tuple[int, Tensor | None]], kind: Kind) -> list[Wanted]:
        """With the heads of their rows."""
        step, rest = self.core.recorder.step, (-1, KIND_CODE[kind], PHASE_CODE[Phase.UPDATE], 0)
        return [(tensor, (step, site, *rest)) for site, tensor in found if tensor is not None]

    def _stats(self, tensor: Tensor, site: int, kind: Kind) -> None:
        self.core.measure(tensor, site, self._writer(site, kind))

    def _writer(self, site: int, kind: Kind) -> Callable[[Measured], None]:
        step = self.core.recorder.step
        return lambda measured: self._write(site, kind, measured, step)

    def _write(self, site: int, kind: Kind, measured: Measured, step: int | None = None) -> None:
        self.core.recorder.stats(site, (kind, Phase.UPDATE, 0, -1), measured, step=step)


def norm_of(rows: NDArray[np.float64]) -> float:
    """Of all values together, from the rows that a device made of each tensor: those hold finite values only."""
    if rows[:, 7].any():
        return math.nan
    return math.inf if rows[:, 8].any() else float(np.sqrt(np.square(rows[:, 5]).sum()))


def _dense_or_listed(gradient: Tensor) -> bool:
    return gradient.layout == torch.strided or (gradient.layout == torch.sparse_coo and measurable(gradient))


def _listed(gradient: Tensor) -> Tensor:
    """Of a sparse gradient the values that it holds."""
    return gradient.detach() if gradient.layout == torch.strided else plain(gradient, widen=False)
