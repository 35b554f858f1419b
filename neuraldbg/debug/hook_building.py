"""A debugging hook, and the builder that it is put together with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from neuraldbg.debug.hook_parts import HookAction, HookCondition, HookTrigger, LayerSpecific
from neuraldbg.debug.settings import from_on
from neuraldbg.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Hook:
    """Acts at its trigger, on layers one of its patterns is found in (all without), while all conditions hold."""

    name: str
    trigger: HookTrigger
    actions: tuple[HookAction, ...]
    layer_patterns: tuple[re.Pattern[str], ...] = ()
    max_executions: int | None = None
    conditions: tuple[HookCondition, ...] = ()

    def wants_layer(self, layer: str, inner: bool = False) -> bool:
        """`inner`: of a module that holds others, only where it is named."""
        if inner and not self.layer_patterns and not isinstance(self.trigger, LayerSpecific):
            return False
        named = not self.layer_patterns or any(pattern.search(layer) for pattern in self.layer_patterns)
        return named and self.trigger.wants_layer(layer)


@dataclass(eq=False)
class HookBuilder:
    """`HookBuilder("Layer Monitor").trigger(...).action(...).layer_patterns([...]).max_executions(100).build()`"""

    name: str
    _trigger: HookTrigger | None = None
    _actions: list[HookAction] = field(default_factory=list)
    _conditions: list[HookCondition] = field(default_factory=list)
    _patterns: list[re.Pattern[str]] = field(default_factory=list)
    _most: int | None = None

    def trigger(self, trigger: HookTrigger) -> HookBuilder:
        """When it acts; a hook has one."""
        self._trigger = _of(HookTrigger, trigger, "trigger")
        return self

    def action(self, action: HookAction) -> HookBuilder:
        """Several are done in this order."""
        self._actions.append(_of(HookAction, action, "action"))
        return self

    def condition(self, condition: HookCondition) -> HookBuilder:
        """Several must all hold."""
        self._conditions.append(_of(HookCondition, condition, "condition"))
        return self

    def layer_patterns(self, patterns: Sequence[str]) -> HookBuilder:
        """Regular expressions, found anywhere in a layer's name: `^` and `$` for its ends."""
        for text in [patterns] if isinstance(patterns, str) else patterns:
            try:
                self._patterns.append(re.compile(text))
            except re.error as error:
                where = "" if error.pos is None else f" at character {error.pos + 1}"
                raise ConfigError(f"bad pattern {text!r} of hook {self.name!r}{where}: {error.msg}") from None
        return self

    def max_executions(self, most: int) -> HookBuilder:
        """Then it acts no more."""
        from_on("max_executions", most)
        self._most = most
        return self

    def build(self) -> Hook:
        """ConfigError where trigger or action is missing."""
        if self._trigger is None or not self._actions:
            missing = ".trigger(HookTrigger....)" if self._trigger is None else ".action(HookAction....)"
            raise ConfigError(f"hook {self.name!r} needs {missing} before .build()")
        parts = (tuple(self._actions), tuple(self._patterns), self._most, tuple(self._conditions))
        return Hook(self.name, self._trigger, *parts)


def _of(kind: type, given: Any, what: str) -> Any:
    if isinstance(given, kind):
        return given
    known = sorted(name for name in kind.__annotations__ if name[0].isupper())
    raise ConfigError(
        f"{given!r} is no {what} of a hook; there are {', '.join(f'{kind.__name__}.{one}' for one in known)}"
    )
