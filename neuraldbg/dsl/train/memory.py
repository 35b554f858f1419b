"""Whether a training fits into memory: asked before the machine starts to swap, or kills it."""

from __future__ import annotations

from typing import Any

from neuraldbg.dsl.graph import Graph, Step, size
from neuraldbg.dsl.settings import Plan
from neuraldbg.errors import BackendMissing

FLOAT = 4  # bytes
_VIEWS = frozenset({"reshape", "flatten", "fold_time", "unfold_time"})
_KEPT = {"SGD": 0, "Adagrad": 1, "RMSprop": 1}  # numbers that an optimizer keeps of every parameter; else 2


def need_memory(graph: Graph, plan: Plan, batch: int, free: int) -> None:
    """`BackendMissing` where what must be held at once is more than `free` bytes. Counts only what is surely held, so
    that nothing is refused that could run."""
    fixed, each = of_parameters(graph, plan), of_sample(graph)
    if fixed > free:
        told = f"{graph.parameters:,} parameters need about {_gb(fixed)} to train, {_gb(free)} are free"
        raise BackendMissing(f"{graph.network.name} cannot be trained on this machine: {told}")
    if fixed + batch * each > free:
        most = (free - fixed) // each
        hint = f"--batch-size {most} may fit" if most else "not even one sample fits"
        told = f"a batch of {batch} needs more than {_gb(fixed + batch * each)}, {_gb(free)} are free; {hint}"
        raise BackendMissing(f"{graph.network.name} cannot be trained on this machine: {told}")


def of_parameters(graph: Graph, plan: Plan) -> int:
    """Weights, their gradients and what the optimizer keeps of each."""
    kept = _KEPT.get(plan.optimizer, 2) + bool(plan.options.get("momentum") and plan.optimizer in ("SGD", "RMSprop"))
    return graph.parameters * FLOAT * (2 + kept)


def of_sample(graph: Graph) -> int:
    """What a forward pass leaves for the backward pass."""
    outputs = sum(size(step.shape) + _inside(step) for step in graph.steps if step.op not in _VIEWS)
    return FLOAT * (outputs + size(graph.shape))  # the loss keeps one more of the last


def _inside(step: Step) -> int:
    """Of an encoder: the wide layer, and the weights of its attention where dropout makes them be kept."""
    o: dict[str, Any] = step.options
    if step.op not in ("encoder", "decoder"):
        return 0
    length, width = step.shape
    wide = length * (o["hidden"] + 4 * width)
    weights = o["heads"] * length * length if o["dropout"] and o["drops_weights"] else 0
    return int(o["layers"] * (wide + weights))


def free_on(device: str) -> int | None:
    """Bytes; None where nobody can tell."""
    if device == "cpu":
        import psutil

        return int(psutil.virtual_memory().available)
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    return None


def _gb(count: int) -> str:
    return f"{count / 1e9:,.0f} GB" if count >= 1e10 else f"{count / 1e9:,.1f} GB"
