"""A training in single precision, whatever the script asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neuraldbg.replay.changes import Place, change


@change("fp32", "fp32", "computes in float32: no half precision, no autocast")
def fp32(place: Place, _: float | None) -> None:
    torch, patches = place.torch, place.patches
    low = (torch.float16, torch.bfloat16)

    def full(value: Any) -> Any:
        return torch.float32 if value in low else value

    def to(real: Callable[..., Any]) -> Callable[..., Any]:
        def moved(self: Any, *args: Any, **kwargs: Any) -> Any:
            args = tuple(full(each) if isinstance(each, torch.dtype) else each for each in args)
            return real(self, *args, **{name: _full(torch, full, each) for name, each in kwargs.items()})

        return moved

    for owner in (torch.nn.Module, torch.Tensor):
        patches.replace(owner, "to", to(owner.to))
        for name in ("half", "bfloat16"):
            patches.replace(owner, name, lambda self, *_, **__: self.float())
    autocast = torch.amp.autocast_mode.autocast
    real_init = autocast.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        real_init(self, *args, **kwargs)
        self._enabled = False

    patches.replace(autocast, "__init__", init)


def _full(torch: Any, full: Callable[[Any], Any], value: Any) -> Any:
    return full(value) if isinstance(value, torch.dtype) else value
