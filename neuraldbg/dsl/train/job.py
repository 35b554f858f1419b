"""A `.neural` file from its text to its trained networks: read, checked, built, trained."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any

from neuraldbg.dsl.check import check
from neuraldbg.dsl.graph import Graph, written
from neuraldbg.dsl.problems import Problem, render_all
from neuraldbg.dsl.program import Program, parse_file
from neuraldbg.dsl.train.loop import Options, Trained, train
from neuraldbg.errors import BackendMissing, DslError

BACKENDS = ("pytorch", "torch")
SMALL_STEP = 1_000_000_000  # operations of an update below which one thread computes it
LATER = ("tensorflow", "keras", "jax", "onnx")


@dataclass(slots=True)
class Job:
    """A file that was checked and can be trained."""

    path: str
    program: Program
    graphs: list[Graph]
    problems: list[Problem]
    options: Options
    done: list[Trained] = field(default_factory=list)

    def run(self) -> None:
        """Train every network, one after the other."""
        from neuraldbg.dsl.build.torch_model import build
        from neuraldbg.dsl.train.datasets import samples_for

        for graph in self.graphs:
            _need_parameters(graph)
            _need_memory(graph)
            built = build(graph, self.path)
            _threads_for(graph, self.options.batch or built.plan.batch_size)
            samples = samples_for(graph, built.loss, self.options.dataset, seed=self.options.seed)
            print(f"{graph.network.name}: {_size(graph)}", flush=True)
            print(f"data: {samples.told}", flush=True)
            name = graph.network.name.lower() if len(self.graphs) > 1 else None
            self.done.append(train(built, samples, self.options, _print, name=name))

    def findings(self) -> list[dict[str, Any]]:
        """What the reading of the file found that a debugger should tell."""
        return [
            {
                "kind": problem.kind,
                "layer": problem.layer,
                "source": f"{_shown(self.path)}:{problem.line}",
                "message": problem.message,
            }
            for problem in self.problems
            if problem.kind == "softmax_before_cross_entropy"
        ]


def _threads_for(graph: Graph, batch: int) -> None:
    """Of a small network the threads wait for each other more than they compute: on two busy cores the example of this
    repository took 50 s of CPU time with two threads and 8 s with one."""
    import torch

    if 3 * graph.flops * batch < SMALL_STEP and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


def _need_parameters(graph: Graph) -> None:
    if graph.parameters == 0:
        raise DslError(f"{graph.network.name}: no layer of it has parameters, so there is nothing to train")


def _need_memory(graph: Graph) -> None:
    """Weights, their gradients and what an optimizer keeps of each: refused before the machine starts to swap."""
    import psutil

    needed, free = graph.parameters * 16, psutil.virtual_memory().available
    if needed > free:
        told = (
            f"{graph.parameters:,} parameters need about {needed / 1e9:,.0f} GB to train, {free / 1e9:,.0f} GB are free"
        )
        raise BackendMissing(f"{graph.network.name} cannot be trained on this machine: {told}")


def _shown(path: str) -> str:
    """A file as findings name it: relative to the working directory where it lies below it."""
    here, full = os.getcwd() + os.sep, os.path.abspath(path)
    return full[len(here) :] if full.startswith(here) else os.path.basename(full)


def _print(text: str) -> None:
    print(text, flush=True)


def _size(graph: Graph) -> str:
    shapes = ", ".join(written(each.shape) for each in graph.inputs)
    return f"{shapes} -> {written(graph.shape)}, {graph.parameters:,} parameters, {graph.flops:,} FLOPs a sample"


def prepare(path: str, options: Options, *, backend: str | None = None, quiet: bool = False) -> Job:
    """Read and check a file; what is to be said about it goes to stderr. Imports no framework."""
    need_backend(backend)
    program = parse_file(path)
    if not program.networks:
        raise DslError(f"{path}: holds no network to train")
    graphs, problems = check(program, only=options.network)
    if problems and not quiet:
        print(render_all(problems, program.source), file=sys.stderr, flush=True)
    return Job(path, program, graphs, problems, options)


def need_backend(backend: str | None) -> None:
    """Refuse what this version cannot run on, or what is not installed."""
    from importlib.util import find_spec

    name = (backend or "pytorch").lower()
    if name in LATER:
        raise BackendMissing(f"backend {name} is not in this version; available: pytorch")
    if name not in BACKENDS:
        raise BackendMissing(f"there is no backend {backend!r}; available: pytorch")
    if find_spec("torch") is None:
        raise BackendMissing("PyTorch is not installed; install it with: pip install 'neural-debugger[torch]'")
