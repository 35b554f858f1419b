"""Running a pass of the current step again under the localiser, so that the user's training never notices."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from neuraldbg.capture.torch.core import Core
from neuraldbg.capture.torch.dispatch import has_compiled_call
from neuraldbg.capture.torch.nested import leaves, tensors
from neuraldbg.capture.torch.origin.localiser import Event, Localiser
from neuraldbg.capture.torch.origin.values import not_finite
from neuraldbg.capture.torch.passes import KeptTensor, Pass, PassRecord
from neuraldbg.capture.torch.tree import unwrap

GUARDED_BYTES = 2**28  # of parameters that are copied in case the forward writes to them
_SHARDED = ("FullyShardedDataParallel", "FSDPModule")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")


@dataclass
class Outcome:
    """What running one pass again showed."""

    bad: list[Event] = field(default_factory=list)  # makers of bad outputs, or of bad gradients
    gradients: bool = False  # the backward ran as well


class Rerun:
    """One attempt on one pass. `refused` says why it cannot be run again; None when it can."""

    def __init__(self, core: Core, one: Pass) -> None:
        self.core = core
        self.one = one
        module = None if one.entry_module is None else one.entry_module()
        self.root: nn.Module | None = one.model.ref()
        self.entry = None if module is None else unwrap(module)[0]
        self.record: PassRecord | None = None
        self.refused = self._why_not()

    def _why_not(self) -> str | None:
        one, root = self.one, self.root
        if self.entry is None or root is None:
            return "the pass was not recorded"
        if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
            return "a torch mode of the script is active"
        alone = self.core.why_not_again(root)
        if alone is not None:
            return alone
        if _foreign_hooks(root):
            return "the model has hooks of its own"
        if any(isinstance(m, torch.jit.ScriptModule) or type(m).__name__ in _SHARDED for m in root.modules()):
            return "the model is sharded or scripted"
        self.record = one.record if one.record is not None and one.record.intact else None
        if self.record is None and one.light is not None:
            self.record = one.light.firm(root)
        return None if self.record is not None else "an input of the pass is gone or was written to"

    def inputs(self) -> list[Tensor]:
        if self.record is None:
            return []
        return [kept.tensor for kept in leaves((self.record.args, self.record.kwargs), KeptTensor)]

    def run(self, mode: Localiser, *, backward: bool) -> Outcome:
        record, root, entry = self.record, self.root, self.entry
        if record is None or root is None or entry is None:
            return Outcome()
        self._introduce(mode, root)
        mode.begin_pass()
        mode.stop = Rerun.run.__code__
        with unseen(self.core), as_it_was(root), self._layers(mode), mode:
            outputs = record.rerun(entry, root)
            if not backward:
                return Outcome(_makers(mode, tensors(outputs)))
            return Outcome(self._gradients(mode, outputs, root), gradients=True)

    def _introduce(self, mode: Localiser, root: nn.Module) -> None:
        """So that a bad tensor that no operation made can be named."""
        for path, tensor in (*root.named_parameters(), *root.named_buffers()):
            mode.known[tensor.untyped_storage()._cdata] = path
        for position, tensor in enumerate(self.inputs()):
            if tensor.layout == torch.strided:
                mode.known[tensor.untyped_storage()._cdata] = f"input {position}"

    def _gradients(self, mode: Localiser, outputs: Any, root: nn.Module) -> list[Event]:
        """Through the pass once more backwards, with the gradient that came in, or one of the same shape where that
        was not kept. Nothing is accumulated: `.grad` stays as it is."""
        wanted = [p for p in root.parameters() if p.requires_grad]
        pairs = [
            (tensor, self._arrived(slot, tensor))
            for slot, tensor in enumerate(t for t in tensors(outputs) if t.requires_grad)
        ]
        pairs = [(tensor, gradient) for tensor, gradient in pairs if gradient is not None]
        if not pairs or not wanted or any(_hooked(p) for p in wanted):
            return []
        given, arriving = [tensor for tensor, _ in pairs], [gradient for _, gradient in pairs]
        found = torch.autograd.grad(given, wanted, arriving, allow_unused=True)
        return _makers(mode, (gradient for gradient in found if gradient is not None))

    def _arrived(self, slot: int, tensor: Tensor) -> Tensor | None:
        if self.one.arrived is not None:
            known = self.one.arrived.get(slot)
            return known if known is None or known.shape == tensor.shape else None
        with torch.no_grad():
            wave = torch.arange(tensor.numel(), device=tensor.device, dtype=torch.float32).cos()
            return (wave / math.sqrt(max(tensor.numel(), 1))).to(tensor.dtype).reshape(tensor.shape)

    @contextmanager
    def _layers(self, mode: Localiser) -> Iterator[None]:
        """Which module is running, told by hooks of our own for this one run."""
        running: list[nn.Module] = []
        tree = self.core.tree

        def enter(module: nn.Module, _: Any) -> None:
            running.append(module)

        def leave(module: nn.Module, *_: Any) -> None:
            while running and running.pop() is not module:
                pass
            known = tree.layers.get(module)
            if len(running) == 1 and known is not None:
                mode.after = known.site

        def layer() -> int | None:
            known = None if not running else tree.layers.get(running[-1])
            return None if known is None else known.site

        before, mode._layer = mode._layer, layer
        handles = [
            torch_module.register_module_forward_pre_hook(enter),
            torch_module.register_module_forward_hook(leave, always_call=True),
        ]
        try:
            yield
        finally:
            mode._layer = before
            for handle in handles:
                handle.remove()


def _makers(mode: Localiser, values: Any) -> list[Event]:
    found = []
    for tensor in values:
        event = mode.made(tensor) if not_finite(tensor) else None
        if event is not None and not event.harmless:
            found.append(event)
    return found


def _foreign_hooks(root: nn.Module) -> bool:
    """Hooks that would see the pass a second time. Torch's own (weight_norm, spectral_norm) only compute."""
    tables = [getattr(torch_module, name) for name in _GLOBAL_HOOKS]
    for module in root.modules():
        if has_compiled_call(module):
            return True
        tables += [module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks]
    return any(not _of_torch_or_ours(hook) for table in tables for hook in table.values())


def _of_torch_or_ours(hook: Any) -> bool:
    where = str(getattr(hook, "__module__", None) or type(hook).__module__)
    return where.startswith(("neuraldbg.", "torch."))


def _hooked(parameter: Tensor) -> bool:
    return bool(parameter._backward_hooks)


@contextmanager
def unseen(core: Core) -> Iterator[None]:
    core.on = False
    try:
        yield
    finally:
        core.on = True


@contextmanager
def as_it_was(root: nn.Module) -> Iterator[None]:
    """Puts back what a forward may write to besides buffers: plain attributes, lists of them, parameters."""
    modules = list(root.modules())
    kept = [(module, dict(vars(module)), _contents(module)) for module in modules]
    versions = [(p, p._version) for p in root.parameters()]
    size = sum(p.numel() * p.element_size() for p, _ in versions)
    copies = [p.detach().clone() for p, _ in versions] if size <= GUARDED_BYTES else None
    try:
        yield
    finally:
        for module, attributes, contents in kept:
            vars(module).clear()
            vars(module).update(attributes)
            for value, inside in contents:
                _refill(value, inside)
        if copies is not None:
            with torch.no_grad():
                for (parameter, version), copy in zip(versions, copies, strict=True):
                    if parameter._version != version:
                        parameter.data.copy_(copy)


def _contents(module: nn.Module) -> list[tuple[Any, Any]]:
    return [(value, value.copy()) for value in vars(module).values() if type(value) in (list, dict, set, deque)]


def _refill(value: Any, inside: Any) -> None:
    if isinstance(value, list):
        value[:] = inside
        return
    value.clear()
    value.update(inside) if not isinstance(value, deque) else value.extend(inside)
