"""Which layers of a run the breakpoints of a gate mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neuraldbg.errors import UnknownLayer, UsageError
from neuraldbg.records import SiteKind, Stop
from neuraldbg.trace.names import Names


class Meant:
    """`gate` has breakpoints, `recorder` the sites they may mean."""

    def __init__(self, recorder: Any, gate: Any) -> None:
        self._recorder, self._gate = recorder, gate
        self._names: tuple[int, Names] | None = None
        self.settled = 0  # sites that the breakpoints were last looked up among
        self._told: set[int] = set()

    def names(self) -> Names:
        sites = list(self._recorder.sites.values())
        if self._names is None or self._names[0] != len(sites):
            self._names = (len(sites), Names(sites))
        return self._names[1]

    def resolve(self, pattern: str) -> dict[int, str]:
        names = self.names()
        found = [site for site in names.match(pattern, regex=False) if site.kind in (SiteKind.MODULE, SiteKind.MODEL)]
        return {site.id: names.canonical(site) for each in found for site in names.twins(each)}

    def tensor(self, stop: Stop, kind: str, layer: str | None, owned: Callable[[int], dict[str, Any] | None]) -> Any:
        """What a stop has of a layer; of another one than that which just ran only what it owns."""
        found = stop.tensors()
        if layer is not None:
            site = self.names().resolve(layer, prefer=SiteKind.MODULE)
            other = None if site.id == stop.site else owned(site.id)
            found = found if other is None else other
        if found.get(kind) is None:
            there = ", ".join(sorted(found)) or "nothing"
            raise UsageError(f"no {kind} of {layer or stop.layer or 'anything'} here; there is {there}")
        return found[kind]

    def look_up(self) -> None:
        """As soon as a model is known: before its first layer is left."""
        known = len(self._recorder.sites)
        if known != self.settled:
            self.settled = known
            self._gate.breakpoints.resolve = self.resolve
            self._gate.breakpoints.settle()

    def tell_lost(self) -> None:
        """Names that mean no layer of any model that has run are told with the nearest, each once."""
        for lost in self._gate.breakpoints.lost():
            if lost.id not in self._told:
                self._told.add(lost.id)
                self._gate.say(f"breakpoint {lost.id}: {self._why_lost(lost.spec.layer)}")

    def _why_lost(self, name: str) -> str:
        try:
            site = self.names().resolve(name)
        except UnknownLayer as error:
            return str(error)
        return f"{name!r} is no layer but a {site.kind.value}"
