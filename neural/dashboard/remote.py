"""The breakpoints of a pushed run for the page: the same verbs a watched training answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from neuraldbg.control.conditions import parse_condition
from neuraldbg.control.verbs import checked
from neuraldbg.errors import NotPaused, UsageError

from .breakpoints import BreakpointManager

Arguments = Mapping[str, Any]


class RemoteBreakpoints:
    def __init__(self, manager: BreakpointManager, step: Callable[[], int]) -> None:
        self._manager = manager
        self._step = step
        self._table: dict[str, Callable[[Arguments], Any]] = {
            "state": lambda _: self.state(),
            "breakpoints": lambda _: [self._told(name) for name in manager.breakpoints],
            "add": self._add,
            "remove": self._remove,
            "change": self._change,
            "group": self._group,
            "check": self._check,
            "continue": lambda _: self._go_on(),
            "pause": lambda _: self._pause(),
            "step": lambda _: self._next(),
        }

    def __call__(self, verb: str, arguments: Arguments) -> Any:
        known = self._table.get(verb)
        if known is None:
            raise UsageError(f"{verb!r} is not for a run that is pushed by hand: {', '.join(self._table)}")
        return known(checked(arguments))

    def state(self) -> dict[str, Any]:
        manager = self._manager
        if not manager.paused:
            return {"state": "running", "stops_next": None}
        values = dict(manager.current_data)
        place = {"step": self._step(), "phase": "forward", "layer": manager.current_layer, "source": None}
        return {"state": "paused", "reasons": ["breakpoint"], **place, "values": values}

    def _told(self, name: str) -> dict[str, Any]:
        one = self._manager.breakpoints[name]
        rest = {"phase": "forward", "once": False, "last_hit_step": None, "failed": None, "pending": False}
        return {**one, "layer": name, "layer_name": name, "layers": [name], **rest}

    def _name(self, given: Arguments) -> str:
        which = given.get("id", given.get("layer_name"))
        if which is None:
            raise UsageError("which breakpoint? give its layer_name or id")
        one = self._manager.find(which)
        return next(name for name, each in self._manager.breakpoints.items() if each is one)

    def _add(self, given: Arguments) -> dict[str, Any]:
        name = given.get("layer_name") or ""
        enabled = bool(given.get("enabled", True))
        self._manager.add_breakpoint(name, given.get("condition"), enabled, given.get("group"))
        return self._told(name)

    def _remove(self, given: Arguments) -> list[dict[str, Any]]:
        name = self._name(given)
        told = self._told(name)
        self._manager.remove_breakpoint(name)
        return [told]

    def _change(self, given: Arguments) -> dict[str, Any]:
        name = self._name(given)
        unknown = set(given) - {"id", "layer_name", "enabled", "condition", "group"}
        if unknown:
            raise UsageError(f"a pushed breakpoint has no {sorted(unknown)[0]!r}: enabled, condition, group")
        now = self._manager.breakpoints[name]
        condition, group = given.get("condition", now["condition"]), given.get("group", now["group"])
        self._manager.add_breakpoint(name, condition, bool(given.get("enabled", now["enabled"])), group)
        return self._told(name)

    def _group(self, given: Arguments) -> list[dict[str, Any]]:
        names = self._manager.set_group(str(given.get("group")), enabled=bool(given.get("enabled")))
        return [self._told(name) for name in names]

    def _check(self, given: Arguments) -> dict[str, Any]:
        parsed = parse_condition(given.get("condition") or "")
        return {"condition": parsed.text, "keys": sorted(parsed.keys)}

    def _go_on(self) -> dict[str, Any]:
        if not self._manager.paused:
            raise NotPaused("the run is not paused")
        self._manager.continue_execution()
        return self.state()

    def _pause(self) -> dict[str, Any]:
        if self._manager.paused:
            raise NotPaused("the run is paused already")
        self._manager.pause_next()
        return self.state()

    def _next(self) -> dict[str, Any]:
        if not self._manager.paused:
            raise NotPaused("the run is not paused")
        self._manager.pause_next()
        return self._go_on()
