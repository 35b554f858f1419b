"""What cures a finding: titles in words for every cause, and a patch of the user's file where the edit is easy."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Fix
from neuraldbg.registry import Registry

Cure = Callable[[Finding, Evidence], Iterable[Fix]]
CURES: Registry[Cure] = Registry("fix")


def cure(id: str) -> Callable[[Cure], Cure]:
    """Registers a function `(finding, evidence) -> fixes` for one id."""
    return CURES.register(id)


@cache
def cures() -> dict[str, Cure]:
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        import_module(module.name)
    return CURES.load_entry_points()
