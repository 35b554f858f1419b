"""Operations of ours inside a graph that Dynamo has traced: each hands one value, and its gradient, to an observer.

A tap reads a value and changes nothing that the program reads. Compilers keep it because it claims to write to a token.
Dynamo never sees one: they are put into a copy of its graph, so there is no guard, no graph break and no recompile.
"""

from __future__ import annotations

import copy
import re
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, fx

from neuraldbg.capture.torch.tree import Layer

MOST_OUTPUTS = 8  # of one call of a layer
FORWARD, BACKWARD = "neuraldbg_forward", "neuraldbg_backward"  # names of the tokens in the graph
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_HALF = (torch.bfloat16, torch.float16)
_WHOLE = re.compile(r"(linear|conv(_transpose)?[123]d|b?mm|addmm|baddbmm|matmul|scaled_dot_product_attention)")
_VIEWS = ("view", "reshape", "permute", "transpose", "flatten", "unflatten", "getitem", "contiguous", "chunk", "split")
_CARRIED = ("nn_module_stack", "stack_trace", "source_fn_stack")


@dataclass(frozen=True, slots=True)
class Tap:
    """One output of one call of a layer."""

    layer: Layer
    slot: int
    ways: tuple[bool, bool]  # the value itself, its gradient
    shape: tuple[int, ...] | None
    dtype: str
    device: str
    file_and_line: tuple[str, int] | None


@dataclass(eq=False)
class Observed:
    """Where the taps of one graph report to. Lives as long as its session; after that its taps do nothing."""

    observe: Callable[[Tensor, int, bool], None]  # value, number of the tap, is a gradient
    taps: list[Tap] = field(default_factory=list)
    traced_gradients: set[int] = field(default_factory=set)  # taps whose gradient the compiler was shown
    inside: set[int] = field(default_factory=set)  # ids of the modules that the graph runs
    unseen: int = 0  # graphs inside the graph that no tap can be put into
    careful: bool = False  # tap only what the compiler puts into memory anyway
    left_out: int = 0  # values that were not tapped for that reason
    seen: set[tuple[int, bool]] = field(default_factory=set)  # numbers that reported, values and gradients
    running: Any = None  # the pass whose forward is under way
    returning: Any = None  # the pass whose gradients are being made


_observed: weakref.WeakValueDictionary[int, Observed] = weakref.WeakValueDictionary()


@lru_cache(maxsize=1)
def _operation() -> Any:
    """Defined with the first tap and kept: a compiled function that outlives us may still hold it."""
    library: Any = torch.library.Library("neuraldbg", "FRAGMENT")  # type: ignore[no-untyped-call]
    any_layout = getattr(torch.Tag, "flexible_layout", None)  # the compiler need not copy a value to show it
    tags = () if any_layout is None else (any_layout,)
    library.define("tap(Tensor value, Tensor(a!) token, int graph, int number, bool gradient) -> ()", tags=tags)
    library.impl("tap", _report, "CompositeExplicitAutograd")
    torch.library.register_fake("neuraldbg::tap", lambda *_: None, lib=library)
    return library, torch.ops.neuraldbg.tap.default


def _report(value: Tensor, _: Tensor, graph: int, number: int, gradient: bool) -> None:
    known = _observed.get(graph)
    if known is not None:
        known.observe(value, number, gradient)


def _watch(value: Tensor, tokens: list[Tensor], graph: int, number: int, ways: list[bool]) -> None:
    """What stands in the graph. Compilers run it on stand-ins of the tensors, and the gradient's tap with them."""
    tap = _operation()[1]
    forward, backward = tokens
    if ways[0]:
        tap(value.detach(), forward, graph, number, False)
    if ways[1] and value.requires_grad and torch.is_grad_enabled():
        known = _observed.get(graph)
        one = None if known is None else known.running  # a backend that runs this very line in every pass

        def arrived(gradient: Tensor | None) -> None:
            if gradient is not None and known is not None:
                known.traced_gradients.add(number)
                known.returning = one or known.returning
                tap(gradient.detach(), backward, graph, number, True)

        value.register_hook(arrived)  # type: ignore[no-untyped-call]


def copy_with_taps(
    traced: fx.GraphModule, found: Callable[[str], Layer | None], observed: Observed
) -> fx.GraphModule | None:
    """A copy of Dynamo's graph with a tap behind every output of every layer; None where there is no layer in it.
    Parameters and constants are shared. `found` gives the layer of a key of Dynamo's stack of modules."""
    _operation()
    copied = _copy(traced)
    number = id(observed)
    _put_taps(copied, found, observed, number)
    if not observed.taps:
        return None
    _observed[number] = observed
    for name in (FORWARD, BACKWARD):
        copied.register_buffer(name, torch.zeros(1))
    copied.recompile()
    return copied


def _copy(traced: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    result = graph.graph_copy(traced.graph, {})
    ending = next(node for node in traced.graph.nodes if node.op == "output")
    graph.output(result).meta = copy.copy(ending.meta)
    copied = fx.GraphModule(traced, graph)
    copied.meta = dict(traced.meta)
    for name, value in vars(traced).items():
        if name in ("compile_subgraph_reason", "_backend_id", "torchdynamo_force_dynamic"):
            setattr(copied, name, value)
    return copied


def _put_taps(module: fx.GraphModule, found: Callable[[str], Layer | None], observed: Observed, number: int) -> bool:
    """True if some were put in."""
    graph = module.graph
    nodes = list(graph.nodes)
    slots: dict[tuple[str, ...], int] = {}
    wanted = [(node, layer, slot) for node in nodes for layer, slot in _outputs(node, found, observed, slots)]
    bodies = [node for node in nodes if _is_checkpoint(node)]
    observed.unseen += sum(_holds_graph(node) and not _is_checkpoint(node) for node in nodes)
    tokens: tuple[fx.Node, ...] = ()
    for node, layer, slot in wanted:
        ways = _ways(node) if observed.careful else (True, True)
        observed.left_out += 2 - sum(ways)
        if not any(ways):
            continue
        tokens = tokens or _tokens(module)
        with graph.inserting_after(node):
            tap = graph.call_function(_watch, (node, [*tokens], number, len(observed.taps), [*ways]))
        tap.meta = {name: node.meta[name] for name in _CARRIED if name in node.meta}
        observed.taps.append(_described(node, layer, slot, ways))
    for node in bodies:
        tokens = _tap_inside(module, node, (found, observed, number), tokens)
    return bool(tokens)


def _tokens(module: fx.GraphModule) -> tuple[fx.Node, ...]:
    """After the inputs, before everything that uses them."""
    graph = module.graph
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        if hasattr(module, "neuraldbg_body"):
            return tuple(graph.placeholder(name) for name in (FORWARD, BACKWARD))
        return tuple(graph.create_node("get_attr", name) for name in (FORWARD, BACKWARD))


def _tap_inside(
    module: fx.GraphModule, node: fx.Node, how: tuple[Any, Any, int], tokens: tuple[fx.Node, ...]
) -> tuple[fx.Node, ...]:
    """Activation checkpointing: the body is a graph of its own, which gets the tokens as two more inputs."""
    body_node: Any = node.args[0]
    body = _copy(getattr(module, body_node.target))
    body.neuraldbg_body = True  # type: ignore[assignment]
    if not _put_taps(body, *how):
        return tokens
    body.recompile()
    tokens = tokens or _tokens(module)
    name = f"neuraldbg_{body_node.target}"
    module.add_submodule(name, body)
    body_node.target = name
    node.args = (*node.args, *tokens)
    return tokens


def _is_checkpoint(node: fx.Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "tag_activation_checkpoint"


def _holds_graph(node: fx.Node) -> bool:
    inner = [value for value in node.all_input_nodes if value.op == "get_attr"]
    return any(
        isinstance(getattr(value.graph.owning_module, str(value.target), None), fx.GraphModule) for value in inner
    )


def scope_of(node: fx.Node) -> tuple[str, ...]:
    """Keys of the modules that were running, outermost first."""
    return tuple(node.meta.get("nn_module_stack") or ())


def _outputs(
    node: fx.Node, found: Callable[[str], Layer | None], observed: Observed, slots: dict[tuple[str, ...], int]
) -> Iterator[tuple[Layer, int]]:
    """The layers that this value is an output of: made in them and used outside of them."""
    if node.op in ("placeholder", "output", "get_attr") or not isinstance(node.meta.get("example_value"), Tensor):
        return
    scope = scope_of(node)
    for depth in range(1, len(scope) + 1):
        inside = scope[:depth]
        layer = found(inside[-1])
        if layer is None:
            continue
        observed.inside.add(int(inside[-1].split("@")[0]))
        if layer.watched and any(scope_of(user)[:depth] != inside for user in node.users):
            slot = slots[inside] = slots.get(inside, -1) + 1
            if slot < MOST_OUTPUTS:
                yield layer, slot


def holds_half(traced: fx.GraphModule) -> bool:
    """Whether some value is of half precision. Fused operations keep such values in single precision, and to look at
    one is to round it."""
    values = [node.meta.get("example_value") for node in traced.graph.nodes]
    return any(isinstance(value, Tensor) and value.dtype in _HALF for value in values)


def _ways(node: fx.Node) -> tuple[bool, bool]:
    """Whether the value, and its gradient, are put into memory whole: what a matrix product makes or takes is."""
    made = _is_product(node)
    taken = list(_takers(node))
    alone = len(taken) == 1 and _is_product(taken[0])
    return made, made or alone or node.meta["example_value"].dtype not in _HALF


def _is_product(node: fx.Node) -> bool:
    return node.op in ("call_function", "call_method") and _WHOLE.fullmatch(_operation_of(node)) is not None


def _operation_of(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _takers(node: fx.Node) -> Iterator[fx.Node]:
    for user in node.users:
        if _operation_of(user) in _VIEWS:
            yield from _takers(user)
        elif user.target is not _watch:
            yield user


def _described(node: fx.Node, layer: Layer, slot: int, ways: tuple[bool, bool]) -> Tap:
    value = node.meta["example_value"]
    shape = tuple(value.shape) if all(type(size) is int for size in value.shape) else None
    lines = [
        (file, int(line))
        for file, line in _FRAME.findall(node.meta.get("stack_trace") or "")
        if not file.startswith(torch.__path__[0])
    ]
    dtype = str(value.dtype).removeprefix("torch.")
    return Tap(layer, slot, ways, shape, dtype, str(value.device), lines[-1] if lines else None)
