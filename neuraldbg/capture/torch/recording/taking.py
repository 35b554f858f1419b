"""Filling the tape while a training runs: on every pass, backward, change of gradients and update."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.torch.core import Core, now_ns
from neuraldbg.capture.torch.passes import Pass, PassRecord, few_items, output_digest, tensors
from neuraldbg.capture.torch.patches import Patches
from neuraldbg.capture.torch.recording.losses import Loss, Remade, loss_of
from neuraldbg.capture.torch.recording.tape import (
    Keeper,
    State,
    TapedBackward,
    TapedCall,
    TapedPass,
    TapedUpdate,
    record_bytes,
    size_of,
)
from neuraldbg.capture.torch.stats import digest_of
from neuraldbg.capture.torch.sweep import owned

LATELY = 4
HASHED_BYTES = 2 * 2**20  # of gradients, in one update: of more, other parameters have their turn in the next one
HASHED_EVERY = 8  # backwards: gradients that are made again and not kept; what comes of them is hashed in any case
SMALL_GRADIENT = 2**16  # bytes: it is kept as it is
LOOKED_AT_STEPS = 3  # in which it is seen whether a gradient can be made again
SMALL_BUFFER = 2**16  # bytes: BatchNorm moves its buffers without their version counter telling
LARGEST_GRADIENT = 64 * 2**20  # bytes of the gradient of one output


class Recording:
    """Takes part in every moment of a capture; `tape` is what came of it."""

    def __init__(self, core: Core, patches: Patches, tape: Keeper) -> None:
        self.core, self.tape = core, tape
        self._running: dict[int, TapedPass] = {}  # by pass, until the next updates
        self.optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._marks: dict[int, tuple[int, int]] = {}  # parameter -> identity and version of its gradient
        self._since_state = 0
        self._turn = 0  # of the parameter whose gradient is hashed next
        self._last_pass_step = -1
        self._known_change = False
        self._loss: Loss | None = None  # of the backward under way
        self._proved: set[Any] = set()  # sorts of losses whose gradient was made again with the same bits
        self._buffers: IdentityTable[tuple[int, Tensor]] = IdentityTable()  # buffer -> version and copy of it
        self._lately: deque[Any] = deque(maxlen=LATELY)  # models and optimizers: a function that trains may be over
        for moment, notice in (
            ("pass_begun", self._pass_begun),
            ("pass_ended", self._pass_ended),
            ("backward_begun", self._backward_begun),
            ("backward_done", self._backward_done),
            ("optimizer_created", self._optimizer_created),
            ("update_begun", self._update_begun),
            ("update_done", self._update_done),
        ):
            core.take_part(moment, "recording", self._aside(notice))
        self._listen(patches)

    def _aside(self, notice: Callable[..., None]) -> Callable[..., None]:
        """Recording was asked for: what it takes does not keep steps from being watched."""
        budget = self.core.budget

        def timed(*args: Any) -> None:
            start = now_ns()
            notice(*args)
            budget.set_aside(now_ns() - start)

        return timed

    def _optimizer_created(self, optimizer: Optimizer) -> None:
        self.optimizers.add(optimizer)
        self.tape.add_optimizer(optimizer)

    # -- passes --------------------------------------------------------------------------------------------------------

    def _pass_begun(self, one: Pass, root: nn.Module | None, args: Any, kwargs: Any) -> None:
        if root is None or not one.grad:
            return
        if one.step != self._last_pass_step and self.tape.wants_state(self._since_state):
            self._take_state()  # before the first pass of a step: gradients are mostly cleared by then
        self._last_pass_step = one.step
        entry = root.get_submodule(one.entry.path)
        self._hold(root)
        refused = None if few_items((args, kwargs)) else "its arguments hold too many items"
        if self.core.local.in_step is not None:
            refused = "it ran inside of the optimizer's step: a closure moves the weights several times"
        given = (args, kwargs) if refused is None else ((), {})
        training, trainable, buffers = self._around(root)
        record = PassRecord.take(root, *given, backwards=0, buffers=buffers, training=training)
        taped = TapedPass(one.step, weakref.ref(root), weakref.ref(entry), record, refused=refused)
        taped.path, taped.site, taped.trainable = one.entry.path, one.model.site, trainable
        taped.bytes = record_bytes(record)
        self._running[one.id] = taped
        self.tape.add(taped)

    def _pass_ended(self, one: Pass, _: Any, __: Any, outputs: Any) -> None:
        taped = self._running.get(one.id)
        if taped is None:
            return
        taped.digest = output_digest(outputs)
        self.tape.ended(taped)
        differentiable = [each for each in tensors(outputs) if each.requires_grad]
        taped.outputs = len(differentiable)
        looks = taped.outputs == 1 and one.step < LOOKED_AT_STEPS
        for slot, tensor in enumerate(differentiable):
            if tensor.grad_fn is not None:
                hook: Callable[..., Any] = tensor.register_hook
                hook(self._arrives(taped, slot, tensor.detach() if looks else None))

    def _hold(self, one: Any) -> None:
        if not any(each is one for each in self._lately):
            self._lately.append(one)

    def _arrives(self, taped: TapedPass, slot: int, output: Tensor | None) -> Callable[[Tensor], None]:
        core = self.core

        def arrived(gradient: Tensor) -> None:
            if not core.on or gradient is None:
                return
            start = now_ns()
            kept = self._kept(taped, gradient, output)
            if kept is None:
                taped.refused = "the gradient of its output is too large to be kept"
            else:
                self.tape.arrived(taped, core.backwards, slot, kept)
            took = now_ns() - start
            core.own_ns += took
            core.budget.set_aside(took)

        arrived.__torch_unserializable__ = True  # type: ignore[attr-defined]
        return arrived

    def _kept(self, taped: TapedPass, gradient: Tensor, output: Tensor | None) -> Tensor | Remade | None:
        """The gradient, or how to make it: once that was seen to give the same bits."""
        loss, size = self._loss, size_of([gradient])
        if loss is not None and size > SMALL_GRADIENT and self._running.get(loss.of_pass) is taped:
            if loss.signature in self._proved:
                looks = self.core.backwards % HASHED_EVERY == 0
                return Remade(loss, digest_of(gradient) if looks else 0)
            if output is not None and torch.equal(loss.gradient(output), gradient):
                self._proved.add(loss.signature)
        return gradient.detach().clone() if size <= LARGEST_GRADIENT else None

    # -- backwards -----------------------------------------------------------------------------------------------------

    def _backward_begun(self, loss: Tensor | None, *_: Any) -> None:
        self._loss = None
        taped = TapedBackward(self.core.recorder.step, self.core.backwards)
        if loss is not None and loss.numel() == 1:
            taped.value, taped.loss = loss.detach().clone(), loss_of(loss)
            one = None if taped.loss is None else self._running.get(taped.loss.of_pass)
            if one is not None and one.outputs == 1:
                self._loss = taped.loss
            else:
                taped.loss = None
        self.tape.add(taped)

    def _backward_done(self, _: Tensor | None) -> None:
        self._known_change = False
        self._marks = {id(p): _mark(p) for optimizer in self.optimizers for p in owned(optimizer)}

    # -- changes of gradients ------------------------------------------------------------------------------------------

    def _listen(self, patches: Patches) -> None:
        """To what is known to change gradients between backward and step."""
        utils = torch.nn.utils
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            told = self._telling(getattr(utils, name), name, _clipped)
            patches.replace(utils, name, told)
        for owner in (Optimizer, nn.Module):
            patches.replace(owner, "zero_grad", self._telling(owner.zero_grad, "zero", _zeroed))
        scaler = torch.amp.GradScaler
        patches.replace(scaler, "_unscale_grads_", self._telling(scaler._unscale_grads_, "unscale", _unscaled))

    def _telling(self, original: Callable[..., Any], name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        core = self.core
        note = core.guard.shield("recording")(self._note)

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if core.on and core.local.in_step is None:
                if name.startswith("clip"):  # the parameters may come out of a generator, which is read once
                    args, kwargs = _listed(args, kwargs)
                note(name, read, args, kwargs)
            return original(*args, **kwargs)

        return call

    def _note(self, name: str, read: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        parameters, amounts = read(*args, **kwargs)
        self._known_change = True
        refs = tuple(weakref.ref(each) for each in parameters)
        self.tape.add(TapedCall(self.core.recorder.step, name, refs, amounts))

    # -- updates -------------------------------------------------------------------------------------------------------

    def _update_begun(self, optimizer: Optimizer, _: Any) -> None:
        if optimizer not in self.optimizers:  # it was there before us, and has not stepped since
            self._optimizer_created(optimizer)
            self.tape.late(optimizer, state_of(optimizer))
        self._hold(optimizer)
        held = list(owned(optimizer))
        digests = self._digests(held)
        taped = TapedUpdate(self.core.recorder.step, weakref.ref(optimizer), _settings(optimizer), digests)
        changed = [at for at, p in enumerate(held) if self._marks.get(id(p)) != _mark(p)]
        if changed and not self._known_change:
            taped.gradients = {at: p.grad.detach().clone() for at, p in enumerate(held) if p.grad is not None}
            taped.bytes = size_of(taped.gradients.values())
        if type(optimizer).__name__ == "LBFGS":
            taped.refused = "its step calls the model itself (a closure)"
        self.tape.add(taped)

    @torch.no_grad()
    def _digests(self, held: list[Tensor]) -> dict[int, int]:
        """Hashes of gradients, by position: of all, or of as many as take no time, each in its turn."""
        found, read = {}, 0
        for number in range(len(held)):
            at = (self._turn + number) % len(held)
            gradient = held[at].grad
            if gradient is not None:
                found[at] = digest_of(gradient)
                read += size_of([gradient])
            if read > HASHED_BYTES:
                self._turn = at + 1
                break
        return found

    @torch.no_grad()
    def _around(self, root: nn.Module) -> tuple[tuple[bool, ...], tuple[bool, ...], dict[str, Tensor]]:
        """In one walk: training flags, which parameters are trainable, and copies of the buffers."""
        training, trainable, buffers = [], [], {}
        for path, module in root.named_modules():
            training.append(module.training)
            trainable += [p.requires_grad for p in module._parameters.values() if p is not None]
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    buffers[f"{path}.{name}" if path else name] = self._copied(buffer)
        return tuple(training), tuple(trainable), buffers

    def _copied(self, buffer: Tensor) -> Tensor:
        """Large ones that have not been written to since are copied once."""
        if buffer.numel() * buffer.element_size() <= SMALL_BUFFER or buffer.is_inference():
            return buffer.detach().clone()
        kept = self._buffers.get(buffer)
        if kept is None or kept[0] != buffer._version:
            kept = self._buffers[buffer] = (buffer._version, buffer.detach().clone())
        return kept[1]

    def _update_done(self, *_: Any) -> None:
        self._known_change = False
        self._since_state += 1
        self._running.clear()

    @torch.no_grad()
    def _take_state(self) -> None:
        """As it is before the next pass."""
        self._since_state = 0
        began = time.thread_time()
        parameters = {id(p): p for _, p in self.core.tree.trainable()}
        for optimizer in self.optimizers:
            parameters.update((id(p), p) for p in owned(optimizer))
        step = self.core.recorder.step
        values = [(weakref.ref(p), p.detach().clone()) for p in parameters.values()]
        gradients = [(weakref.ref(p), None if p.grad is None else p.grad.clone()) for p in parameters.values()]
        optimizers = [(weakref.ref(one), state_of(one)) for one in self.optimizers]
        state = State(step, values, gradients, optimizers)
        held = [each for _, one in optimizers for entry in one.values() for each in entry.values()]
        state.bytes = size_of(value for _, value in values) + size_of(each for each in held if isinstance(each, Tensor))
        state.bytes += size_of(each for _, each in gradients if each is not None)
        state.taken_s = time.thread_time() - began
        self.tape.add_state(state)


def state_of(optimizer: Optimizer) -> dict[int, dict[str, Any]]:
    """A copy of what an optimizer remembers of each parameter, by the parameter's position."""
    found = {}
    for at, parameter in enumerate(owned(optimizer)):
        if parameter in optimizer.state:
            entry = optimizer.state[parameter]
            found[at] = {key: each.clone() if isinstance(each, Tensor) else each for key, each in entry.items()}
    return found


def _settings(optimizer: Optimizer) -> tuple[dict[str, Any], ...]:
    return tuple(
        {key: each.clone() if isinstance(each, Tensor) else each for key, each in group.items() if key != "params"}
        for group in optimizer.param_groups
    )


def _mark(parameter: Tensor) -> tuple[int, int]:
    gradient = parameter.grad
    return (0, 0) if gradient is None else (id(gradient), gradient._version)


def _listed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    given = args[0] if args else kwargs.get("parameters")
    if isinstance(given, Tensor) or not isinstance(given, Iterable):
        return args, kwargs
    return ((list(given), *args[1:]), kwargs) if args else (args, {**kwargs, "parameters": list(given)})


def _clipped(parameters: Any, *args: Any, **kwargs: Any) -> tuple[list[Any], tuple[Any, ...]]:
    held = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return held, (args, kwargs)


def _zeroed(owner: Any, set_to_none: bool = True) -> tuple[list[Any], tuple[Any, ...]]:
    held = owned(owner) if isinstance(owner, Optimizer) else owner.parameters()
    return list(held), (set_to_none,)


def _unscaled(
    _: Any, optimizer: Optimizer, inv_scale: Tensor, *__: Any, **___: Any
) -> tuple[list[Any], tuple[Any, ...]]:
    return list(owned(optimizer)), (inv_scale.clone(),)
