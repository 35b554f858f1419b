"""Breakpoints of a loop that reports its layers by hand. Conditions are a small language of our own, never `eval`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from neuraldbg.control.conditions import Condition, parse_condition
from neuraldbg.errors import UnknownBreakpoint, UsageError, nearest

from .entries import plain

log = logging.getLogger("neuraldbg")


class BreakpointManager:
    """`breakpoints` maps a layer (or a glob) to its `enabled`, `condition`, `hit_count`, `trigger_count`, `group`.

    `should_break` says whether to stop; `hold` stops, until `paused` is set to False from another thread or the page.
    """

    def __init__(self, *, enabled: bool = True, pause_on_condition: bool = True) -> None:
        self.enabled = enabled
        self.pause_on_condition = pause_on_condition
        self.breakpoints: dict[str, dict[str, Any]] = {}
        self.current_layer: str | None = None
        self.current_data: dict[str, Any] = {}
        self.on_hold: list[Callable[[str, Mapping[str, Any]], None]] = []
        self._conditions: dict[str, Condition] = {}
        self._open = threading.Event()
        self._open.set()
        self._next_id = 1
        self._wanted = False

    @property
    def paused(self) -> bool:
        """Whether `hold` holds somebody now."""
        return not self._open.is_set()

    @paused.setter
    def paused(self, value: bool) -> None:
        if value:
            self._open.clear()
        else:
            self._open.set()

    def add_breakpoint(
        self, layer_name: str, condition: str | None = None, enabled: bool = True, group: str | None = None
    ) -> None:
        """The same layer again changes its breakpoint. ConditionError says where a condition is wrong, and why."""
        if not isinstance(layer_name, str) or not layer_name.strip():
            raise UsageError("a breakpoint needs the name of a layer")
        text = condition.strip() if isinstance(condition, str) else condition
        if text:
            self._parsed(text)
        if layer_name not in self.breakpoints:
            self.breakpoints[layer_name] = {"id": self._next_id, "hit_count": 0, "trigger_count": 0}
            self._next_id += 1
        self.breakpoints[layer_name].update(enabled=enabled, condition=text or None, group=group)

    def remove_breakpoint(self, layer_name: str) -> bool:
        """Whether there was one."""
        return self.breakpoints.pop(layer_name, None) is not None

    def toggle_breakpoint(self, layer_name: str) -> bool:
        """On becomes off and off becomes on; returns which it is now."""
        one = self.find(layer_name)
        one["enabled"] = not one["enabled"]
        return bool(one["enabled"])

    def set_group(self, group: str, enabled: bool) -> list[str]:
        """Turns every breakpoint of a group on or off; returns their layers."""
        names = [name for name, one in self.breakpoints.items() if one.get("group") == group]
        if not names:
            raise UnknownBreakpoint(f"no group {group!r} of breakpoints")
        for name in names:
            self.breakpoints[name]["enabled"] = enabled
        return names

    def find(self, which: str | int) -> dict[str, Any]:
        """By the name of its layer, or its number."""
        for name, one in self.breakpoints.items():
            if which in (name, one.get("id")):
                return one
        near = nearest(str(which), self.breakpoints)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownBreakpoint(f"no breakpoint {which!r}{hint}")

    def get_breakpoint_info(self) -> dict[str, dict[str, Any]]:
        """By layer: enabled, hits, triggers, condition, group."""
        shown = ("enabled", "hit_count", "condition", "group", "trigger_count")
        return {name: {key: one.get(key) for key in shown} for name, one in self.breakpoints.items()}

    def should_break(self, layer_name: str, layer_data: Mapping[str, Any]) -> bool:
        """Whether training should stop at this layer with these numbers. `hit_count` counts true conditions; with
        `pause_on_condition` off they are logged and nothing stops."""
        if self._wanted:
            return True
        name = self._matching(layer_name)
        if name is None or not self.enabled or not self.breakpoints[name]["enabled"]:
            return False
        one = self.breakpoints[name]
        if not self._holds(name, one, layer_data):
            return False
        one["hit_count"] += 1
        if not self.pause_on_condition:
            log.warning("breakpoint at %s: %s (logged; pause_on_condition is false)", layer_name, one["condition"])
        return self.pause_on_condition

    def hold(self, layer_name: str, layer_data: Mapping[str, Any], timeout_s: float | None = None) -> bool:
        """Stops this thread at a layer until somebody continues; False when the time is over before."""
        name = self._matching(layer_name)
        if name is not None:
            self.breakpoints[name]["trigger_count"] = self.breakpoints[name].get("trigger_count", 0) + 1
        self._wanted = False
        self.current_layer, self.current_data = layer_name, dict(layer_data)
        self.paused = True
        for notice in self.on_hold:
            notice(layer_name, layer_data)
        try:
            return self.wait_if_paused(timeout_s)
        finally:
            self.paused = False
            self.current_layer, self.current_data = None, {}

    def pause_next(self) -> None:
        """Stop at the next layer that reports itself."""
        self._wanted = True

    def continue_execution(self) -> None:
        """Lets go whoever `hold` holds."""
        self.paused = False

    def wait_if_paused(self, timeout_s: float | None = None) -> bool:
        """In slices, so that Ctrl-C works everywhere; False when the time is over."""
        left = timeout_s
        while not self._open.wait(0.5 if left is None else min(0.5, left)):
            if left is not None:
                left -= 0.5
                if left <= 0:
                    return self._open.is_set()
        return True

    def _matching(self, layer_name: str) -> str | None:
        """The breakpoint a layer has: by its exact name, by its name in another case, by a glob."""
        if layer_name in self.breakpoints:
            return layer_name
        folded = layer_name.casefold()
        same = (name for name in self.breakpoints if name.casefold() == folded)
        like = (name for name in self.breakpoints if set("*?[") & set(name) and fnmatchcase(layer_name, name))
        return next(same, None) or next(like, None)

    def _parsed(self, text: str) -> Condition:
        if text not in self._conditions:
            self._conditions[text] = parse_condition(text)
        return self._conditions[text]

    def _holds(self, name: str, one: dict[str, Any], layer_data: Mapping[str, Any]) -> bool:
        if not one["condition"]:
            return True
        values = {key: plain(value) for key, value in layer_data.items()}
        try:
            return self._parsed(one["condition"])(values)
        except (ArithmeticError, TypeError, ValueError, UsageError) as error:
            one["enabled"] = False
            log.warning("breakpoint at %s is off: its condition %r raised %r", name, one["condition"], error)
            return False
