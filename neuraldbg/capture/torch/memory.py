"""What layers allocate, and what they keep for their backward, of a few steps of a profiled run.

What is kept is read off the autograd graph: every tensor that a node saved, each piece of memory once, charged to the
first layer that keeps it. Parameters are not counted among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.resources import device_bytes, host_allocated_bytes
from neuraldbg.capture.torch.core import cannot_look
from neuraldbg.capture.torch.nested import tensors
from neuraldbg.capture.torch.passes import Pass
from neuraldbg.capture.torch.tree import Layer

if TYPE_CHECKING:
    from neuraldbg.capture.torch.attach import TorchCapture

FIRST_STEPS: Final = 3
EVERY: Final = 50  # later steps
MOST_NODES: Final = 20_000  # of one pass
OUTSIDE: Final = -1


class PassMemory:
    """One pass while it runs: bytes by site."""

    def __init__(self, root: nn.Module | None) -> None:
        self.saved: dict[int, int] = {}
        self.allocated: dict[int, int] = {}
        self.seen: set[Any] = set()  # nodes; held until the pass is over, so that each has one identity
        weights = [] if root is None else [*root.parameters(), *root.buffers()]
        self.storages = {_storage(tensor)[0] for tensor in weights}
        self.packed = False  # saved tensors are wrapped by somebody
        self.peak: tuple[int, int, str] = (0, OUTSIDE, "forward")
        self.entered: list[int | None] = []  # what was allocated when the modules under way began


class LayerMemory:
    def __init__(self, capture: TorchCapture) -> None:
        self.core = capture.core
        self.updates = capture.updates
        self.current: PassMemory | None = None
        self.last: dict[str, Any] | None = None  # as it was written
        self._saved_names: dict[str, tuple[str, ...]] = {}
        core = self.core
        handle = torch_module.register_module_forward_pre_hook(self._entering)
        capture.patches.handle(handle)
        hooks = torch.autograd.graph.saved_tensors_hooks
        capture.patches.replace(hooks, "__enter__", self._packing(hooks.__enter__))
        core.take_part("pass_begun", "memory of passes", self._pass_begun)
        core.take_part("update_begun", "memory of updates", self._update_begun)

    def _due(self) -> bool:
        step = self.core.recorder.step
        return self.core.sampling and (step < FIRST_STEPS or step % EVERY == 0)

    def _pass_begun(self, one: Pass, root: nn.Module | None, *_: Any) -> None:
        wanted = one.sampled and one.grad and not one.compiled and self._due()
        self.current = PassMemory(root) if wanted else None

    def _packing(self, enter: Callable[..., Any]) -> Callable[..., Any]:
        """Somebody packs what is saved from here on (activation checkpointing, offloading): to read it would unpack
        it, which runs a forward again. The rest of such a pass is not looked into."""

        @wraps(enter)
        def entered(hooks: Any) -> Any:
            if not cannot_look() and self.current is not None:
                self.current.packed = True
            return enter(hooks)

        return entered

    def _entering(self, _: nn.Module, __: Any) -> None:
        if cannot_look():  # first of all: Dynamo traces into hooks
            return
        current = self.current
        if current is not None and self.core.on:
            current.entered.append(allocated_bytes())

    def layer_ran(self, layer: Layer, values: Any, *, inside: bool) -> None:
        """A module has run; `inside`: it is a layer, not the model itself."""
        current = self.current
        if current is None:
            return
        now = allocated_bytes()
        before = current.entered.pop() if current.entered else None
        site = layer.site if inside else OUTSIDE
        if now is not None:
            if inside and before is not None:
                current.allocated[site] = current.allocated.get(site, 0) + now - before
            if now > current.peak[0]:
                current.peak = (now, site, "forward")
        saved = self._saved_by(values, current)
        if saved is not None:
            current.saved[site] = current.saved.get(site, 0) + saved

    def in_backward(self, layer: Layer | None) -> None:
        current = self.current
        now = None if current is None else allocated_bytes()
        if current is not None and now is not None and now > current.peak[0]:
            current.peak = (now, OUTSIDE if layer is None else layer.site, "backward")

    # -- the graph ---------------------------------------------------------------------------------------------------

    def _saved_by(self, values: Any, current: PassMemory) -> int | None:
        """New memory that the nodes between what went in and what came out keep; None where reading it would unpack."""
        if current.packed or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            return None
        stops = {tensor.grad_fn for tensor in tensors((values[0], values[1])) if tensor.grad_fn is not None}
        waiting = [tensor.grad_fn for tensor in tensors(values[2]) if tensor.grad_fn is not None]
        total = 0
        while waiting and len(current.seen) < MOST_NODES:
            node: Any = waiting.pop()
            if node in current.seen or node in stops or _is_packed(node):
                continue
            current.seen.add(node)
            for tensor in self._saved(node):
                key, size = _storage(tensor)
                if key not in current.storages:
                    current.storages.add(key)
                    total += size
            waiting += [child for child, _ in node.next_functions if child is not None]
        return total

    def _saved(self, node: Any) -> Iterator[Tensor]:
        kind = node.name()
        names = self._saved_names.get(kind)
        if names is None:
            own = tuple(name for name in dir(node) if name.startswith("_saved_"))
            names = self._saved_names[kind] = own or (("saved_tensors",) if hasattr(node, "saved_tensors") else ())
        for name in names:
            yield from tensors(attempt(lambda name=name: getattr(node, name)))  # type: ignore[misc]

    # -- the table ---------------------------------------------------------------------------------------------------

    def _update_begun(self, *_: Any) -> None:
        current, self.current = self.current, None
        if current is not None:
            self.last = self.table(current)
            self.core.recorder.fact("layer_memory", **self.last)

    def table(self, current: PassMemory | None = None) -> dict[str, Any]:
        """What lives where: of the pass under way, else as it was when last looked at."""
        current = current or self.current
        told = dict(self.last or {"layers": [], "outside_bytes": 0, "peak_after": None})
        if current is not None:
            names = {**current.allocated, **current.saved}
            told["layers"] = [
                {
                    "site": site,
                    "saved_bytes": current.saved.get(site),
                    "allocated_bytes": current.allocated.get(site),
                }
                for site in names
                if site != OUTSIDE
            ]
            told["outside_bytes"] = current.saved.get(OUTSIDE, 0)
            told["peak_after"] = {"site": current.peak[1], "phase": current.peak[2], "bytes": current.peak[0]}
        return {**told, **self._kept_for_good()}

    def _kept_for_good(self) -> dict[str, int | None]:
        tree = self.core.tree
        parameters: list[Tensor] = [p for root, _ in tree.models.items() for p in root.parameters()]
        gradients = [p.grad for p in parameters if p.grad is not None] if tree.alone() else None
        states = [
            tensor
            for optimizer, _ in self.updates.optimizers.items()
            for state in optimizer.state.values()
            for tensor in state.values()
            if isinstance(tensor, Tensor)
        ]
        named = {"parameter_bytes": parameters, "gradient_bytes": gradients, "optimizer_bytes": states}
        return {name: None if held is None else sum(dict(map(_storage, held)).values()) for name, held in named.items()}


def allocated_bytes() -> int | None:
    """On the devices where they are used, else in the host's heap."""
    on_device = device_bytes()
    return host_allocated_bytes() if on_device is None else on_device


def _is_packed(node: Any) -> bool:
    return "neuraldbg_packed" in node.metadata or node.name().startswith("CompiledFunction")


def _storage(tensor: Tensor) -> tuple[Any, int]:
    """A piece of memory by its place, and its size; tensors without one have none."""
    storage = attempt(tensor.untyped_storage)
    if storage is None:
        return (id(tensor), 0), 0
    return (str(tensor.device), storage.data_ptr()), int(storage.nbytes())
