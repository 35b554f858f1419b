"""Parameters of which this process holds a part: their own values, under their own names, without asking anybody."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from neuraldbg.capture.identity import IdentityTable


class WouldWait(RuntimeError):
    """Something of ours came to a place where the other ranks would have to take part, and they will not."""


class _NoShards(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(each, "_local_tensor") or each.__name__ == "DTensor" for each in types):
            raise WouldWait(f"{func} of a tensor that is spread over ranks")
        with torch._C._DisableTorchDispatch():  # the user's own modes hear nothing of us
            return func(*_with_tensors(func, args), **(kwargs or {}))


def _with_tensors(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """A number that autograd keeps as a tensor (the 2 of `loss / 2`) comes here as a number, which `func` refuses."""
    if not any(isinstance(each, int | float | complex) for each in args):
        return args
    wanted = [isinstance(each.type, torch.TensorType) for each in func._schema.arguments]
    return tuple(
        torch.tensor(each, dtype=torch.float64 if isinstance(each, float) else None)
        if tensor and isinstance(each, int | float | complex)
        else each
        for each, tensor in zip(args, wanted, strict=False)
    )


def undisturbed_by_shards() -> AbstractContextManager[Any]:
    """As `undisturbed`, where tensors may be spread over ranks: an operation of ours on one of them could become a
    collective, and is refused."""
    return _refusing()


@contextmanager
def _refusing() -> Iterator[None]:
    with torch._C.DisableTorchFunctionSubclass(), _NoShards():  # type: ignore[no-untyped-call]
        yield


class Shards:
    """Plain tensors for the parts that are here. A question to a DTensor itself could become a collective, which the
    other ranks would not take part in."""

    def __init__(self) -> None:
        self._parts: IdentityTable[Tensor] = IdentityTable()

    def local(self, parameter: Tensor) -> Tensor:
        """The part that lies here, with its part of the gradient; a plain tensor is itself."""
        held = getattr(parameter, "_local_tensor", None)
        if held is None:
            return parameter
        part: Any = self._parts.get(parameter)
        if part is None or part.data_ptr() != held.data_ptr() or part.shape != held.shape:
            part = self._parts[parameter] = held.detach()
        gradient = parameter.grad
        part.grad = None if gradient is None else getattr(gradient, "_local_tensor", gradient).detach()
        own: Tensor = part
        return own

    def let_go(self) -> None:
        """Of the gradients: the script may free them."""
        for _, part in self._parts.items():
            part.grad = None


def is_sharded(parameter: Tensor) -> bool:
    """Whether other ranks hold other values of it."""
    placements = getattr(parameter, "placements", None)
    return placements is not None and any(not each.is_replicate() for each in placements)


def why_not_again(root: nn.Module) -> str | None:
    """Why a model cannot be run once more by one rank alone; None when it can."""
    for module in root.modules():
        names = {each.__name__ for each in type(module).__mro__}
        if names & {"FSDPModule", "FullyShardedDataParallel"}:
            return "the model is sharded over several ranks"
        if "SyncBatchNorm" in names:
            return "the model waits for other ranks in its forward (SyncBatchNorm)"
    if any(hasattr(parameter, "_local_tensor") for parameter in root.parameters()):
        return "the model is sharded over several ranks"
    return None


def sharding_of(parameters: list[tuple[int, Tensor]]) -> list[dict[str, Any]]:
    """What a reader must know to put the parts together again."""
    told = []
    for site, parameter in parameters:
        if is_sharded(parameter):
            mesh: Any = getattr(parameter, "device_mesh", None)
            told.append(
                {
                    "site": site,
                    "placements": [str(each) for each in parameter.placements],  # type: ignore[attr-defined]
                    "mesh": list(getattr(mesh, "shape", ()) or ()),
                    "elements": int(parameter.numel()),
                    "held": int(parameter._local_tensor.numel()),  # type: ignore[attr-defined]
                }
            )
    return told
