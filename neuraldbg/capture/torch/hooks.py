"""Forward passes, seen through torch's global module hooks.

Global hooks and not hooks on each module: nn.TransformerEncoderLayer looks for per-module hooks and leaves its
fused inference path when it finds one, which changes results in the last bits. The first line of each hook is the
compile guard: Dynamo traces into hooks.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from neuraldbg.capture.kernels import frameless
from neuraldbg.capture.kernels.host import same_bits
from neuraldbg.capture.torch.core import RECORDED_STEPS, Core, cannot_look, compiler, now_ns, traced_by_dynamo, tracing
from neuraldbg.capture.torch.dispatch import ModuleHooks
from neuraldbg.capture.torch.layer_watch import UNTIMED, LayerWatch
from neuraldbg.capture.torch.members import is_usual
from neuraldbg.capture.torch.nested import few_given, given_tensors, tensors
from neuraldbg.capture.torch.passes import CLONE_BYTES, Means, Pass, PassRecord, digest_of_all, light_record, pass_begun
from neuraldbg.capture.torch.quick import QuickLayers
from neuraldbg.capture.torch.stats import identity_of
from neuraldbg.capture.torch.structures import Structures, copies_of, named_buffers
from neuraldbg.records import Call, Kind

FIRST_PASSES = 4  # of a model, of which everybody is told
HASHED_ELEMENTS = 2**20  # of outputs that are hashed
OPEN_PASSES = 4096  # grad-mode passes that may wait for their backward
RECORDED_BYTES = 64 * 2**20  # of their inputs and buffers
RECORDED_PASSES = 64  # passes of the current step that are kept for running again
LIGHT_ITEMS = 64  # in the arguments of a pass that is kept lightly
ARRIVED_BYTES = 4 * 2**20  # gradient of an output that is kept until the update
ARRIVED_IN_ALL = 16 * 2**20  # of them: an update may have any number of passes


class PassWatch:
    """Keeps the stack of running modules; depth 0 is a pass."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.count = 0
        self.open: deque[Pass] = deque()
        self.structures, self.means = Structures(), Means()
        self.current: deque[Pass] = deque()  # passes since the last update, with their records
        self.light: deque[Pass] = deque()  # the others
        shield = core.guard.shield
        self.hooks = ModuleHooks(self.pre_hook, self.post_hook, self._unseen_ended)
        self.quick = QuickLayers(core, self)
        self.layers = LayerWatch(core, self._hook, self.quick)
        self.quick_begins = shield("layers by C")(self.quick.begin)
        self.layer_seen = shield("layers", lambda module, *_: type(module).__name__)(self.layers.seen)
        self.begin = shield("passes", lambda module, *_: type(module).__name__)(self._begin)
        self.end = shield("ends of passes", lambda one, *_: one.model.name)(self._end)
        self.ignored: Any = SimpleNamespace(sampled=False, unseen=False)  # a forward that checkpointing repeats
        self._recorded_bytes = self._arrived_bytes = 0
        self.calls = 0  # of modules, for the cost of being called at all
        self._leaf_hooks: list[Any] = []  # on tensors that outlive the pass: taken away after the update
        self.before_pass: list[Any] = []
        core.take_part("optimizer_created", "passes", self._prepare)

    def _prepare(self, _: Any) -> None:
        if self.core.budget.full and self.core.recording:
            self.means.memory.fetch()

    # -- hooks -----------------------------------------------------------------------------------------------------

    def pre_hook(self, module: nn.Module, args: Any) -> None:
        if traced_by_dynamo() or compiler._is_compiling_flag or tracing() is not None:  # `cannot_look` without a frame
            return
        core = self.core
        if not core.on:
            return
        began = now_ns()
        local = core.here.local
        stack = local.stack
        self.calls += 1
        if local.own_pass is None:
            own = local.own_pass = self.begin(module, args, sys._getframe(1), began)
            local.pass_depth = len(stack)
            if own is not None and own is not self.ignored:
                stops = core.stops
                if own.sampled or core.trainers > 1 or (stops is not None and stops.gate.at_layers):
                    self._who_looks(own, module)
                else:  # mostly
                    own.followed, own.unseen = False, self.hooks.step_aside(module)
                before, began = own.start_ns, now_ns()
                own.start_ns, own.own_before = began, core.own_ns + began - before
                core.own_ns = own.own_before
        else:
            own = local.own_pass
        mark = None
        if own is not None and own.sampled:
            layer = core.tree.layers.get(module) if core.statistics else None
            timed = core.timing and (layer is None or layer.leaf)  # in a container, layers are measured in between
            mark = core.device.mark() if timed else core.device.ticks or None
        now = now_ns()
        if mark is not None:
            core.own_ns += now - began
        stack.append((module, now, core.own_ns, mark))

    def post_hook(self, module: nn.Module, args: Any, *rest: Any) -> None:
        """`rest` is (kwargs, output), or (output,) when the forward raised and torch calls us for good measure."""
        if cannot_look():
            return
        core = self.core
        if not core.on:
            return
        end_ns = now_ns()
        local = core.here.local
        stack = local.stack
        while stack:
            top, start_ns, own_before, mark = stack.pop()
            if top is module:
                break
        else:
            return
        own_pass = local.own_pass
        if own_pass is None:
            return
        depth = len(stack) - local.pass_depth
        if depth < 0:
            local.own_pass = None  # an interrupted forward left its pass behind
            return
        stops = core.stops
        stopping = stops is not None and stops.gate.at_layers
        if own_pass is self.quick.one:
            self.quick.settle()
        if own_pass.sampled or stopping:
            duration = end_ns - start_ns - core.ours_since(own_before)  # our own work inside is not the layer's
        if own_pass.sampled and len(rest) == 2:
            marks = None if mark is None else (mark, mark if mark is UNTIMED else core.device.mark())
            self.layer_seen(module, own_pass, (start_ns, duration, marks), (args, *rest), depth)
        if stopping and len(rest) == 2 and own_pass is not self.ignored:
            stops.layer_ran(module, own_pass, (args, *rest), duration)
        if depth == 0:
            local.own_pass = None
            if self.hooks.displaced:
                self.hooks.come_back()
            if own_pass is not self.ignored:
                self.end(own_pass, (args, *rest), now_ns())

    def _unseen_ended(self, began_ns: int, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """The same for a pass whose layers nobody looked at."""
        core, local = self.core, self.core.here.local
        own, stack = local.own_pass, local.stack
        if core.on and own is not None and own.unseen and len(stack) == local.pass_depth + 1 and stack[-1][0] is module:
            stack.pop()
            local.own_pass = None
            self.end(own, (args, kwargs, output), began_ns)
        else:
            self.post_hook(module, args, kwargs, output)

    def _who_looks(self, own: Pass, module: nn.Module) -> None:
        """Into the pass that begins: C where it can, nobody where nobody asks about layers (another thread's pass would
        begin unseen meanwhile), else our own hooks."""
        core = self.core
        stops = core.stops
        own.followed = stops is not None and stops.gate.at_layers
        if own.sampled:
            if self.quick_begins(own):
                self.hooks.let(self.quick.before, self.quick.after, self.quick.short_way)
        elif core.trainers < 2 and not own.followed:
            own.unseen = self.hooks.step_aside(module)

    # -- a pass ----------------------------------------------------------------------------------------------------

    def _begin(self, module: nn.Module, args: Any, frame: Any, start: int) -> Pass | None:
        """`start`: since when we are at it, and the pass until who asked for it sets it to run."""
        core = self.core
        layer = core.tree.layers.get(module) or core.tree.find(module)
        if layer is None:
            return None
        if core.any_backward and core.recomputing():
            core.recorder.call(Call.PASS_RECOMPUTED, layer.model.site)
            return self.ignored  # type: ignore[no-any-return]
        for check in self.before_pass:
            check()
        if not core.here.local.trains:
            core.thread_trains()
        grad = torch.is_grad_enabled()
        source = core.recorder.source(3)
        sampled = core.budget.full and core.budget.pass_in_full(core.own_ns, start)
        one = pass_begun(self.count, layer, core.recorder.step, grad, start, source)
        if sampled:
            one.sampled, one.looked = True, core.closely
        self.count += 1
        kwargs = frame.f_locals.get("kwargs") or {}
        model, root = layer.model, layer.model.ref()
        training = bool(getattr(root, "training", False))
        alone = len(args) == 1 and not kwargs and isinstance(args[0], Tensor)
        one.entered = args if alone else given_tensors(args, kwargs)
        digest = identity_of(args[0]) if alone and not sampled and core.statistics else self._inputs(one)
        model.passes += 1
        call, site = core.recorder.call, model.site
        call(Call.PASS, site, value=float(grad), aux=float(training), source=source, pass_id=one.id, digest=digest)
        if core.recording and grad and root is not None:
            self._keep(one, module, root, (args, kwargs))
        mode, model.mode = model.mode, (grad, training)
        usual = model.mode == mode and model.passes > FIRST_PASSES  # of others everybody is told
        if not (usual and model.threads) or core.trainers > 1:
            model.threads[get_ident()] = model.passes
        if notices := (core.heard if usual else core.moments).pass_begun:
            core.tell(notices, one, root, args, kwargs)
        if not grad:
            core.tell(core.moments.evaluation_begun, one)
        one.entered, one.around = (), None
        return one

    def _keep(self, one: Pass, module: nn.Module, root: nn.Module, inputs: tuple[Any, Any]) -> None:
        """On a full step everything that running it again takes; on every step what a search for a NaN needs."""
        if one.sampled and (one.looked or one.step < RECORDED_STEPS) and few_given(one.entered, *inputs):
            self._record(one, module, root, inputs)
        elif few_given(one.entered, *inputs, LIGHT_ITEMS):
            one.light = light_record(*inputs, random=one.model.random is not False)
            one.entry_module = weakref.ref(module)
            if len(self.light) == RECORDED_PASSES:
                _forget(self.light.popleft())
            self.light.append(one)

    def _record(self, one: Pass, module: nn.Module, root: nn.Module, inputs: tuple[Any, Any]) -> None:
        around = one.around = self.structures.look(root) if is_usual(root) else None
        buffers = dict(root.named_buffers()) if around is None else named_buffers(around)
        size = sum([buffer.numel() * buffer.element_size() for buffer in buffers.values()])
        size += sum([min(t.numel() * t.element_size(), CLONE_BYTES) for t in one.entered])
        while self.current and (len(self.current) == RECORDED_PASSES or self._recorded_bytes + size > RECORDED_BYTES):
            oldest = self.current.popleft()
            _forget(oldest)
            self._recorded_bytes -= oldest.record_bytes
        if size > RECORDED_BYTES:
            return
        self._recorded_bytes += size
        one.record_bytes = size
        known: dict[str, Any] = {"around": (around and around[0], copies_of(buffers) if buffers else {})}
        one.record = PassRecord.take(root, *inputs, backwards=self.core.backwards, means=self.means, **known)
        one.entry_module = weakref.ref(module)
        self.current.append(one)

    def _inputs(self, one: Pass) -> int:
        """Statistics of the inputs on a sampled step, and the identity of the batch on every one."""
        digest = 0
        if not self.core.statistics:
            return digest
        for slot, tensor in enumerate(one.entered[:16]):
            part = identity_of(tensor)
            digest = (digest * 1099511628211 + part) & ((1 << 64) - 1) if part else digest
            if one.sampled:
                self.layers.stats(tensor, one.model.site, (Kind.INPUT, one.phase, slot, one.id))
        return digest

    def _end(self, one: Pass, rest: tuple[Any, ...], start: int) -> None:
        """`rest` = args, kwargs, output; without kwargs when the forward raised."""
        core = self.core
        if self.quick.one is not None:
            self.quick.settle()
        finished = len(rest) == 3
        outputs = (rest[-1],) if isinstance(rest[-1], Tensor) else tuple(tensors(rest[-1]))
        if not one.grad:
            core.recorder.call(Call.PASS_EVAL, one.model.site, pass_id=one.id)
        else:
            differentiable = list(filter(_differentiable, outputs)) if finished else []
            if not one.unseen and one.compiled:
                self.layers.mark_packed(differentiable)
            for slot, tensor in enumerate(differentiable):
                self._mark_when_trained(one, tensor, slot)
            if core.trainers < 2 and len(self.open) < OPEN_PASSES:
                self.open.append(one)
            else:
                self._keep_open(one)
        if one.model.lazy:
            core.tree.pass_ended(one.model)
        if core.device.used:
            core.device.poll()
        if one.record is not None and not one.model.random:
            before, after = one.record.rng.torch_cpu, torch.default_generator.get_state()
            one.model.random = not (same_bits([after], [before]) or torch.equal(after, before))
        if one.record is not None and finished and sum([t.numel() for t in outputs]) <= HASHED_ELEMENTS:
            one.output_digest = digest_of_all(outputs)
        if one.sampled and not any(map(_on_device, outputs)):  # on a device this would be the time of launching
            times = (one.start_ns, start - one.start_ns - core.ours_since(one.own_before))
            core.recorder.span(one.model.site, one.phase, times, pass_id=one.id)
        if finished and core.heard.pass_ended:
            core.tell(core.heard.pass_ended, one, one.model.ref(), rest[:2], rest[2])
        core.own_ns += now_ns() - start

    def _mark_when_trained(self, one: Pass, tensor: Tensor, slot: int) -> None:
        recorder = self.core.recorder

        def arrived(gradient: Tensor | None) -> None:  # cuDNN's RNN hands None for a state nobody used
            core = self.core
            if not core.on or gradient is None:
                return
            began = now_ns()
            size = gradient.numel() * gradient.element_size()
            if one.entry_module is not None and size <= ARRIVED_BYTES and self._arrived_bytes + size <= ARRIVED_IN_ALL:
                one.arrived = {**(one.arrived or {}), slot: gradient}
                self._arrived_bytes += size
            if not one.trained:
                one.trained = True
                recorder.call(Call.PASS_TRAIN, one.model.site, pass_id=one.id)
            core.own_ns += now_ns() - began

        arrived.__torch_unserializable__ = True  # type: ignore[attr-defined]
        if frameless.hang is None or type(tensor) is not Tensor or not frameless.hang(tensor, arrived):
            self._hook(tensor, arrived)
        node: Any = tensor.grad_fn
        if node is not None:
            node.metadata["neuraldbg_pass"] = one.id  # dies with the graph; a grad_fn is never held
            if tensor.numel() == 1:
                node.metadata["neuraldbg_scalar"] = True

    def _hook(self, tensor: Any, observe: Callable[[Tensor | None], None]) -> None:
        """A gradient hook that torch.save does not warn about and that does not stay on a leaf (a model may return a
        weight)."""
        observe.__torch_unserializable__ = True  # type: ignore[attr-defined]
        if frameless.hang is not None and type(tensor) is Tensor and frameless.hang(tensor, observe):
            return
        handle = tensor.register_hook(observe)
        if tensor.is_leaf:
            self._leaf_hooks.append(handle)
            if len(self._leaf_hooks) > RECORDED_PASSES:
                self._leaf_hooks.pop(0).remove()

    def _keep_open(self, one: Pass) -> None:
        with self.core.lock:
            self.open.append(one)
            if len(self.open) > OPEN_PASSES:
                self._close(self.open.popleft())

    def update_done(self, optimizers: int) -> None:
        """A pass without a backward is an orphan once every optimizer has had its turn twice."""
        while self._leaf_hooks:
            self._leaf_hooks.pop().remove()
        alone = self.core.trainers < 2  # else another thread may take what we count
        if alone and len(self.open) == 1 and self.open[0].trained:  # mostly
            self.open.popleft()
        elif self.open:
            patience = 2 * max(optimizers, 1)
            with self.core.lock:
                self.open = deque([one for one in self.open if self._still_waits(one, patience)])
        if self.current or len(self.light) != 1 or not alone:
            self._forget_records()
        else:
            one = self.light.popleft()  # mostly; `_forget` without a frame
            one.light = one.entry_module = one.arrived = None
            self._arrived_bytes = 0

    def _still_waits(self, one: Pass, patience: int) -> bool:
        one.updates_seen += 1
        if not one.trained and one.updates_seen >= patience:
            self._close(one)
        return not one.trained and one.updates_seen < patience

    def kept(self) -> list[Pass]:
        """The passes of this update that can be run again, in full or in part; another thread may add some."""
        return [*self.current.copy(), *self.light.copy()]

    def _forget_records(self) -> None:
        """A graph that the user keeps holds our hooks, and they hold the pass: its record must not live as long."""
        for kept in (self.current, self.light):
            while kept:
                one = kept.popleft()
                one.record = one.light = one.entry_module = one.arrived = None
        self._recorded_bytes = self._arrived_bytes = 0

    def finish(self) -> None:
        for one in self.open:
            self._close(one)
        self.open.clear()
        while self._leaf_hooks:
            self._leaf_hooks.pop().remove()
        self._forget_records()
        self.means.memory.close()

    def _close(self, one: Pass) -> None:
        if not one.trained:
            self.core.recorder.call(Call.PASS_ORPHAN, one.model.site, pass_id=one.id)


_differentiable, _on_device = attrgetter("requires_grad"), attrgetter("is_cuda")


def _forget(one: Pass) -> None:
    one.record = one.light = one.entry_module = one.arrived = None
