"""Changes that can be made to a training without touching its code: each patches torch while an arm runs."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from neuraldbg.capture.torch.patches import Patches
from neuraldbg.errors import UsageError, nearest
from neuraldbg.registry import Registry

Apply = Callable[["Place", float | None], None]


@dataclass(frozen=True)
class Place:
    """Where a change is made: torch, what undoes it, and the passes of the models that are called."""

    torch: Any
    patches: Patches
    passes: Any  # roots.Passes


@dataclass(frozen=True, slots=True)
class Change:
    """One kind of change: `lr x0.1` is the change `lr` with the amount 0.1."""

    name: str
    form: str  # how it is written, {} standing for the amount
    says: str  # what it does, for people
    apply: Apply
    default: float | None = None  # amount where none is given; None: it takes none

    def text(self, amount: float | None = None) -> str:
        return self.form.format(f"{self._amount(amount):g}") if "{}" in self.form else self.form

    def _amount(self, amount: float | None) -> float:
        return amount if amount is not None else self.default or 0.0


CHANGES: Registry[Change] = Registry("change")


def change(name: str, form: str, says: str, *, default: float | None = None) -> Callable[[Apply], Apply]:
    """Registers a function `(place, amount) -> None`."""

    def register(apply: Apply) -> Apply:
        CHANGES.register(name)(Change(name, form, says, apply, default))
        return apply

    return register


@cache
def changes() -> dict[str, Change]:
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        import_module(module.name)
    return CHANGES.load_entry_points()


def parse(text: str) -> tuple[Change, float | None]:
    """`lr x0.1`, `clip 1.0`, `fp32`: a change and its amount."""
    match = re.fullmatch(r"\s*([a-z_0-9]+)\s*(?:[x=/]?\s*([-+.0-9e]+))?\s*", text)
    known = changes()
    if match is None or match[1] not in known:
        near = nearest(text.split()[0] if text.split() else "", list(known), 1)
        hint = f"did you mean {near[0]!r}?" if near else "known: " + ", ".join(known)
        raise UsageError(f"no change {text!r}; {hint}")
    found = known[match[1]]
    if match[2] is None:
        return found, found.default
    if "{}" not in found.form:
        raise UsageError(f"the change {found.name!r} takes no number")
    try:
        return found, float(match[2])
    except ValueError:
        raise UsageError(f"{match[2]!r} is no number in the change {text!r}") from None
