"""Forward passes, seen through torch's global module hooks.

Global hooks and not hooks on each module: nn.TransformerEncoderLayer looks for per-module hooks and leaves its fused
inference path when
it finds one, which changes results in the last bits. The first line of each hook is the compile guard: Dynamo traces
into hooks.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from neuraldbg.capture.torch.core import Core, now_ns
from neuraldbg.capture.torch.flops import flops_of
from neuraldbg.capture.torch.passes import PassRecord, tensors
from neuraldbg.capture.torch.stats import identity_of
from neuraldbg.capture.torch.tree import Layer, Model
from neuraldbg.records import Call, Kind, Phase

is_compiling = torch.compiler.is_compiling
OPEN_PASSES = 4096  # grad-mode passes that may wait for their backward
RECORDED_PASSES = 64  # passes of the current step that are kept for running again


@dataclass(eq=False)
class Pass:
    id: int
    model: Model
    entry: Layer
    step: int
    grad: bool
    start_ns: int
    source: int
    sampled: bool
    own_before: int = 0  # our own time when it began
    updates_seen: int = 0
    trained: bool = False
    record: PassRecord | None = None
    entry_module: Any = None


class PassWatch:
    """Keeps the stack of running modules; depth 0 is a pass."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.count = 0
        self.open: deque[Pass] = deque()
        self.current: deque[Pass] = deque(maxlen=RECORDED_PASSES)  # passes since the last update, with their records
        self.layer_seen = core.guard.shield("layers")(self._layer_seen)
        self.begin = core.guard.shield("passes")(self._begin)
        self.end = core.guard.shield("passes")(self._end)
        self.last_backward: list[tuple[Layer, int, Pass] | None] = [None]
        self.before_pass: list[Any] = []
        self.fired: set[int] = set()  # ids of modules whose hooks have fired; tells which ones are called by .forward()

    # -- hooks -----------------------------------------------------------------------------------------------------

    def pre_hook(self, module: nn.Module, args: Any) -> None:
        if is_compiling():
            return
        core = self.core
        if not core.on:
            return
        local = core.local
        stack = local.stack
        if not stack:
            local.own_pass = self.begin(module, args, sys._getframe(1))
        stack.append((module, now_ns(), core.own_ns))

    def post_hook(self, module: nn.Module, args: Any, *rest: Any) -> None:
        """`rest` is (kwargs, output), or (output,) when the forward raised and torch calls us for good measure."""
        if is_compiling():
            return
        core = self.core
        if not core.on:
            return
        end_ns = now_ns()
        local = core.local
        stack = local.stack
        while stack:
            top, start_ns, own_before = stack.pop()
            if top is module:
                break
        else:
            return
        own_pass = local.own_pass
        if own_pass is None:
            return
        if own_pass.sampled and len(rest) == 2:
            duration = end_ns - start_ns - (core.own_ns - own_before)  # our own work inside is not the layer's
            self.layer_seen(module, own_pass, (start_ns, duration), (args, *rest), len(stack))
        if not stack:
            local.own_pass = None
            self.end(own_pass, rest)

    # -- a pass ----------------------------------------------------------------------------------------------------

    def _begin(self, module: nn.Module, args: Any, frame: Any) -> Pass | None:
        core = self.core
        start = now_ns()
        layer = core.tree.find(module)
        if layer is None:
            return None
        if core.in_backward:
            core.recorder.call(Call.PASS_RECOMPUTED, layer.model.site)
            return None
        for check in self.before_pass:
            check()
        grad = torch.is_grad_enabled()
        source = core.recorder.source(3)
        one = Pass(self.count, layer.model, layer, core.recorder.step, grad, start, source, core.sampling)
        self.count += 1
        layer.model.passes += 1
        kwargs = frame.f_locals.get("kwargs") or {}
        root = layer.model.ref()
        training = bool(getattr(root, "training", False))
        digest = self._inputs(one, args, kwargs)
        core.recorder.call(
            Call.PASS,
            one.model.site,
            value=float(grad),
            aux=float(training),
            source=source,
            pass_id=one.id,
            digest=digest,
        )
        if core.recording and one.sampled and grad and root is not None:
            one.record = PassRecord.take(root, args, kwargs, backwards=core.backwards)
            one.entry_module = module
            self.current.append(one)
        one.start_ns = now_ns()
        core.own_ns += one.start_ns - start
        one.own_before = core.own_ns
        return one

    def _inputs(self, one: Pass, args: Any, kwargs: Any) -> int:
        """Statistics of the inputs on a sampled step, and the identity of the batch on every one."""
        digest = 0
        for slot, tensor in enumerate(tensors((args, kwargs))):
            if slot >= 16:
                break
            part = identity_of(tensor)
            digest = (digest * 1099511628211 + part) & ((1 << 64) - 1) if part else digest
            if one.sampled:
                self._stats(tensor, one.model.site, (Kind.INPUT, self._phase(one), slot, one.id))
        return digest

    def _end(self, one: Pass, rest: tuple[Any, ...]) -> None:
        core = self.core
        start = now_ns()
        finished = len(rest) == 2
        if not one.grad:
            core.recorder.call(Call.PASS_EVAL, one.model.site, pass_id=one.id)
        else:
            differentiable = [t for t in tensors(rest[-1]) if t.requires_grad] if finished else []
            for tensor in differentiable:
                self._mark_when_trained(one, tensor)
            self._keep_open(one)
        if one.sampled:
            times = (one.start_ns, start - one.start_ns - (core.own_ns - one.own_before))
            core.recorder.span(one.model.site, self._phase(one), times, pass_id=one.id)
        core.own_ns += now_ns() - start

    def _mark_when_trained(self, one: Pass, tensor: Tensor) -> None:
        recorder = self.core.recorder

        def arrived(_: Tensor) -> None:
            if not one.trained and self.core.on:
                one.trained = True
                recorder.call(Call.PASS_TRAIN, one.model.site, pass_id=one.id)

        _hook(tensor, arrived)
        node: Any = tensor.grad_fn
        if node is not None:
            node.metadata["neuraldbg_pass"] = one.id  # dies with the graph; a grad_fn is never held
            if tensor.numel() == 1:
                node.metadata["neuraldbg_scalar"] = True

    def _keep_open(self, one: Pass) -> None:
        self.open.append(one)
        if len(self.open) > OPEN_PASSES:
            self._close(self.open.popleft())

    def update_done(self, optimizers: int) -> None:
        """A pass without a backward is an orphan once every optimizer has had its turn twice."""
        patience = 2 * max(optimizers, 1)
        waiting: deque[Pass] = deque()
        for one in self.open:
            one.updates_seen += 1
            if one.trained:
                continue
            if one.updates_seen >= patience:
                self._close(one)
            else:
                waiting.append(one)
        self.open = waiting
        self._forget_records()

    def _forget_records(self) -> None:
        """A graph that the user keeps holds our hooks, and they hold the pass: its record must not live as long."""
        for one in self.current:
            one.record = one.entry_module = None
        self.current.clear()

    def finish(self) -> None:
        for one in self.open:
            self._close(one)
        self.open.clear()
        self._forget_records()

    def _close(self, one: Pass) -> None:
        if not one.trained:
            self.core.recorder.call(Call.PASS_ORPHAN, one.model.site, pass_id=one.id)

    # -- a layer ---------------------------------------------------------------------------------------------------

    def _layer_seen(self, module: nn.Module, one: Pass, times: tuple[int, int], values: Any, depth: int) -> None:
        """`values` = args, kwargs, output."""
        core = self.core
        begin = now_ns()
        layer = core.tree.find(module)
        if layer is None:
            return
        self.fired.add(id(module))
        phase = self._phase(one)
        outputs = list(tensors(values[2]))
        host = sum(t.numel() * t.element_size() for t in outputs if t.device.type == "cpu")
        device = sum(t.numel() * t.element_size() for t in outputs if t.device.type != "cpu")
        if layer.path or depth:
            core.recorder.span(
                layer.site,
                phase,
                times,
                pass_id=one.id,
                depth=depth,
                host_bytes=host,
                device_bytes=device,
            )
        if not layer.located:
            self._locate(layer, module, outputs)
        if layer.watched:
            for slot, tensor in enumerate(outputs[:8]):
                self._stats(tensor, layer.site, (Kind.ACTIVATION, phase, slot, one.id))
                if tensor.requires_grad and one.grad:
                    self._watch_gradient(tensor, layer, slot, one)
        for observe in core.on_layer:
            observe(layer, one, values)
        core.own_ns += now_ns() - begin

    def _stats(self, tensor: Tensor, site: int, where: tuple[Kind, Phase, int, int]) -> None:
        recorder = self.core.recorder
        step = recorder.step
        self.core.device.stats(tensor, lambda measured: recorder.stats(site, where, measured, step=step))

    def _watch_gradient(self, tensor: Tensor, layer: Layer, slot: int, one: Pass) -> None:
        core = self.core

        def observe(gradient: Tensor) -> None:
            begin = now_ns()
            last = self.last_backward[0]
            if last is not None:
                self._charge_backward(last, begin)
            self._stats(gradient, layer.site, (Kind.GRADIENT, Phase.BACKWARD, slot, one.id))
            for notice in core.on_gradient:
                notice(layer, slot, one, gradient)
            end = now_ns()
            core.own_ns += end - begin
            self.last_backward[0] = (layer, end, one)

        shielded = core.guard.shield("gradients")(observe)

        def arrived(gradient: Tensor) -> None:
            if core.on:
                shielded(gradient)

        _hook(tensor, arrived)

    def _charge_backward(self, last: tuple[Layer, int, Pass], now: int) -> None:
        """The time since the previous output gradient arrived belongs to the layer whose gradient that was."""
        layer, since, one = last
        self.core.recorder.span(layer.site, Phase.BACKWARD, (since, now - since), pass_id=one.id)

    def backward_ended(self) -> None:
        last, self.last_backward[0] = self.last_backward[0], None
        if last is not None:
            self._charge_backward(last, now_ns())

    def _locate(self, layer: Layer, module: nn.Module, outputs: list[Tensor]) -> None:
        layer.located = True
        if not outputs:
            return
        first = outputs[0]
        known = self.core.recorder.sites[layer.site]
        self.core.recorder.refine_site(
            layer.site,
            shape=tuple(first.shape),
            dtype=str(first.dtype).removeprefix("torch."),
            device=str(first.device),
            source=self.core.recorder.frames.line(4) or known.source,
            flops=flops_of(module, outputs),
        )

    def _phase(self, one: Pass) -> Phase:
        return Phase.FORWARD if one.grad else Phase.EVAL


def _hook(tensor: Any, observe: Callable[[Tensor], None]) -> None:
    """A gradient hook that torch.save does not warn about."""
    observe.__torch_unserializable__ = True  # type: ignore[attr-defined]
    tensor.register_hook(observe)
