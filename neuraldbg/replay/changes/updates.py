"""Changes made around `optimizer.step()`: rates, clipping, zeroing, skipping."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from importlib import import_module
from typing import Any

from neuraldbg.replay.changes import Place, change

MUCH = 10.0  # times the usual norm: an update that is skipped


def around_steps(place: Place, before: Callable[[Any], None], after: Callable[[Any], None] | None = None) -> None:
    """Call `before(optimizer)` and `after(optimizer)` around every step of every optimizer."""
    optim = import_module("torch.optim.optimizer")
    place.patches.handle(optim.register_optimizer_step_pre_hook(lambda optimizer, *_: before(optimizer)))
    if after is not None:
        place.patches.handle(optim.register_optimizer_step_post_hook(lambda optimizer, *_: after(optimizer)))


def with_groups(place: Place, edit: Callable[[dict[str, Any], Any], dict[str, Any]]) -> None:
    """The hyper-parameters of a group are other ones during a step: schedulers and the script see their own."""
    kept: dict[int, list[dict[str, Any]]] = {}

    def before(optimizer: Any) -> None:
        made = [edit(group, optimizer) for group in optimizer.param_groups]
        kept[id(optimizer)] = [
            {key: group[key] for key in new} for group, new in zip(optimizer.param_groups, made, strict=True)
        ]
        for group, new in zip(optimizer.param_groups, made, strict=True):
            group.update(new)

    def after(optimizer: Any) -> None:
        for group, old in zip(optimizer.param_groups, kept.pop(id(optimizer), []), strict=False):
            group.update(old)

    around_steps(place, before, after)


def parameters_of(optimizer: Any) -> list[Any]:
    return [each for group in optimizer.param_groups for each in group["params"] if each.grad is not None]


def norm_of(parameters: list[Any]) -> float:
    return math.sqrt(sum(float(each.grad.detach().double().square().sum()) for each in parameters))


@change("lr", "lr x{}", "multiplies the learning rate", default=0.1)
def lr(place: Place, amount: float | None) -> None:
    with_groups(place, lambda group, _: {"lr": group["lr"] * amount} if "lr" in group else {})


@change("warmup", "warmup {}", "lets the learning rate rise from zero over the first updates", default=50)
def warmup(place: Place, amount: float | None) -> None:
    done: dict[int, int] = {}

    def edit(group: dict[str, Any], optimizer: Any) -> dict[str, Any]:
        if group is optimizer.param_groups[0]:
            done[id(optimizer)] = done.get(id(optimizer), 0) + 1
        share = min(1.0, done[id(optimizer)] / max(amount or 1.0, 1.0))
        return {"lr": group["lr"] * share} if "lr" in group else {}

    with_groups(place, edit)


@change("momentum", "momentum {}", "sets the momentum (Adam: beta 1)", default=0.9)
def momentum(place: Place, amount: float | None) -> None:
    def edit(group: dict[str, Any], _: Any) -> dict[str, Any]:
        if "betas" in group:
            return {"betas": (amount, *group["betas"][1:])}
        return {"momentum": amount} if "momentum" in group else {}

    with_groups(place, edit)


@change("weight_decay", "weight_decay {}", "sets the weight decay", default=0.0)
def weight_decay(place: Place, amount: float | None) -> None:
    with_groups(place, lambda group, _: {"weight_decay": amount} if "weight_decay" in group else {})


@change("clip", "clip {}", "clips the norm of the gradients", default=1.0)
def clip(place: Place, amount: float | None) -> None:
    def before(optimizer: Any) -> None:
        held = parameters_of(optimizer)
        norm = norm_of(held)
        if math.isfinite(norm) and norm > (amount or 0.0):
            for each in held:
                each.grad.mul_((amount or 0.0) / norm)

    around_steps(place, before)


@change("clip_off", "clip_off", "leaves the gradients unclipped")
def clip_off(place: Place, _: float | None) -> None:
    utils = place.torch.nn.utils.clip_grad

    def only_measures(parameters: Any, max_norm: Any = None, norm_type: float = 2.0, **_: Any) -> Any:  # noqa: ARG001
        tensors = [parameters] if isinstance(parameters, place.torch.Tensor) else list(parameters)
        return utils._get_total_norm([each.grad for each in tensors if each.grad is not None], norm_type)

    for owner in (place.torch.nn.utils, utils):
        place.patches.replace(owner, "clip_grad_norm_", _copy(only_measures))
        place.patches.replace(owner, "clip_grad_value_", lambda *_, **__: None)


def _copy(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*args, **kwargs)


@change("loss_over", "loss_over {}", "divides what is accumulated over several batches", default=2)
def loss_over(place: Place, amount: float | None) -> None:
    def before(optimizer: Any) -> None:
        for each in parameters_of(optimizer):
            each.grad.div_(amount)

    around_steps(place, before)


@change("skip_outliers", "skip_outliers", "leaves out updates whose gradient is ten times the usual, or not finite")
def skip_outliers(place: Place, _: float | None) -> None:
    usual: dict[int, list[float]] = {}

    def before(optimizer: Any) -> None:
        held = parameters_of(optimizer)
        norm, seen = norm_of(held), usual.setdefault(id(optimizer), [])
        if not math.isfinite(norm) or (len(seen) >= 5 and norm > MUCH * statistics.median(seen)):
            for each in held:
                each.grad = None
            return
        seen.append(norm)
        del seen[:-50]

    around_steps(place, before)


@change("drop_batch", "drop_batch {}", "leaves out one update", default=0)
def drop_batch(place: Place, amount: float | None) -> None:
    count = [0]

    def before(optimizer: Any) -> None:
        if count[0] == int(amount or 0):
            for each in parameters_of(optimizer):
                each.grad = None
        count[0] += 1

    around_steps(place, before)


@change("zero_after", "zero_after", "sets the gradients to zero after every update")
def zero_after(place: Place, _: float | None) -> None:
    around_steps(place, lambda _: None, _drop_gradients)


def _drop_gradients(optimizer: Any) -> None:
    for each in parameters_of(optimizer):
        each.grad = None


@change("zero_order", "zero_order", "puts off a zero_grad between backward and step until the step is made")
def zero_order(place: Place, _: float | None) -> None:
    torch = place.torch
    state = {"fresh": False, "owed": False}

    def backward(*args: Any, **kwargs: Any) -> Any:
        state["fresh"] = True
        return real_backward(*args, **kwargs)

    def guarded(real: Callable[..., Any]) -> Callable[..., Any]:
        def zero_grad(*args: Any, **kwargs: Any) -> Any:
            if not state["fresh"]:
                return real(*args, **kwargs)
            state["owed"] = True
            return None

        return zero_grad

    def after(optimizer: Any) -> None:
        state["fresh"] = False
        if state["owed"]:
            state["owed"] = False
            _drop_gradients(optimizer)

    real_backward = torch.autograd.backward
    place.patches.replace(torch.autograd, "backward", backward)
    for owner in (torch.optim.Optimizer, torch.nn.Module):
        place.patches.replace(owner, "zero_grad", guarded(owner.zero_grad))
    around_steps(place, lambda _: None, after)
