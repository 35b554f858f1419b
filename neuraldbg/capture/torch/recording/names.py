"""Names of models, optimizers and parameters that mean the same in another process that runs the same script."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.torch.members import (
    named_buffers_of,
    named_modules_of,
    named_parameters_of,
    parameters_of,
)
from neuraldbg.capture.torch.sweep import owned

Key = str  # "0:3" = the fourth parameter of the first optimizer; "m0:fc.weight" = of the first model


SHAPELESS = "lazy"


class Names:
    """Models are numbered by their first pass with gradients, optimizers as they are created."""

    def __init__(self) -> None:
        self.models: list[dict[str, Any]] = []
        self.optimizers: list[dict[str, Any]] = []
        self._model: IdentityTable[list[int]] = IdentityTable()  # in a list: 0 would read as absent
        self._optimizer: IdentityTable[list[int]] = IdentityTable()
        self._parameter: IdentityTable[Key] = IdentityTable()
        self._sizes: dict[int, int] = {}
        self.changed = False  # since somebody last wrote it down

    def model(self, root: nn.Module, site: int = -1) -> int:
        known = self._model.get(root)
        if known is not None:
            return known[0]
        number = len(self.models)
        self._model[root] = [number]
        named = named_parameters_of(root)
        self.models.append({**describe_model(root, named), "site": site})
        for path, parameter in named:
            if parameter not in self._parameter:
                self._parameter[parameter] = f"m{number}:{path}"
        self.changed = True
        return number

    def optimizer(self, optimizer: Optimizer) -> int:
        known = self._optimizer.get(optimizer)
        if known is None:
            known = self._optimizer[optimizer] = [len(self.optimizers)]
            self.optimizers.append({})
        number = known[0]
        size = sum(len(group["params"]) for group in optimizer.param_groups)
        if self._sizes.get(number) != size:
            self._sizes[number] = size
            self.optimizers[number] = describe_optimizer(optimizer)
            for position, parameter in enumerate(owned(optimizer)):
                self._parameter[parameter] = f"{number}:{position}"
            self.changed = True
        return number

    def living_models(self) -> Iterator[nn.Module | None]:
        """By their numbers; None for one that is gone."""
        alive = {number[0]: model for model, number in self._model.items()}
        return (alive.get(number) for number in range(len(self.models)))

    def living_optimizers(self) -> Iterator[Optimizer | None]:
        alive = {number[0]: optimizer for optimizer, number in self._optimizer.items()}
        return (alive.get(number) for number in range(len(self.optimizers)))

    def parameter(self, parameter: Tensor) -> Key | None:
        return self._parameter.get(parameter)

    def parameters(self, given: Iterable[Tensor]) -> list[Key | None]:
        return list(map(self._parameter.get, given))


def describe_model(root: nn.Module, parameters: Iterable[tuple[str, Tensor]] | None = None) -> dict[str, Any]:
    """What has to be the same for a recording to fit. `parameters`: its own by name, where somebody has them."""
    parameters = named_parameters_of(root) if parameters is None else parameters
    return {
        "class": type(root).__name__,
        "modules": [[path, type(module).__name__] for path, module in named_modules_of(root)],
        "parameters": [[path, *form_of(p)] for path, p in parameters],
        "buffers": [[path, *form_of(b)] for path, b in named_buffers_of(root)],
    }


def describe_optimizer(optimizer: Optimizer) -> dict[str, Any]:
    return {
        "class": type(optimizer).__name__,
        "groups": [[form_of(p) for p in group["params"]] for group in optimizer.param_groups],
    }


def has_a_shape(root: nn.Module) -> bool:
    """False before the first pass of a model with lazy layers."""
    return not any(map(is_lazy, parameters_of(root))) and not any(is_lazy(each) for _, each in named_buffers_of(root))


def form_of(tensor: Tensor) -> list[Any]:
    if is_lazy(tensor):
        return [[], SHAPELESS]
    return [list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]


def difference(recorded: dict[str, Any], found: dict[str, Any], what: str) -> str | None:
    """The first thing that is not as it was recorded."""
    if recorded["class"] != found["class"]:
        return f"{what} was a {recorded['class']} and is a {found['class']}"
    for part, one in (("modules", "layer"), ("parameters", "parameter"), ("buffers", "buffer"), ("groups", "group")):
        said = _first_difference(recorded.get(part, []), found.get(part, []), one)
        if said is not None:
            return f"{what} ({found['class']}): {said}"
    return None


def fits(recorded: Any, found: Any) -> bool:
    """An optimizer may have been there before the shapes of what it holds were known."""
    shapeless = isinstance(recorded, list) and any(isinstance(form, list) and SHAPELESS in form for form in recorded)
    return recorded == found or (shapeless and isinstance(found, list) and len(recorded) == len(found))


def _first_difference(before: Sequence[Any], now: Sequence[Any], one: str) -> str | None:
    for number in range(max(len(before), len(now))):
        was = before[number] if number < len(before) else None
        is_ = now[number] if number < len(now) else None
        if not fits(was, is_):
            return f"{one} {_shown(was)} is now {_shown(is_)}"
    return None


def _shown(entry: Any) -> str:
    if entry is None:
        return "absent"
    if isinstance(entry[0], str):
        return " ".join(str(part) for part in entry)
    return f"of {len(entry)} parameters"
