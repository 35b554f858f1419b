"""What Dynamo tells about a graph that it hands to a backend, and the places where nothing can be measured."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor, fx, nn

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.living import instances_of
from neuraldbg.capture.torch.core import Core
from neuraldbg.capture.torch.patches import Patches
from neuraldbg.capture.torch.taps import BACKWARD, FORWARD


class Modules:
    """The modules that a graph runs, by Dynamo's keys: a module's id, and behind an @ the number of the call."""

    def __init__(self, graph: Any, traced: fx.GraphModule) -> None:
        keys = [key.split("@")[0] for node in _nodes(traced) for key in node.meta.get("nn_module_stack") or ()]
        order = list(dict.fromkeys(int(key) for key in keys if key.isdigit()))
        wanted = frozenset(order)
        self._alive = {id(one): one for one in instances_of((nn.Module,), exact=False) if id(one) in wanted}
        self.lost = len(set(keys)) - len(self._alive)  # that an unknown torch names in another way
        owners = [value for value in _scope(graph).values() if isinstance(value, nn.Module)]
        called = [self._alive[number] for number in order if number in self._alive]
        self.outermost: list[nn.Module] = [*owners, *called]  # whose layers the others are, first
        self.root: Any = weakref.ref(self.outermost[0]) if self.outermost else lambda: None

    def get(self, key: str) -> nn.Module | None:
        number = key.split("@")[0]
        return self._alive.get(int(number)) if number.isdigit() else None


def _nodes(traced: fx.GraphModule) -> Iterator[fx.Node]:
    for module in traced.modules():
        if isinstance(module, fx.GraphModule):
            yield from module.graph.nodes


def _scope(graph: Any) -> dict[str, Any]:
    """The variables of the function that is being compiled; a method of a model is called with the model."""
    return attempt(lambda: dict(graph.local_scope)) or {}


def is_recompile() -> bool:
    """Whether the code that is being compiled was compiled before, for other shapes, types or values."""
    return bool(attempt(lambda: torch._guards.CompileContext.current_compile_id().frame_compile_id))  # type: ignore[union-attr]


def name_of(graph: Any, traced: fx.GraphModule) -> str:
    code = attempt(lambda: graph.root_tx.f_code)
    name = attempt(lambda: code.co_qualname) or attempt(lambda: code.co_name)
    return str(name or type(traced).__name__)


def given_values(traced: fx.GraphModule) -> tuple[int, ...]:
    """Places of the inputs that the caller gave: not parameters and buffers that Dynamo has lifted."""
    inputs = [node for node in traced.graph.nodes if node.op == "placeholder"]
    names = [str(getattr(getattr(node, "_dynamo_source", None), "name", "")) for node in inputs]
    own = ("_parameters[", "_buffers[")
    return tuple(
        place
        for place, (node, name) in enumerate(zip(inputs, names, strict=True))
        if isinstance(node.meta.get("example_value"), Tensor)
        and not isinstance(node.meta["example_value"], nn.Parameter)
        and not any(word in name for word in own)
    )


def uses_cuda_graphs(graph: Any, traced: fx.GraphModule) -> bool:
    values = [node.meta.get("example_value") for node in traced.graph.nodes if node.op == "placeholder"]
    if not any(isinstance(value, Tensor) and value.is_cuda for value in values):
        return False
    chosen = getattr(graph.compiler_fn, "config", None) or {}
    default = attempt(lambda: sys.modules["torch._inductor.config"].triton.cudagraphs)
    return bool(chosen.get("triton.cudagraphs", default))


def backend_of(graph: Any) -> str:
    return str(getattr(graph.compiler_fn, "compiler_name", None) or getattr(graph.compiler_fn, "__name__", ""))


@contextmanager
def tokens_have_sources(graph: Any) -> Iterator[None]:
    """AOTAutograd asks where each buffer of a graph comes from."""
    from torch._dynamo.source import ConstantSource

    before = graph.param_name_to_source
    graph.param_name_to_source = {**(before or {}), **{name: ConstantSource(name) for name in (FORWARD, BACKWARD)}}
    try:
        yield
    finally:
        graph.param_name_to_source = before


def watch_cuda_graphs(core: Core, patches: Patches, tell: Callable[[], None]) -> None:
    """While one is captured nothing of ours may run, and its replays never come back to Python."""
    kind = torch.cuda.graphs.graph
    enter, leave = kind.__enter__, kind.__exit__
    away: set[int] = set()  # ids of captures that switched us off

    @wraps(enter)
    def __enter__(capture: Any) -> Any:
        if core.on:
            tell()
            away.add(id(capture))
            core.on = False
        return enter(capture)

    @wraps(leave)
    def __exit__(capture: Any, *error: Any) -> Any:
        try:
            return leave(capture, *error)
        finally:
            if id(capture) in away:
                away.discard(id(capture))
                core.on = not core.closed

    patches.replace(kind, "__enter__", __enter__)
    patches.replace(kind, "__exit__", __exit__)
