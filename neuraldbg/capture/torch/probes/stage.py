"""Where experiments run: the user's modules with weights and buffers of ours, everything as before afterwards."""

from __future__ import annotations

import io
import random
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules import module as torch_module

from neuraldbg.capture.torch.dispatch import has_compiled_call
from neuraldbg.capture.torch.nested import map_leaves, tensors
from neuraldbg.capture.torch.passes import KeptTensor, RngState, autocast_as
from neuraldbg.capture.torch.probes.loss_replay import TapedPass
from neuraldbg.capture.torch.probes.sample import Sample, Specimen

Weights = dict[int, Tensor]  # id of a parameter or buffer -> the value that stands in for it
Change = Callable[[int, Tensor], Tensor]  # (place among a pass's inputs, value) -> the value to give
BATCH_NORMS = nn.modules.batchnorm._BatchNorm
DROPOUTS = nn.modules.dropout._DropoutNd


@dataclass(eq=False)
class Stage:
    """Runs recorded passes with any weights. `training` says what flags the modules get."""

    specimen: Specimen
    names: dict[int, list[tuple[str, int]]] = field(default_factory=dict)  # id of an entry module -> its tensors

    def weights(self, *, initial: bool) -> Weights:
        """Copies of the first or of the present parameters and buffers."""
        first = self.specimen.initial if initial else {}
        buffers = self.specimen.buffers if initial else {}
        found: Weights = {}
        with torch.no_grad():
            for root in self.specimen.roots:
                found.update({id(p): first.get(id(p), p).detach().clone() for p in root.parameters()})
                found.update({id(b): buffers.get(id(b), b).detach().clone() for b in root.buffers()})
        return found

    def parameters(self) -> list[Tensor]:
        return list({id(p): p for root in self.specimen.roots for p in root.parameters()}.values())

    def loss(
        self,
        sample: Sample,
        weights: Weights,
        *,
        change: Change | None = None,
        swapped: dict[int, Tensor] | None = None,
    ) -> tuple[Tensor, dict[int, list[Tensor]]]:
        """The loss of a sample and what its passes put out."""

        def forward(number: int, overrides: dict[int, Tensor]) -> list[Tensor]:
            return self.forward(sample.tape.passes[number], weights, overrides, change)

        return sample.tape.run(forward, lambda parameter: weights.get(id(parameter), parameter), swapped)

    def forward(
        self, one: TapedPass, weights: Weights, overrides: dict[int, Tensor], change: Change | None = None
    ) -> list[Tensor]:
        args, kwargs = arguments(one, overrides, change)
        with autocast_as(one.record.autocast):
            return list(tensors(functional_call(one.entry, self._named(one.entry, weights), args, kwargs)))

    def _named(self, entry: nn.Module, weights: Weights) -> dict[str, Tensor]:
        names = self.names.get(id(entry))
        if names is None:
            held = [*entry.named_parameters(), *entry.named_buffers()]
            names = self.names[id(entry)] = [(name, id(tensor)) for name, tensor in held]
        return {name: weights[number] for name, number in names if number in weights}


def arguments(one: TapedPass, overrides: dict[int, Tensor], change: Change | None) -> Any:
    place = -1

    def give(kept: KeptTensor) -> Tensor:
        nonlocal place
        place += 1
        value = overrides[place] if place in overrides else kept.tensor.clone()
        return value if change is None or place in overrides else change(place, value)

    return map_leaves((one.record.args, one.record.kwargs), KeptTensor, give)


def seeded(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


def flags_of(
    root: nn.Module, *, training: bool | None, norms: bool | None = None, dropouts: bool | None = None
) -> None:
    """Set the training flags of a model: all of them (None = leave), then those of BatchNorms and of dropouts."""
    for module in root.modules():
        if training is not None:
            module.training = training
        if norms is not None and isinstance(module, BATCH_NORMS):
            module.training = norms
        if dropouts is not None and isinstance(module, DROPOUTS):
            module.training = dropouts


def as_recorded(sample: Sample) -> None:
    """The training flags that the models had in the recorded pass."""
    for number in sample.tape.used_passes:
        one = sample.tape.passes[number]
        for module, flag in zip(one.root.modules(), one.record.training, strict=False):
            module.training = flag


def without_dropout(sample: Sample) -> None:
    """As recorded, but with everything in evaluation mode that is no BatchNorm: also `F.dropout(x, p, self.training)`
    and the dropout inside recurrent and attention modules are off."""
    as_recorded(sample)
    for number in sample.tape.used_passes:
        for module in sample.tape.passes[number].root.modules():
            if not isinstance(module, BATCH_NORMS):
                module.training = False


def dropout_of(module: nn.Module) -> float | None:
    """The share of units a module drops in training; None where it drops none."""
    if isinstance(module, DROPOUTS):
        return module.p
    if isinstance(module, nn.MultiheadAttention) or (isinstance(module, nn.RNNBase) and module.num_layers > 1):
        return float(module.dropout) or None
    return None


@contextmanager
def borrowed(roots: list[nn.Module]) -> Iterator[None]:
    """Nothing an experiment does to the process or to the user's modules remains, and nothing of it is heard."""
    rng, grad = RngState.take(), torch.is_grad_enabled()
    modules = list({id(module): module for root in roots for module in root.modules()}.values())
    before = [(module, {name: (value, _content(value)) for name, value in vars(module).items()}) for module in modules]
    grads = [(p, p.grad, p.requires_grad) for root in roots for p in root.parameters()]
    anomaly = torch.is_anomaly_enabled()
    with ExitStack() as undo:
        undo.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        undo.enter_context(redirect_stdout(io.StringIO()))
        undo.enter_context(redirect_stderr(io.StringIO()))
        try:
            torch.set_grad_enabled(True)
            torch.autograd.set_detect_anomaly(False)
            with torch.inference_mode(False):
                yield
        finally:
            torch.autograd.set_detect_anomaly(anomaly)
            torch.set_grad_enabled(grad)
            for module, attributes in before:
                _restore(module, attributes)
            for parameter, gradient, trainable in grads:
                parameter.grad = gradient
                if parameter.requires_grad != trainable:
                    parameter.requires_grad_(trainable)
            rng.restore()


def _content(value: Any) -> Any:
    """What is in a container that a forward may write to."""
    if type(value) in (list, dict, set, deque):
        return value.copy()
    return dict(value) if isinstance(value, dict) else None


def _restore(module: nn.Module, attributes: dict[str, tuple[Any, Any]]) -> None:
    own = vars(module)
    for name in [name for name in own if name not in attributes]:
        del own[name]
    for name, (value, content) in attributes.items():
        own[name] = value
        if content is not None and value != content if not isinstance(value, dict) else _differ(value, content):
            value.clear()
            (value.update if isinstance(value, dict | set) else value.extend)(content)


def _differ(value: Any, content: Any) -> bool:
    return list(value) != list(content) or any(value[key] is not content[key] for key in content)


def reason_against(roots: list[nn.Module]) -> str | None:
    """Why experiments would disturb or mislead; None when nothing speaks against them."""
    tables = (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks)
    if any(not str(hook.__module__).startswith("neuraldbg.") for table in tables for hook in table.values()):
        return "the script has global module hooks"
    for root in roots:
        for module in root.modules():
            if isinstance(module, torch.jit.ScriptModule):
                return "the model is a TorchScript module"
            wrapped = type(module).__name__ in ("DistributedDataParallel", "DataParallel", "OptimizedModule")
            if wrapped or has_compiled_call(module):
                return "the model is compiled or wrapped for several devices"
            hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
            if any(not _from_torch(hook) for table in hooks for hook in table.values()):
                return "the script has hooks on its modules"
        if any(p.is_meta or p.layout != torch.strided for p in root.parameters()):
            return "the model has parameters without dense values"
    return None


def _from_torch(hook: Any) -> bool:
    return str(getattr(hook, "__module__", None) or type(hook).__module__).startswith("torch.")
