"""What can be asked of a training process: one table, for the channel and for whoever sits in the same process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from neuraldbg.control.breakpoints import KEYS
from neuraldbg.control.conditions import LONGEST as LONGEST_CONDITION
from neuraldbg.control.conditions import parse_condition
from neuraldbg.control.gate import Gate
from neuraldbg.errors import AbortedByUser, NotPaused, UsageError
from neuraldbg.records import Stop

LONGEST_NAME = 300
LONGEST_GROUP = 200
LONGEST_TOLD = 1000  # of a summary, a reason
_TEXTS = {
    "layer_name": LONGEST_NAME,
    "condition": LONGEST_CONDITION,
    "group": LONGEST_GROUP,
    "phase": 20,
    "unit": 20,
    "layer": LONGEST_NAME,
    "kind": 100,
    "slice": 200,
}
_FLAGS = ("enabled", "once", "pending")
_OF_SOMEBODY = ("add", "change", "group", "pause", "step")  # who wants a stop can answer it
Arguments = Mapping[str, Any]


def checked(given: Arguments) -> Arguments:
    """What was sent, as far as its types and lengths are right: whatever a run keeps must be listable later."""
    for name, value in given.items():
        if name in _FLAGS and not isinstance(value, bool):
            raise UsageError(f"{name} is true or false, not {_shown(value)}")
        if name == "id" and (isinstance(value, bool) or not isinstance(value, int | str)):
            raise UsageError(f"the id of a breakpoint is a number, not {_shown(value)}")
        most = _TEXTS.get(name)
        if most is None or value is None:
            continue
        if not isinstance(value, str):
            raise UsageError(f"{name} is a text, not {_shown(value)}")
        if name != "condition" and len(value) > most:  # a condition has an error of its own, with its place
            raise UsageError(f"{name} has at most {most} characters; this one has {len(value)}")
    return given


def _shown(value: Any) -> str:
    return repr(value) if len(repr(value)) < 60 else f"a {type(value).__name__}"


class Verbs:
    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self._table: dict[str, Callable[[Arguments], Any]] = {
            "state": self._state,
            "breakpoints": lambda _: self._breakpoints(),
            "add": self._add,
            "remove": self._remove,
            "change": self._change,
            "group": self._group,
            "check": self._check,
            "continue": lambda _: self._then(gate.resume),
            "pause": lambda given: self._then(lambda: gate.pause(_cut(given.get("why")) or None)),
            "found": lambda given: gate.found(str(given.get("kind")), _cut(given.get("summary"))),
            "step": lambda given: self._then(lambda: gate.step(str(given.get("unit") or "layer"))),
            "abort": lambda _: self._then(self._abort),
            "tensor": self._tensor,
        }

    def __call__(self, verb: str, arguments: Arguments) -> Any:
        known = self._table.get(verb)
        if known is None:
            raise UsageError(f"no verb {verb!r}: {', '.join(self._table)}")
        if verb in _OF_SOMEBODY:
            self.gate.left = False
        return known(checked(arguments))

    def _state(self, given: Arguments) -> dict[str, Any]:
        """With `every_s`: whoever asks looks at the run's files so often."""
        every_s = given.get("every_s")
        if isinstance(every_s, int | float) and every_s > 0:
            self.gate.watched_every(every_s)
        return self.gate.state()

    def _abort(self) -> None:
        """Ends the training as Ctrl-C does: where it is held, else at the next layer or update."""
        gate = self.gate
        if gate.paused:
            gate.abort()
            return
        if gate.together is not None:
            gate.together.pause("aborted from the debugger", leave=True)
            return

        def leave(_: Stop) -> None:
            gate.when = [each for each in gate.when if each[1] is not leave]  # once: who catches it may go on
            gate.breakpoints.changed()
            raise AbortedByUser

        gate.break_when(leave, "abort")

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
            enabled=given.get("enabled", True),
            group=given.get("group"),
            once=given.get("once", False),
            pending=given.get("pending", False),
        )
        return one.as_dict()

    def _remove(self, given: Arguments) -> list[dict[str, Any]]:
        which = given.get("id", given.get("layer_name"))
        if which is None:
            raise UsageError("which breakpoint? give its layer_name or id")
        return [one.as_dict() for one in self.gate.breakpoints.remove(which)]

    def _change(self, given: Arguments) -> dict[str, Any]:
        fields = {name: value for name, value in given.items() if name != "id"}
        if given.get("id") is None:
            raise UsageError("which breakpoint? give its id")
        return self.gate.breakpoints.change(given["id"], **fields).as_dict()

    def _group(self, given: Arguments) -> list[dict[str, Any]]:
        found = self.gate.breakpoints.set_group(str(given.get("group")), enabled=bool(given.get("enabled")))
        return [one.as_dict() for one in found]

    def _check(self, given: Arguments) -> dict[str, Any]:
        """Whether a condition is one."""
        parsed = parse_condition(given.get("condition") or "", KEYS)
        return {"condition": parsed.text, "keys": sorted(parsed.keys)}

    def _tensor(self, given: Arguments) -> dict[str, Any]:
        kind, layer, part, step = (given.get(name) for name in ("kind", "layer", "slice", "step"))

        def look(stop: Stop) -> dict[str, Any]:
            if step is not None and step != stop.step:
                return self._past(step, str(kind or "output"), layer, part)
            if stop.describe is None:
                raise NotPaused("no tensors can be read here")
            return stop.describe(stop, str(kind or "output"), layer, part)

        found: dict[str, Any] = self.gate.do(look)
        return found

    def _past(self, step: Any, kind: str, layer: Any, part: Any) -> dict[str, Any]:
        if isinstance(step, bool) or not isinstance(step, int):
            raise UsageError(f"a step is a number, not {_shown(step)}")
        if self.gate.past is None:
            raise NotPaused(f"the run is not paused at step {step}, and not recorded: --record full keeps every step")
        return self.gate.past(step, kind, layer, part)


def _cut(text: Any) -> str:
    return str(text or "")[:LONGEST_TOLD]
