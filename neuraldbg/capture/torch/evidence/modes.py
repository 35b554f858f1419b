"""Training flags of the layers that behave differently in training and evaluation, pass by pass."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.torch.members import modules_of
from neuraldbg.capture.torch.passes import Pass

if TYPE_CHECKING:
    from neuraldbg.capture.torch.attach import TorchCapture

MOST_FACTS = 128
_LOOKED_AT = 64  # layers of a model whose flags are read at every pass


class Modes:
    """A fact whenever a model is called with a combination of flags that it was not called with before."""

    def __init__(self, capture: TorchCapture) -> None:
        self.core = capture.core
        self._sensitive: IdentityTable[list[tuple[str, weakref.ref[nn.Module]]]] = IdentityTable()
        self._seen: dict[tuple[Any, ...], int] = {}
        self.core.take_part("pass_begun", "training flags", self._pass, rarely=True)

    def _pass(self, one: Pass, root: nn.Module | None, *_args: Any) -> None:
        if root is None:
            return
        layers = self._layers(root)
        on = off = averaging = 0
        for _kind, ref in layers:
            module = ref()
            if module is None:
                continue
            if module.training:
                on += 1
                averaging += getattr(module, "momentum", 0) is None
            else:
                off += 1
        size = sum(tensor.numel() for tensor in one.entered)
        key = (one.model.site, one.grad, bool(root.training), on > 0, off > 0, averaging > 0)
        largest = self._seen.get(key)
        if largest is not None and size <= 2 * largest:
            return
        self._seen[key] = size
        if len(self._seen) > MOST_FACTS:
            return
        self.core.recorder.fact(
            "modes",
            model=one.model.site,
            pass_id=one.id,
            grad_mode=one.grad,
            training=bool(root.training),
            on=on,
            off=off,
            averaging=averaging,
            kinds=sorted({kind for kind, _ in layers}),
            first_on=next((self._site(ref()) for _, ref in layers if (m := ref()) is not None and m.training), None),
            first=next((self._site(ref()) for _, ref in layers), None),
            input_elements=size,
        )

    def _site(self, module: nn.Module | None) -> int | None:
        layer = None if module is None else self.core.tree.layers.get(module)
        return None if layer is None else layer.site

    def _layers(self, root: nn.Module) -> list[tuple[str, weakref.ref[nn.Module]]]:
        known = self._sensitive.get(root)
        if known is None:
            found = [(type(module).__name__, weakref.ref(module)) for module in modules_of(root) if sensitive(module)]
            step = max(len(found) // _LOOKED_AT, 1)
            known = self._sensitive[root] = found[::step]
        return known


def sensitive(module: nn.Module) -> bool:
    """Whether a forward of this layer depends on its training flag."""
    if isinstance(module, _DropoutNd):
        return bool(module.p > 0)
    if isinstance(module, _NormBase):
        return bool(module.track_running_stats)
    if isinstance(module, nn.RNNBase):
        return bool(module.dropout > 0 and module.num_layers > 1)
    return isinstance(module, nn.MultiheadAttention) and bool(module.dropout > 0)
