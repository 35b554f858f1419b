"""Every id of the taxonomy that this version knows: what it means, how it is found, what it explains."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.errors import UnknownDiagnosis
from neuraldbg.records import Finding
from neuraldbg.registry import Registry

Find = Callable[[Evidence], Iterable[Finding]]
SECTIONS = ("Finds", "Why it matters", "Decides by", "Usual cures")


@dataclass(frozen=True, slots=True)
class Entry:
    """One id. `explains` = causes and symptoms that follow from it and are not reported beside it;
    `excludes` = causes that cannot be true at the same time."""

    id: str
    sort: str  # "cause" or "symptom"
    group: str
    auto: str | None
    find: Find
    explains: frozenset[str] = frozenset()
    excludes: frozenset[str] = frozenset()

    @property
    def title(self) -> str:
        return self._paragraphs[0]

    @property
    def sections(self) -> dict[str, str]:
        """The four answers of the docstring, by heading."""
        found: dict[str, str] = {}
        current = None
        for line in self._paragraphs[1:]:
            head, colon, rest = line.partition(":")
            if colon and head in SECTIONS:
                current = head
                found[head] = rest.strip()
            elif current is not None:
                found[current] = f"{found[current]} {line}".strip()
        return found

    @property
    def _paragraphs(self) -> list[str]:
        text = inspect.getdoc(self.find) or ""
        return [line.strip() for line in text.splitlines() if line.strip()] or [""]


CAUSES: Registry[Entry] = Registry("cause")
SYMPTOMS: Registry[Entry] = Registry("detector")


def cause(
    id: str, *, group: str, auto: str, explains: Iterable[str] = (), excludes: Iterable[str] = ()
) -> Callable[[Find], Find]:
    """Registers a function `evidence -> findings` as the finder of one root cause."""

    def keep(find: Find) -> Find:
        CAUSES.register(id)(Entry(id, "cause", group, auto, find, frozenset(explains), frozenset(excludes)))
        return find

    return keep


def symptom(id: str) -> Callable[[Find], Find]:
    """Registers a function `evidence -> findings` as the detector of one symptom."""

    def keep(find: Find) -> Find:
        SYMPTOMS.register(id)(Entry(id, "symptom", "symptom", None, find))
        return find

    return keep


ALIASES = {
    "vanishing_gradients": "vanishing_gradient",
    "exploding_gradients": "exploding_gradient",
    "dead_neurons": "dead_units",
    "dead_relu": "dead_units",
    "dying_relu": "dead_units",
    "saturation": "saturated_units",
    "missing_optimizer_step": "optimizer_step_missing",
    "missing_backward": "backward_missing",
    "memory_leak": "memory_growth",
    "dropout_in_eval": "train_mode_in_eval",
    "unnormalized_input": "unnormalised_input",
    "unnormalized_target": "unnormalised_target",
    "missing_normalization": "missing_normalisation",
    "missing_regularization": "missing_regularisation",
    "lr_too_high": "learning_rate_too_high",
    "lr_too_low": "learning_rate_too_low",
}


def named(id: str) -> Entry:
    """The entry of an id or of another spelling of it; UnknownName names the nearest."""
    entries = catalogue()
    wanted = id.strip().lower().replace("-", "_").replace(" ", "_")
    entry = entries.get(ALIASES.get(wanted, wanted))
    if entry is None:
        raise UnknownDiagnosis(id, entries, ALIASES)
    return entry


@cache
def catalogue() -> dict[str, Entry]:
    """All of them, by id: those of this package and those that installed packages add."""
    for package in ("neuraldbg.analysis.causes", "neuraldbg.analysis.detectors"):
        for module in pkgutil.iter_modules(import_module(package).__path__, f"{package}."):
            import_module(module.name)
    return {**CAUSES.load_entry_points(), **SYMPTOMS.load_entry_points()}
