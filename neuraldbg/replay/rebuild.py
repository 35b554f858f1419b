"""Making a past step again from the tape: from the newest state before it, pass by pass, proved by hashes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from neuraldbg.capture.torch.core import Core
from neuraldbg.capture.torch.nested import tensors
from neuraldbg.capture.torch.origin.rerun import as_it_was, unseen
from neuraldbg.capture.torch.passes import RngState, autocast_as
from neuraldbg.capture.torch.recording.hashing import Hasher, settled
from neuraldbg.capture.torch.recording.losses import Remade
from neuraldbg.capture.torch.recording.taking import state_of
from neuraldbg.capture.torch.recording.tape import (
    SCALING,
    Entry,
    State,
    Tape,
    TapedBackward,
    TapedCall,
    TapedPass,
    TapedUpdate,
)
from neuraldbg.capture.torch.sweep import owned
from neuraldbg.errors import NotRecorded

GRADIENTS = ("gradient", "weight_gradient")
ABOUT = "±"
VARYING = "gradients on CUDA vary from run to run unless it is recorded with --deterministic"


@dataclass
class Seen:
    """What was asked for, at each time that the layer ran in the step."""

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    gradients: dict[int, Tensor] = field(default_factory=dict)  # run of the layer -> gradient of its output
    weight: Tensor | None = None  # as the passes of the step saw it
    weight_gradient: Tensor | None = None  # as the optimizer saw it


@dataclass
class Rebuilt:
    """A step made again: the tensors, and whether every hash on the way agreed."""

    step: int
    seen: dict[str, Seen]  # by layer
    from_step: int
    checked: int = 0  # hashes that were compared
    differs_since: int | None = None  # step
    varies: bool = False  # gradients come out a little different each time: CUDA, without repeatable kernels
    passes_checked: int = 0  # of the hashes, those of outputs, up to the step
    passes_differ_since: int | None = None

    @property
    def proof(self) -> str:
        return self.proof_of(None)[0]

    def proof_of(self, what: str | None) -> tuple[str, bool | None]:
        """In words, and whether it is identical; None where that cannot be said. `what`: of one tensor."""
        if not self.varies:
            return _words(self.checked, self.differs_since)
        if what in GRADIENTS:
            return f"{ABOUT} {VARYING}", None
        said, same = _words(self.passes_checked, self.passes_differ_since)
        if same is False:
            return f"{said}, {ABOUT}: {VARYING}; outputs are exact at step {self.from_step}", False
        return (said if what is not None else f"{said} (outputs); {ABOUT} {VARYING}"), same

    def compare(self, step: int, same: bool, *, output: bool = False) -> None:
        self.checked += 1
        if not same and self.differs_since is None:
            self.differs_since = step
        if output and step <= self.step:
            self.passes_checked += 1
            if not same and self.passes_differ_since is None:
                self.passes_differ_since = step


def _words(checked: int, differs_since: int | None) -> tuple[str, bool | None]:
    if differs_since is not None:
        return f"not identical since update {differs_since}", False
    return ("proved identical", True) if checked else ("not proved: nothing of it could be hashed", None)


class Source(Protocol):
    """What a step is made again from: a recording under way, or one that was read back."""

    core: Core
    optimizers: Any

    @property
    def repeatable(self) -> bool: ...  # the kernels of the run give the same bits each time, also on CUDA

    @property
    def tape(self) -> Any: ...


class Rebuilder:
    """Works in the live process, between two steps; everything it touches is as before afterwards."""

    def __init__(self, recording: Source) -> None:
        self._recording = recording
        self._tape: Tape = recording.tape
        self._outputs: dict[TapedPass, list[Tensor]] = {}
        self._hasher = Hasher()
        self.on_step: Callable[[], None] | None = None  # told when the step that was asked for begins
        self.on_pass: Callable[[TapedPass, Any], None] | None = None  # told of each of its passes and their outputs
        self.on_update: Callable[[], None] | None = None  # told before its update, when its gradients are there

    def step(self, step: int, layers: Mapping[str, nn.Module] | None = None) -> Rebuilt:
        state, why = self._tape.state_before(step), self._tape.why_not(step)
        if state is None or why is not None:
            raise NotRecorded(f"step {step} cannot be made again: {why}")
        asked = dict(layers or {})
        made = Rebuilt(step, {name: Seen() for name in asked}, state.step, varies=self._varies(state))
        with unseen(self._recording.core), autocast_as(()), self._everything_kept(state):
            _load(state)
            entries = self._tape.after(state)
            for entry in entries:
                if entry.step > step and not self._awaited(step):
                    self._prove(itertools.chain([entry], entries), made)
                    break
                if entry.step == step and self.on_step is not None:
                    self.on_step()
                    self.on_step = None
                self._again(entry, made, asked if entry.step == step else {})
            self._outputs.clear()
        return made

    def _varies(self, state: State) -> bool:
        return not self._recording.repeatable and any(value.is_cuda for _, value in state.parameters)

    def _prove(self, entries: Iterator[Entry], made: Rebuilt) -> None:
        """The passes after the step: of large models not every gradient is hashed, but a wrong one has moved its
        parameter to where these passes are not what they were."""
        for entry in entries:
            if isinstance(entry, TapedUpdate):
                return
            if isinstance(entry, TapedPass) and entry.refused is None and entry.record.intact:
                self._pass(entry, made, {})

    def _awaited(self, step: int) -> bool:
        """Whether gradients of a pass of the step come later, as those of a generator do."""
        return any(taped.step == step for taped in self._outputs)

    # -- one entry after the other -------------------------------------------------------------------------------------

    def _again(self, entry: Entry, made: Rebuilt, layers: Mapping[str, nn.Module]) -> None:
        if isinstance(entry, TapedPass):
            self._pass(entry, made, layers)
        elif isinstance(entry, TapedBackward):
            self._backward(entry, made)
        elif isinstance(entry, TapedCall):
            _call(entry)
        else:
            self._update(entry, made, layers)

    def _pass(self, taped: TapedPass, made: Rebuilt, layers: Mapping[str, nn.Module]) -> None:
        root, entry = taped.root(), taped.entry()
        if root is None or entry is None:
            raise NotRecorded(f"step {taped.step} cannot be made again: the model is gone")
        if taped.refused is not None or not taped.record.intact:
            why = taped.refused or "an input was written to since"
            raise NotRecorded(f"step {taped.step} cannot be made again: {why}")
        set_trainable(root, taped.trainable)
        torch.clear_autocast_cache()  # weights have moved since
        with ExitStack() as around:
            for name, layer in layers.items():
                around.enter_context(_watching(layer, made.seen[name]))
            outputs = taped.record.rerun(entry, root)
        if self.on_pass is not None and taped.step == made.step:
            self.on_pass(taped, outputs)
        digest = settled(taped.digest)
        if digest:
            made.compare(taped.step, self._hasher.now_sync(*tensors(outputs)) == digest, output=True)
        if taped.arrived:
            self._outputs[taped] = [each for each in tensors(outputs) if each.requires_grad]

    def _backward(self, taped: TapedBackward, made: Rebuilt) -> None:
        """All passes that this backward went through, at once: sums are made in the order they were made in."""
        given, arriving = [], []
        for one, outputs in self._outputs.items():
            for slot, gradient in one.arrived.get(taped.backward, {}).items():
                given.append(outputs[slot])
                arriving.append(self._arrived(gradient, outputs[slot], taped.step, made))
        if given:
            with autocast_as(taped.autocast), ExitStack() as around:
                for output, came in zip(given, arriving, strict=True):
                    around.enter_context(_as_it_came(output, came))
                torch.autograd.backward(given, arriving, retain_graph=True)
        for one in [one for one in self._outputs if max(one.arrived) <= taped.backward]:
            del self._outputs[one]

    def _update(self, taped: TapedUpdate, made: Rebuilt, layers: Mapping[str, nn.Module]) -> None:
        optimizer = taped.optimizer()
        if taped.refused is not None or optimizer is None:
            raise NotRecorded(f"step {taped.step} cannot be made again: {taped.refused or 'its optimizer is gone'}")
        held = owned(optimizer)
        for at, gradient in (taped.gradients or {}).items():
            held[at].grad = gradient.clone()
        if self.on_update is not None and taped.step == made.step:
            self.on_update()
        for name, layer in layers.items():
            _look_at_weight(layer, made.seen[name])
        for at, digest in taped.digests.items():
            found, expected = held[at].grad, settled(digest)
            if expected:
                made.compare(taped.step, found is not None and self._hasher.now_sync(found) == expected)
        with _as_it_was_set(optimizer, taped):
            optimizer.step()

    def _arrived(self, gradient: Tensor | Remade, output: Tensor, step: int, made: Rebuilt) -> Tensor:
        if isinstance(gradient, Tensor):
            return gradient.clone()
        again, same = gradient.gradient(output, self._hasher)
        if same is not None:
            made.compare(step, same)
        return again

    # -- the live state ------------------------------------------------------------------------------------------------

    @contextmanager
    def _everything_kept(self, state: State) -> Iterator[None]:
        """Parameters, gradients, optimizers, attributes of the models and the generators, as they are now."""
        parameters = [p for p in (ref() for ref, _ in state.parameters) if p is not None]
        optimizers = [one for one in (ref() for ref, _ in state.optimizers) if one is not None]
        optimizers += [one for one in self._recording.optimizers if one not in optimizers]
        values = [p.detach().clone() for p in parameters]
        gradients = [p.grad for p in parameters]
        trainable = [(root, [p.requires_grad for p in each_parameter(root)]) for root in self._tape.roots]
        states = [(one, state_of(one), dict(vars(one))) for one in optimizers]
        generators = RngState.take()
        try:
            with ExitStack() as around:
                for p in parameters:  # a pass may be under way, whose backward asks whether they were written to
                    around.enter_context(_unsafe_preserve_version_counter(p))
                for root in self._tape.roots:
                    around.enter_context(as_it_was(root))
                for p in parameters:
                    p.grad = None
                yield
        finally:
            for root, flags in trainable:
                set_trainable(root, flags)
            with torch.no_grad():
                for p, value, gradient in zip(parameters, values, gradients, strict=True):
                    p.data.copy_(value)
                    p.grad = gradient
            for one, kept, attributes in states:
                put_state(one, kept)
                vars(one).update(attributes)  # such as a counter of steps
            generators.restore()


def each_parameter(root: nn.Module) -> Iterator[nn.Parameter]:
    """Module by module, as a recording lists them."""
    return (p for module in root.modules() for p in module._parameters.values() if p is not None)


def set_trainable(root: nn.Module, flags: Sequence[bool]) -> None:
    for parameter, flag in zip(each_parameter(root), flags, strict=False):
        if parameter.requires_grad != flag:
            parameter.requires_grad_(flag)


def _load(state: State) -> None:
    with torch.no_grad():
        for (ref, value), (_, gradient) in zip(state.parameters, state.gradients, strict=True):
            parameter = ref()
            if parameter is not None:
                parameter.data.copy_(value)
                parameter.grad = None if gradient is None else gradient.clone()
    for ref, kept in state.optimizers:
        optimizer = ref()
        if optimizer is not None:
            put_state(optimizer, kept)


def put_state(optimizer: Any, kept: dict[int, dict[str, Any]]) -> None:
    for at, parameter in enumerate(owned(optimizer)):
        optimizer.state.pop(parameter, None)
        if at in kept:
            copied = {key: each.clone() if isinstance(each, Tensor) else each for key, each in kept[at].items()}
            optimizer.state[parameter] = copied


def _call(taped: TapedCall) -> None:
    held = [p for p in (ref() for ref in taped.parameters) if p is not None]
    if taped.name == "zero":
        for p in held:
            if p.grad is not None and taped.amounts[0]:
                p.grad = None
            elif p.grad is not None:
                p.grad = torch.zeros_like(p.grad)
    elif taped.name == "unscale":
        gradients = [p.grad for p in held if p.grad is not None]
        if gradients:
            torch._amp_foreach_non_finite_check_and_unscale_(
                gradients, torch.zeros(1, device=gradients[0].device), taped.amounts[0].to(gradients[0].device)
            )
    else:
        args, kwargs = taped.amounts
        getattr(torch.nn.utils, taped.name)(held, *args, **kwargs)


@contextmanager
def _as_it_was_set(optimizer: Any, taped: TapedUpdate) -> Iterator[None]:
    before = [dict(group) for group in optimizer.param_groups]
    scaling = dict(zip(SCALING, taped.scaling or (), strict=False))
    for group, settings in zip(optimizer.param_groups, taped.groups, strict=True):
        group.update(settings)
    for name, value in scaling.items():
        setattr(optimizer, name, None if value is None else value.clone())
    try:
        yield
    finally:
        for name in scaling:
            delattr(optimizer, name)
        for group, settings in zip(optimizer.param_groups, before, strict=True):
            group.update(settings)


@contextmanager
def _as_it_came(output: Any, gradient: Tensor) -> Iterator[None]:
    """An output that another output was made of gets part of its gradient from there: what came in all is known, and
    whoever else looks at it sees that."""
    handle = output.register_hook(lambda _: gradient.clone())
    hooks = output._backward_hooks
    others = [(key, hook) for key, hook in hooks.items() if key != handle.id]
    for key, hook in others:  # anew, and so behind ours: torch goes by the order in the dict itself
        del hooks[key]
        hooks[key] = hook
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _watching(layer: nn.Module, seen: Seen) -> Iterator[None]:
    """What goes into a layer and comes out of it, and the gradient that comes back."""

    def ran(_: Any, args: Any, output: Any) -> None:
        entered, left = next(tensors(args), None), next(tensors(output), None)
        if entered is not None:
            seen.inputs.append(entered.detach().clone())
        if left is None:
            return
        number = len(seen.outputs)
        seen.outputs.append(left.detach().clone())
        if left.requires_grad:
            hook: Any = left.register_hook
            hook(lambda gradient: seen.gradients.__setitem__(number, gradient.detach().clone()))

    handle = layer.register_forward_hook(ran)
    try:
        yield
    finally:
        handle.remove()


def _look_at_weight(layer: nn.Module, seen: Seen) -> None:
    weight = next(layer.parameters(recurse=False), None)
    if weight is not None and seen.weight is None:
        seen.weight = weight.detach().clone()
        seen.weight_gradient = None if weight.grad is None else weight.grad.detach().clone()
