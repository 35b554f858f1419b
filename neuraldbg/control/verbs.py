"""What can be asked of a training process: one table, for the channel and for whoever sits in the same process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from neuraldbg.control.breakpoints import KEYS
from neuraldbg.control.conditions import parse_condition
from neuraldbg.control.gate import Gate
from neuraldbg.errors import NotPaused, UsageError
from neuraldbg.records import Stop

Arguments = Mapping[str, Any]


class Verbs:
    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self._table: dict[str, Callable[[Arguments], Any]] = {
            "state": lambda _: gate.state(),
            "breakpoints": lambda _: self._breakpoints(),
            "add": self._add,
            "remove": self._remove,
            "change": self._change,
            "group": self._group,
            "check": self._check,
            "continue": lambda _: self._then(gate.resume),
            "pause": lambda given: self._then(lambda: gate.pause(given.get("why"))),
            "found": lambda given: gate.found(str(given.get("kind")), str(given.get("summary") or "")),
            "step": lambda given: self._then(lambda: gate.step(str(given.get("unit") or "layer"))),
            "abort": lambda _: self._then(gate.abort),
            "tensor": self._tensor,
        }

    def __call__(self, verb: str, arguments: Arguments) -> Any:
        known = self._table.get(verb)
        if known is None:
            raise UsageError(f"no verb {verb!r}: {', '.join(self._table)}")
        return known(arguments)

    def _then(self, action: Callable[[], None]) -> dict[str, Any]:
        action()
        return self.gate.state()

    def _breakpoints(self) -> list[dict[str, Any]]:
        return [one.as_dict() for one in self.gate.breakpoints.all()]

    def _add(self, given: Arguments) -> dict[str, Any]:
        one = self.gate.breakpoints.add(
            given.get("layer_name") or "",
            given.get("condition"),
            phase=given.get("phase"),
            enabled=bool(given.get("enabled", True)),
            group=given.get("group"),
            once=bool(given.get("once", False)),
        )
        return one.as_dict()

    def _remove(self, given: Arguments) -> list[dict[str, Any]]:
        which = given.get("id", given.get("layer_name"))
        if which is None:
            raise UsageError("which breakpoint? give its layer_name or id")
        return [one.as_dict() for one in self.gate.breakpoints.remove(which)]

    def _change(self, given: Arguments) -> dict[str, Any]:
        fields = {name: value for name, value in given.items() if name != "id"}
        return self.gate.breakpoints.change(given["id"], **fields).as_dict()

    def _group(self, given: Arguments) -> list[dict[str, Any]]:
        found = self.gate.breakpoints.set_group(str(given.get("group")), enabled=bool(given.get("enabled")))
        return [one.as_dict() for one in found]

    def _check(self, given: Arguments) -> dict[str, Any]:
        """Whether a condition is one."""
        parsed = parse_condition(given.get("condition") or "", KEYS)
        return {"condition": parsed.text, "keys": sorted(parsed.keys)}

    def _tensor(self, given: Arguments) -> dict[str, Any]:
        def look(stop: Stop) -> dict[str, Any]:
            if stop.describe is None:
                raise NotPaused("no tensors can be read here")
            return stop.describe(stop, str(given.get("kind") or "output"), given.get("layer"), given.get("slice"))

        found: dict[str, Any] = self.gate.do(look)
        return found
