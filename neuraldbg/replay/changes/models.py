"""Changes made to a model when it is first called, or to what goes into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neuraldbg.replay.changes import Place, change
from neuraldbg.replay.changes.losses import made_by
from neuraldbg.replay.changes.updates import around_steps

SPECIAL = ("momentum_buffer", "params")


@change("standardise", "standardise", "standardises the inputs by the mean and deviation of the first batch")
def standardise(place: Place, _: float | None) -> None:
    seen: dict[tuple[int, int], tuple[Any, Any]] = {}

    def entering(model: Any, args: Any) -> Any:
        return tuple(_scaled(place.torch, seen, (id(model), at), each) for at, each in enumerate(args))

    place.passes.entering.append(entering)


def _scaled(torch: Any, seen: dict[tuple[int, int], tuple[Any, Any]], key: tuple[int, int], value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dim() < 2 or value.is_sparse:
        return value
    if key not in seen:
        data = value.detach().float()
        over = [0, *range(2, data.dim())] if data.dim() >= 4 else list(range(data.dim() - 1))
        deviation = data.std(over, keepdim=True)
        seen[key] = data.mean(over, keepdim=True), torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    mean, deviation = seen[key]
    return ((value - mean) / deviation).to(value.dtype)


@change("reinit", "reinit", "gives every layer the first weights that torch gives it")
def reinit(place: Place, _: float | None) -> None:
    def first(model: Any) -> None:
        with place.torch.no_grad():
            for module in model.modules():
                for name in ("reset_parameters", "_reset_parameters"):
                    if callable(getattr(module, name, None)):
                        getattr(module, name)()
                        break

    place.passes.first.append(first)


@change("dropout_off", "dropout_off", "switches dropout off")
def dropout_off(place: Place, _: float | None) -> None:
    kinds = place.torch.nn.modules.dropout._DropoutNd

    def first(model: Any) -> None:
        for module in model.modules():
            name = "p" if isinstance(module, kinds) else "dropout"
            if isinstance(vars(module).get(name), float):
                place.patches.undo(setattr, module, name, getattr(module, name))
                setattr(module, name, 0.0)

    place.passes.first.append(first)


@change("train_mode", "train_mode", "puts the model into training mode for every pass that makes gradients")
def train_mode(place: Place, _: float | None) -> None:
    def entering(model: Any, _: Any) -> None:
        if place.torch.is_grad_enabled() and not model.training:
            model.train()

    place.passes.entering.append(entering)


@change("unfreeze", "unfreeze", "trains every parameter of the model, also those that no optimizer holds")
def unfreeze(place: Place, _: float | None) -> None:
    models: list[Any] = []

    def first(model: Any) -> None:
        models.append(model)
        for each in model.parameters():
            if each.is_floating_point():
                each.requires_grad_(True)

    def before(optimizer: Any) -> None:
        held = {id(each) for group in optimizer.param_groups for each in group["params"]}
        missing = [each for model in models for each in model.parameters() if id(each) not in held]
        del models[:]
        if missing and held:
            optimizer.add_param_group({**_settings(optimizer), "params": missing})

    place.passes.first.append(first)
    around_steps(place, before)


def _settings(optimizer: Any) -> dict[str, Any]:
    return {key: value for key, value in optimizer.param_groups[0].items() if key not in SPECIAL}


@change("relu", "relu", "puts ReLU in the place of inner sigmoid and tanh")
def relu(place: Place, _: float | None) -> None:
    _swap(place, None)


@change("relu_at", "relu_at {}", "puts ReLU in the place of one inner sigmoid or tanh, the N-th of a pass", default=1)
def relu_at(place: Place, amount: float | None) -> None:
    _swap(place, int(amount or 1))


def _swap(place: Place, only: int | None) -> None:
    torch = place.torch
    swap = _Swap(place, only)
    place.passes.leaving.append(swap.see_output)
    for owner, name in ((torch, "sigmoid"), (torch, "tanh"), (torch.Tensor, "sigmoid"), (torch.Tensor, "tanh")):
        place.patches.replace(owner, name, swap.instead_of(getattr(owner, name)))


class _Swap:
    """The first pass is left as it is and counted: an activation at the very end of a model belongs to the loss."""

    def __init__(self, place: Place, only: int | None) -> None:
        self._place, self._only = place, only
        self._calls = 0  # of this pass
        self._inner: int | None = None  # calls of a pass that are swapped; None: the first pass is going on

    def see_output(self, _: Any, output: Any) -> None:
        if self._inner is None and self._calls:
            outputs = output if isinstance(output, tuple | list) else [output]
            tensors = [each for each in outputs if isinstance(each, self._place.torch.Tensor)]
            last = any(made_by(each, "SigmoidBackward", "TanhBackward") for each in tensors)
            self._inner = self._calls - last
        self._calls = 0

    def _swaps(self) -> bool:
        if not self._place.passes.depth:
            return False
        self._calls += 1
        return self._inner is not None and self._calls <= self._inner and self._only in (None, self._calls)

    def instead_of(self, real: Callable[..., Any]) -> Callable[..., Any]:
        relu = self._place.torch.relu
        return lambda x, *args, **kwargs: relu(x) if self._swaps() else real(x, *args, **kwargs)
