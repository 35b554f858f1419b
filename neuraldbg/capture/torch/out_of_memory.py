"""Memory ran out: what lived where, written down and shown before the exception passes on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from neuraldbg.capture.resources import device_bytes, rss_bytes
from neuraldbg.capture.torch.memory import LayerMemory

if TYPE_CHECKING:
    from neuraldbg.capture.torch.attach import TorchCapture

SHOWN: Final = 8
_ON_HOST: Final = "DefaultCPUAllocator: can't allocate memory"


class OutOfMemoryNotes:
    """Sees a forward or a backward that runs out of memory; of anything else the end of the script tells."""

    def __init__(self, capture: TorchCapture, memory: LayerMemory) -> None:
        self.capture, self.core, self.memory = capture, capture.core, memory
        self._told = False
        shield = self.core.guard.shield("what memory ran out of")
        self._note = shield(self._write)
        capture.passes.end = self._after_pass(capture.passes.end)
        capture.backward._over = self._after_backward(capture.backward._over)  # type: ignore[method-assign]
        self.core.take_part("ending", "what memory ran out of", self._ending)

    def _after_pass(self, end: Callable[..., Any]) -> Callable[..., Any]:
        def ended(one: Any, rest: tuple[Any, ...], *began: int) -> Any:
            if len(rest) != 3 and is_out_of_memory(sys.exc_info()[1]):
                self._note(str(sys.exc_info()[1]), "forward")
            return end(one, rest, *began)

        return ended

    def _after_backward(self, over: Callable[[], None]) -> Callable[[], None]:
        def watched() -> None:
            error = sys.exc_info()[1]
            if is_out_of_memory(error):
                self._note(str(error), "backward")
            over()

        return watched

    def _ending(self) -> None:
        error = str(self.capture.end.get("error") or "")
        if "OutOfMemoryError" in error or _ON_HOST in error:
            self._write(error, None)

    def _write(self, error: str, phase: str | None) -> None:
        if self._told:
            return
        self._told = True
        table = self.memory.table()
        rows = sorted((one for one in table["layers"] if one["saved_bytes"]), key=lambda one: -one["saved_bytes"])
        told = {**table, "layers": rows[:64], "device_bytes": device_bytes(), "rss_bytes": rss_bytes()}
        self.core.recorder.fact("out_of_memory", error=error.partition("\n")[0][:300], phase=phase, **told)
        self._show(told)

    def _show(self, told: dict[str, Any]) -> None:
        sites = self.core.recorder.sites
        named = (("parameters", "parameter_bytes"), ("gradients", "gradient_bytes"), ("optimizer", "optimizer_bytes"))
        lines = [f"  {label:<40}{told[name] / 1e6:>12,.1f} MB" for label, name in named]
        lines += [
            f"  {sites[one['site']].path[-38:]:<40}{one['saved_bytes'] / 1e6:>12,.1f} MB"
            for one in told["layers"][:SHOWN]
        ]
        if sys.stderr is not None:
            print("neuraldbg: memory ran out; what lived where:", *lines, sep="\n", file=sys.stderr, flush=True)


def is_out_of_memory(error: BaseException | None) -> bool:
    kinds = tuple(kind for kind in (getattr(torch, "OutOfMemoryError", None),) if kind is not None)
    return isinstance(error, kinds) or (isinstance(error, RuntimeError) and _ON_HOST in str(error))
