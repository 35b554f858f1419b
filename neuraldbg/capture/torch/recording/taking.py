"""Filling the tape while a training runs: on every pass, backward, change of gradients and update."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.kernels import frameless
from neuraldbg.capture.torch.core import PREPARED, Core, now_ns
from neuraldbg.capture.torch.nested import few_given, tensors
from neuraldbg.capture.torch.passes import Pass, PassRecord, any_casting, casting
from neuraldbg.capture.torch.patches import Patches
from neuraldbg.capture.torch.pieces import Memory, copied, copy_of, memory_for
from neuraldbg.capture.torch.recording.changes import clipped, listed, unscaled, zeroed
from neuraldbg.capture.torch.recording.ferry import room_for
from neuraldbg.capture.torch.recording.hashing import Hasher, HashesInTurn
from neuraldbg.capture.torch.recording.losses import Loss, Remade, loss_of
from neuraldbg.capture.torch.recording.marks import GradientMarks
from neuraldbg.capture.torch.recording.names import has_a_shape
from neuraldbg.capture.torch.recording.outside import reaches_leaves
from neuraldbg.capture.torch.recording.pacing import Pace
from neuraldbg.capture.torch.recording.proving import Proofs
from neuraldbg.capture.torch.recording.structure import Around
from neuraldbg.capture.torch.recording.tape import (
    Keeper,
    State,
    TapedBackward,
    TapedCall,
    TapedPass,
    TapedUpdate,
    record_bytes,
    scaling_of,
    size_of,
)
from neuraldbg.capture.torch.sweep import owned

LATELY = 4
HASHED_EVERY = 8  # backwards: gradients that are made again and not kept; what comes of them is hashed in any case
SMALL_GRADIENT = 2**16  # bytes: it is kept as it is
LOOKED_AT_STEPS = 3  # in which it is seen whether a gradient can be made again
DEVICE_COPIES = 5e11  # bytes a second: measured on an H200, 1.86 GB in 3.9 ms
LARGEST_GRADIENT = 64 * 2**20  # bytes of the gradient of one output


class Recording:
    """Takes part in every moment of a capture; `tape` is what came of it."""

    def __init__(self, core: Core, patches: Patches, tape: Keeper, pace: Pace | None = None) -> None:
        self.core, self.tape = core, tape
        self._pace = pace  # None: always awake
        self._awake = True
        self._running: dict[int, TapedPass] = {}  # by pass, until the next updates
        self.optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._known: list[weakref.ref[Optimizer]] = []  # the same: to walk through a set of them is four frames
        self._ready: IdentityTable[bool] = IdentityTable()  # models
        self._marks = GradientMarks()
        self._room: Memory | None = None  # for the first state
        self._own_ns = 0  # since the last update
        self._since_state = 0
        self._last_pass_step = -1
        self._broken = False
        self._in_backward = False
        self._outside = False  # gradients came to parameters past every pass since the last update
        self._loss: Loss | None = None  # of the backward under way
        self._proofs = Proofs()  # sorts of losses whose gradient was made again with the same bits
        self._hasher = Hasher()
        self._hashes = HashesInTurn(self._hasher)
        self._around = Around()
        self._lately: deque[Any] = deque(maxlen=LATELY)  # models and optimizers: a function that trains may be over
        self._asleep_in = -1  # the step in which it was last looked whether to wake
        self._notices: dict[str, Callable[..., None]] = {}  # by moment: nobody tells them while it sleeps
        self._take_part(core)
        self._listen(patches)

    def _take_part(self, core: Core) -> None:
        if self._pace is not None:
            core.take_part("pass_begun", "recording", self._may_wake, rarely=True)
        for moment, notice in (
            ("pass_begun", self._pass_begun),
            ("pass_ended", self._pass_ended),
            ("backward_begun", self._backward_begun),
            ("backward_done", self._backward_done),
            ("update_begun", self._update_begun),
            ("update_done", self._update_done),
        ):
            self._notices[moment] = self._aside(notice)
            core.take_part(moment, "recording", self._notices[moment])
        core.take_part("optimizer_created", "recording", self._optimizer_created)

    @property
    def repeatable(self) -> bool:
        return torch.are_deterministic_algorithms_enabled()

    def _aside(self, notice: Callable[..., None]) -> Callable[..., None]:
        """Recording was asked for: what it takes does not keep steps from being watched. Where one part of it fails,
        all of it ends: a tape with holes would be worse than none."""

        def timed(*args: Any) -> None:
            if not self._awake or self._broken:
                return
            start, done = now_ns(), False
            try:
                notice(*args)
                done = True
            finally:
                if not done:
                    self._end()
            self._own_ns += now_ns() - start

        return timed

    def _end(self) -> None:
        """For good: nothing is kept for what will not come."""
        self._awake, self._broken = False, True
        self._room, self.core.recorded = None, {}

    def _settle(self) -> None:
        """The books of an update, once for all of its parts."""
        own_ns, self._own_ns = self._own_ns, 0
        self.core.budget.set_aside(own_ns)
        if self._pace is not None:
            self._pace.spent(own_ns)

    def _optimizer_created(self, optimizer: Optimizer) -> None:
        self.optimizers.add(optimizer)
        self._known = list(map(weakref.ref, self.optimizers))
        self.tape.add_optimizer(optimizer)
        if self._last_pass_step < 0 and len(self.optimizers) <= PREPARED and self._awake:
            self._room = memory_for([parameter for one in self.optimizers for parameter in owned(one)])

    # -- passes --------------------------------------------------------------------------------------------------------

    def _pass_begun(self, one: Pass, root: nn.Module | None, args: Any, kwargs: Any) -> None:
        if root is None or not one.grad or not self._is_ready(root):
            return
        if one.step != self._last_pass_step and self.tape.wants_state(self._since_state):
            self._take_state()  # before the first pass of a step: gradients are mostly cleared by then
        if self.tape.failed is not None:
            self._end()
            return
        self._last_pass_step = one.step
        entry = root.get_submodule(one.entry.path) if one.entry.path else root
        _hold(self._lately, root)
        refused = None if few_given(one.entered, args, kwargs) else "its arguments hold too many items"
        if self.core.here.local.in_step is not None:
            refused = "it ran inside of the optimizer's step: a closure moves the weights several times"
        given = (args, kwargs) if refused is None else ((), {})
        training, trainable, buffers = self._around.look(root, one.around)
        if one.record is None or refused is not None:
            record = PassRecord.take(root, *given, backwards=0, around=(training, buffers))
        else:  # the batch and the random states were copied a moment ago
            was = one.record
            kept = (was.rng, was.args, was.kwargs, training, buffers, was.autocast, was.grad_enabled)
            record = PassRecord(*kept, backwards_before=0)
        taped = TapedPass(one.step, weakref.ref(root), weakref.ref(entry), record, refused=refused)
        taped.path, taped.site, taped.trainable = one.entry.path, one.model.site, trainable
        taped.bytes = record_bytes(record)
        self._running[one.id] = taped
        self.tape.add(taped)

    def _is_ready(self, root: nn.Module) -> bool:
        """Not before its lazy layers have their shapes: that pass is left out."""
        if root not in self._ready and has_a_shape(root):
            self._ready[root] = True
        return root in self._ready

    def _pass_ended(self, one: Pass, _: Any, __: Any, outputs: Any) -> None:
        taped = self._running.get(one.id)
        if taped is None:
            return
        taped.digest = one.output_digest or self._hasher.of_outputs(outputs)
        self.tape.ended(taped)
        differentiable = [each for each in tensors(outputs) if each.requires_grad]
        taped.outputs = len(differentiable)
        looks = taped.outputs == 1 and one.step < LOOKED_AT_STEPS
        for slot, tensor in enumerate(differentiable):
            if tensor.grad_fn is not None:
                _hang(tensor, self._arrives(taped, slot, tensor.detach() if looks else None))

    def _arrives(self, taped: TapedPass, slot: int, output: Tensor | None) -> Callable[[Tensor], None]:
        core = self.core

        def arrived(gradient: Tensor) -> None:
            if not core.on or gradient is None or not self._awake or not self._in_backward:
                return  # torch.autograd.grad leaves no gradient behind
            start = now_ns()
            kept = self._kept(taped, gradient, output)
            if kept is None:
                self.tape.refuse(taped, "the gradient of its output is too large to be kept")
            else:
                self.tape.arrived(taped, core.backwards, slot, kept)
            took = now_ns() - start
            core.own_ns += took
            self._own_ns += took

        arrived.__torch_unserializable__ = True  # type: ignore[attr-defined]
        return arrived

    def _kept(self, taped: TapedPass, gradient: Tensor, output: Tensor | None) -> Tensor | Remade | None:
        """The gradient, or how to make it: once that was seen to give the same bits."""
        loss, size = self._loss, size_of([gradient])
        if loss is not None and size > SMALL_GRADIENT and self._running.get(loss.of_pass) is taped:
            if self._proofs.has(loss.signature):
                looks = self.core.backwards % HASHED_EVERY == 0
                return Remade(loss, self._hasher.of(gradient) if looks else 0)
            if output is not None:
                self._proofs.add(loss.signature, loss.gradient(output), gradient)
            if size > LARGEST_GRADIENT:  # not proved yet: the hash tells whoever makes it again
                return Remade(loss, self._hasher.of(gradient))
        return copy_of(gradient) if size <= LARGEST_GRADIENT else None

    # -- backwards -----------------------------------------------------------------------------------------------------

    def _backward_begun(self, loss: Tensor | None, *_: Any) -> None:
        self._loss, self._in_backward = None, True
        taped = TapedBackward(self.core.recorder.step, self.core.backwards, autocast=casting() if any_casting() else ())
        self._outside = self._outside or loss is None or reaches_leaves(loss)
        if loss is not None and loss.numel() == 1:
            taped.value, taped.loss = loss.detach().clone(), loss_of(loss)
            one = None if taped.loss is None else self._running.get(taped.loss.of_pass)
            if one is not None and one.outputs == 1:
                self._loss = taped.loss
            else:
                taped.loss = None
        self.tape.add(taped)

    def _backward_done(self, _: Tensor | None) -> None:
        self._in_backward = False
        self._marks.take([owned(one) for ref in self._known if (one := ref()) is not None])

    # -- changes of gradients ------------------------------------------------------------------------------------------

    def _listen(self, patches: Patches) -> None:
        """To what is known to change gradients between backward and step."""
        utils = torch.nn.utils
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            told = self._telling(getattr(utils, name), name, clipped)
            patches.replace(utils, name, told)
        for owner in (Optimizer, nn.Module):
            patches.replace(owner, "zero_grad", self._telling(owner.zero_grad, "zero", zeroed))
        scaler = torch.amp.GradScaler
        patches.replace(scaler, "_unscale_grads_", self._telling(scaler._unscale_grads_, "unscale", unscaled))

    def _telling(self, original: Callable[..., Any], name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        core = self.core
        note = core.guard.shield("recording")(self._note)

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if core.on and self._awake and core.here.local.in_step is None:
                if name.startswith("clip"):  # the parameters may come out of a generator, which is read once
                    args, kwargs = listed(args, kwargs)
                known = note(name, read, args, kwargs) or []
                result = original(*args, **kwargs)
                self._marks.take_again(known)
                return result
            return original(*args, **kwargs)

        return call

    def _note(self, name: str, read: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        parameters, amounts = read(*args, **kwargs)
        refs = tuple(map(weakref.ref, parameters))
        self.tape.add(TapedCall(self.core.recorder.step, name, refs, amounts))
        return parameters  # type: ignore[no-any-return]

    # -- updates -------------------------------------------------------------------------------------------------------

    def _update_begun(self, optimizer: Optimizer, _: Any) -> None:
        if optimizer not in self.optimizers:  # it was there before us, and has not stepped since
            self._optimizer_created(optimizer)
            self.tape.late(optimizer, state_of(optimizer))
        _hold(self._lately, optimizer)
        held = owned(optimizer)
        digests = self._hashes.of_gradients(held)
        taped = TapedUpdate(self.core.recorder.step, weakref.ref(optimizer), _settings(optimizer), digests)
        if self._outside or not self._marks.stand(held):  # what we know nothing of
            given = {at: p.grad for at, p in enumerate(held) if p.grad is not None}
            taped.gradients = dict(zip(given, copied(list(given.values())), strict=True))
            taped.bytes = size_of(taped.gradients.values())
        taped.scaling = scaling_of(optimizer)
        if type(optimizer).__name__ == "LBFGS":
            taped.refused = "its step calls the model itself (a closure)"
        self.tape.add(taped)

    def _update_done(self, *_: Any) -> None:
        self._settle()
        self._since_state += 1
        self._outside = False
        self._running.clear()
        self._room, self.core.recorded = None, {}
        if self._pace is not None and self._pace.update_done():
            self._awake = False
            for moment, notice in self._notices.items():
                self.core.stop_telling(moment, notice)
            self.tape.pause()

    def _may_wake(self, one: Pass, root: nn.Module | None, *given: Any) -> None:
        """Between two updates, and not where a pass goes on from one that was not recorded, as that of a discriminator
        does for its generator."""
        if self._awake or root is None or not one.grad or self._broken or not self._is_ready(root):
            return
        self.tape.meet(root, one.model.site)
        if one.step == self._asleep_in or self.core.heard is not self.core.moments:
            return  # in other steps not every pass is told of
        self._asleep_in = one.step
        if self._pace is not None and self._pace.due() and all(each.grad_fn is None for each in tensors(given)):
            self._pace.wake()
            self._awake = True
            for moment, notice in self._notices.items():
                self.core.tell_again(moment, notice)
            self._notices["pass_begun"](one, root, *given)  # who is told of this one was settled before

    @torch.no_grad()
    def _take_state(self) -> None:
        """As it is before the next pass."""
        began = time.thread_time()
        parameters = {id(p): p for _, p in self.core.tree.trainable()}
        for optimizer in self.optimizers:
            parameters.update((id(p), p) for p in owned(optimizer))
        if any(is_lazy(p) for p in parameters.values()):
            return  # it gets its shape in a pass
        if not self._has_room(list(parameters.values())):
            return
        self._since_state = 0
        step = self.core.recorder.step
        copies = copied([p.detach() for p in parameters.values()], self._room)
        self.core.recorded, self._room = dict(zip(parameters, copies, strict=True)), None
        values = list(zip(map(weakref.ref, parameters.values()), copies, strict=True))
        kept = iter(copied([p.grad for p in parameters.values() if p.grad is not None]))
        gradients = [(weakref.ref(p), None if p.grad is None else next(kept)) for p in parameters.values()]
        optimizers = [(weakref.ref(one), state_of(one)) for one in self.optimizers]
        state = State(step, values, gradients, optimizers)
        held = [each for _, one in optimizers for entry in one.values() for each in entry.values()]
        state.bytes = size_of(value for _, value in values) + size_of(each for each in held if isinstance(each, Tensor))
        state.bytes += size_of(each for _, each in gradients if each is not None)
        on_device = size_of(value for _, value in values if value.is_cuda) / (state.bytes or 1)
        state.taken_s = time.thread_time() - began + on_device * state.bytes / DEVICE_COPIES
        self.tape.add_state(state)

    def _has_room(self, parameters: list[Tensor]) -> bool:
        """For a state. Nothing is copied before that is known."""
        size = size_of(parameters) + size_of(p.grad for p in parameters if p.grad is not None)
        for optimizer in self.optimizers:
            held = (each for entry in optimizer.state.values() for each in entry.values())
            size += size_of(each for each in held if isinstance(each, Tensor))
        on_device = size if any(p.is_cuda for p in parameters) else 0
        if not self.tape.admits(size, on_device):
            return False
        if not room_for(size, {p.device for p in parameters}):
            self.tape.give_up(f"the device has no room for a copy of the parameters ({size >> 20} MB) beside them")
            return False
        return True


def state_of(optimizer: Optimizer) -> dict[int, dict[str, Any]]:
    """A copy of what an optimizer remembers of each parameter, by the parameter's position."""
    states = optimizer.state
    entries = {at: states[parameter] for at, parameter in enumerate(owned(optimizer)) if parameter in states}
    copies = iter(copied([each for entry in entries.values() for each in entry.values() if isinstance(each, Tensor)]))
    return {
        at: {key: next(copies) if isinstance(each, Tensor) else each for key, each in entry.items()}
        for at, entry in entries.items()
    }


def _settings(optimizer: Optimizer) -> tuple[dict[str, Any], ...]:
    return tuple(
        {key: each.clone() if isinstance(each, Tensor) else each for key, each in group.items() if key != "params"}
        for group in optimizer.param_groups
    )


def _hang(tensor: Any, observe: Callable[[Tensor], None]) -> None:
    if frameless.hang is None or type(tensor) is not Tensor or not frameless.hang(tensor, observe):
        tensor.register_hook(observe)


def _hold(lately: deque[Any], one: Any) -> None:
    for each in lately:
        if each is one:
            return
    lately.append(one)
