"""Functions of your own, called while a network runs.

```python
@register_hook("after_layer")
def look(layer_name, activations): ...
```
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from neuraldbg.errors import UsageError, nearest

log = logging.getLogger("neuraldbg")
EVENTS = (
    "before_layer",
    "after_layer",
    "before_backward",
    "after_backward",
    "after_step",
    "on_breakpoint",
    "on_anomaly",
)
_WATCHED = ("before_layer", "after_layer", "before_backward", "after_backward", "after_step")
_OTHER_NAMES = {
    "layer": "layer_name",
    "name": "layer_name",
    "activation": "activations",
    "output": "activations",
    "outputs": "activations",
    "tensor": "activations",
    "gradient": "gradients",
    "grad": "gradients",
    "grads": "gradients",
    "layer_data": "data",
}
Function = TypeVar("Function", bound=Callable[..., Any])


class UnknownEvent(UsageError):
    """A moment that nothing is called at."""

    def __init__(self, event: object, known: Sequence[str]) -> None:
        self.nearest = nearest(str(event), known)
        near = f"did you mean {self.nearest[0]!r}?" if self.nearest else f"there are {', '.join(known)}"
        super().__init__(f"no event {event!r}; {near}")


class Hooks:
    """Who wants to hear of what. A function that fails is told of once and called no more: training goes on."""

    def __init__(self) -> None:
        self._functions: dict[str, list[Callable[..., Any]]] = {event: [] for event in EVENTS}
        self._watch: Any = None
        self._announcer: Any = None

    def register(self, event: str, function: Callable[..., Any]) -> None:
        self.must_know(event)
        self._functions[event].append(function)
        if event in _WATCHED and self._watch is None:
            from neuraldbg.capture.importing import ImportWatch

            self._watch = ImportWatch("torch", self._torch_imported)
            self._watch.install()
        self._listen()

    def _listen(self) -> None:
        """To the breakpoints of trainings in this process, while somebody wants to hear of them."""
        from neuraldbg.control.gate import on_hit

        if self.wanted("on_breakpoint") and self._hit not in on_hit:
            on_hit.append(self._hit)
        elif not self.wanted("on_breakpoint") and self._hit in on_hit:
            on_hit.remove(self._hit)

    def _hit(self, stop: Any) -> None:
        if stop.fill is not None:
            stop.fill()
        self.fire("on_breakpoint", layer_name=stop.layer, data=dict(stop.values))

    def must_know(self, event: str) -> None:
        if event not in self._functions:
            raise UnknownEvent(event, EVENTS)

    def unregister(self, function: Callable[..., Any]) -> None:
        """The last one takes our hooks in the framework with it."""
        for functions in self._functions.values():
            functions[:] = [each for each in functions if each is not function]
        if not any(self._functions[event] for event in _WATCHED):
            self.close()
        self._listen()

    def clear(self) -> None:
        for functions in self._functions.values():
            functions.clear()
        self.close()
        self._listen()

    def close(self) -> None:
        watch, self._watch = self._watch, None
        announcer, self._announcer = self._announcer, None
        if watch is not None:
            watch.remove()
        if announcer is not None:
            announcer.close()

    def wanted(self, event: str) -> bool:
        return bool(self._functions[event])

    def fire(self, event: str, **values: Any) -> None:
        from neuraldbg.capture.guard import attempt_or_why

        for function in list(self._functions[event]):
            arguments, named = bound(function, values)
            _, why = attempt_or_why(partial(function, *arguments, **named))
            if why is not None:
                self._functions[event] = [each for each in self._functions[event] if each is not function]
                name = getattr(function, "__name__", repr(function))
                log.warning("hook %s(%r) raised %s: it is called no more, training continues", name, event, why)

    def _torch_imported(self) -> None:
        from neuraldbg.capture.torch.announce import Announcer

        self._announcer = Announcer(self.fire, self.wanted)


def bound(function: Callable[..., Any], values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments a function takes, by the names of its parameters; what it calls otherwise gets the values in their
    order."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return list(values.values())[:2], {}
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return [], dict(values)
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return list(values.values()), {}
    meant = {each.name: _OTHER_NAMES.get(each.name, each.name) for each in parameters}
    left = [name for name in values if name not in meant.values()]
    arguments: list[Any] = []
    named: dict[str, Any] = {}
    for each in parameters:
        known = meant[each.name] if meant[each.name] in values else None
        if known is None and each.default is each.empty and left:
            known = left.pop(0)
        if known is None:
            continue
        if each.kind is each.POSITIONAL_ONLY:
            arguments.append(values[known])
        else:
            named[each.name] = values[known]
    return arguments, named


hooks = Hooks()


def register_hook(event: str) -> Callable[[Function], Function]:
    """Has the decorated function called at every `before_layer`, `after_layer` (layer_name, activations),
    `before_backward`, `after_backward` (layer_name, gradients), `after_step` (step), `on_breakpoint` (layer_name, data)
    or `on_anomaly` (layer_name, data, result)."""

    def register(function: Function) -> Function:
        hooks.register(event, function)
        return function

    hooks.must_know(event)
    return register


def unregister_hook(function: Callable[..., Any]) -> None:
    """It is called no more, whatever it was registered for."""
    hooks.unregister(function)
