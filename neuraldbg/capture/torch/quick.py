"""Layers and parameters of steps that are measured: by C, without a frame for each that is not looked at otherwise.

The C hooks stand in torch's tables only while a pass runs of which they can see everything: host memory, one thread,
nobody else's hooks or modes, nothing compiled, nobody who takes or changes what a layer puts out. A layer that turns
out to be another case is handed back here and takes the usual way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neuraldbg.capture.kernels import host
from neuraldbg.capture.kernels.elements import Element
from neuraldbg.capture.staging import Block
from neuraldbg.capture.torch.core import Core, cannot_look
from neuraldbg.capture.torch.dispatch import ShortWay, alone, compiled
from neuraldbg.capture.torch.members import modules_of
from neuraldbg.capture.torch.passes import Pass
from neuraldbg.capture.torch.tree import Model
from neuraldbg.records import Kind, Phase
from neuraldbg.trace.tables import HISTOGRAMS, PHASE_CODE, SPANS, STATS

Located = list[tuple[int, Tensor]]
Due = dict[int, int]  # site -> step before which it has no histogram


class QuickLayers:
    """`c` is None where there is no kernel."""

    def __init__(self, core: Core, passes: Any) -> None:
        self.core = core
        self.passes = passes
        self.one: Pass | None = None
        self.c: Any = None
        self._rows: Any = None  # the same, also when it is not used any more
        self._taught: dict[int, Any] = {}  # site of a model -> which one, as a weak reference
        self._gradient_due: Callable[[Tensor, int, int], None] | None = None
        made = getattr(host.fused, "Layers", None)
        if made is not None:
            dtypes = [getattr(torch, element.name, None) for element in Element]
            modes = torch._C._len_torch_function_stack
            numbers = core.recorder.next_seq
            self.c = made(numbers, Tensor, nn.Parameter, torch.strided, modes, dtypes)
            self._rows = self.c
            self.before, self.after = self.c.before, self.c.after
            missed = core.guard.shield("layers", lambda module, *_: type(module).__name__)(self._missed)
            gradient = core.guard.shield("gradients")(self._missed_gradient)
            looked = core.guard.shield("evidence of layers", lambda module, *_: type(module).__name__)(self._looked)
            self.c.listen(missed, gradient, looked, passes.pre_hook, passes.post_hook)
            core.recorder.staging.blocks.append(self._drain)
            core.tree.on_change = self._forget
        self.short_way = ShortWay(self.c)

    # -- a pass ------------------------------------------------------------------------------------------------------

    def begin(self, one: Pass) -> bool:
        """Whether the pass that begins is seen by C."""
        core = self.core
        if self.c is None or not one.sampled or not self._fits():
            return False
        self.settle()  # gradients of an earlier pass may have come late
        if self.c is None:
            return False
        if self._taught.get(one.model.site) is not one.model.ref:
            self._teach(one.model)
        one.own_before, one.by_c = core.own_ns, True
        wants = (core.wants(Kind.ACTIVATION), core.wants(Kind.GRADIENT))
        self.c.begin(one.step, one.id, PHASE_CODE[one.phase], 1, one.grad, *wants, core.largest, one.looked)
        self.one = one
        return True

    def _fits(self) -> bool:
        core = self.core
        stops = core.stops
        if core.on_layer or core.on_gradient or core.packed or core.bypassed or not core.statistics:
            return False
        if core.trainers > 1 or (stops is not None and stops.gate.active):
            return False
        if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
            return False
        return alone() and not compiled() and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]

    def _teach(self, model: Model) -> None:
        """All of its layers, before the first of them runs: of one that is new, Python is shown an output once."""
        self._taught[model.site] = model.ref
        root, layers, learn = model.ref(), self.core.tree.layers, self.c.learn
        for module in () if root is None else modules_of(root):
            layer = layers.get(module)
            if layer is not None and not layer.wrapper:
                learn(module, layer.site, layer.leaf, layer.watched, bool(layer.path), not layer.located)

    def _forget(self) -> None:
        self.c.forget()
        self._taught.clear()

    def settle(self) -> None:
        """Our time in C is ours; a failure there is said once, and Python goes on instead."""
        if self.c is None:
            return
        self.core.own_ns += self.c.take_own_ns()
        self.core.read_bytes += self.c.take_bytes()
        if self.c.error is not None:
            error, self.one = self.c.error, None
            self.close()
            self.core.guard.failed("layers by C", None, error)

    def rest(self) -> None:
        """The next step is not measured."""
        self.one = None
        if self.c is not None:
            self.c.rest()

    def close(self) -> None:
        if self.c is not None:
            self.c.listen(*(None,) * 5)
            self.c.count()
            self.c.forget()
            self.short_way.close()
            self.core.tree.on_change = None
            self.c = self.one = None

    def _looked(self, module: nn.Module, values: Any) -> None:
        one, core = self.one, self.core
        layer = core.tree.layers.get(module)
        if one is None or layer is None or layer.wrapper or cannot_look():
            return
        own = core.own_ns
        self.passes.layers.look(module, layer, one, values)
        core.own_ns = own  # C counts the time of this call

    # -- what C could not read -----------------------------------------------------------------------------------------

    def _missed(self, module: nn.Module, times: tuple[int, int], values: Any, depth: int) -> None:
        one, core = self.one, self.core
        if one is None or self.c is None or cannot_look():  # a layer may be traced in mid-pass
            return
        own = core.own_ns
        self.passes.layers.seen(module, one, (*times, None), values, depth)
        core.own_ns = own  # C counts the time of this call
        layer = core.tree.layers.get(module)
        if layer is None or layer.wrapper:
            self.c.learn(module, -1, False, False, False, False)
        elif layer.located:
            self.c.learn(module, layer.site, layer.leaf, layer.watched, bool(layer.path), False)

    def _missed_gradient(self, site: int, pass_id: int, gradient: Tensor, due: int) -> None:
        """`due`: a histogram of it was, when its layer ran."""
        self.passes.layers.stats(gradient, site, (Kind.GRADIENT, Phase.BACKWARD, 0, pass_id))
        if due and self._gradient_due is not None:
            self._gradient_due(gradient, site, pass_id)

    # -- histograms ----------------------------------------------------------------------------------------------------

    def count(self, due: tuple[Due, Due, Due], numbers: tuple[int, ...], gradient: Callable[..., None]) -> bool:
        """Whether C takes those that are `due`, of activations, gradients and parameters, where it sees a layer.
        `gradient` is told of one that it cannot read."""
        if self.c is None:
            return False
        self._gradient_due = gradient
        self.c.count(self.core, self.core.recorder, due, numbers)
        return True

    def count_parameters(self, found: Located) -> Located:
        """Those that are left to others."""
        if self.c is None or self._gradient_due is None:
            return found
        left: Located = self.c.count_parameters(self.core.recorder.step, found)
        return left

    # -- parameters ----------------------------------------------------------------------------------------------------

    def gradients(self, found: Located, plan: list[Any]) -> tuple[float | None, Located, bool]:
        """The norm of all gradients, those that are left to others, and whether the parameters were copied meanwhile as
        planned. None where any gradient is left."""
        squares, nans, infs, left, kept = self.c.gradients(self.core.recorder.step, found, plan)
        norm = math.nan if nans else math.inf if infs else math.sqrt(squares)
        return None if left else norm, left, kept

    def moved(self, kept: list[Any]) -> list[Any]:
        """Writes what each parameter is and how far it moved; returns those that are left."""
        left: list[Any] = self.c.moved(self.core.recorder.step, kept)
        return left

    # -- the flush thread ----------------------------------------------------------------------------------------------

    def _drain(self) -> dict[str, tuple[Block, int]]:
        stats, spans, counted, lost, lost_spans, lost_counted = self._rows.drain()
        return {
            "stats": (np.frombuffer(stats, STATS), lost),
            "spans": (np.frombuffer(spans, SPANS), lost_spans),
            "histograms": (np.frombuffer(counted, HISTOGRAMS), lost_counted),
        }
