"""A `.neural` file from its text to its trained networks: read, checked, built, trained."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any

from neuraldbg.dsl.build.backends import backend_of, need_backend
from neuraldbg.dsl.check import check
from neuraldbg.dsl.graph import Graph, written
from neuraldbg.dsl.losses import Loss
from neuraldbg.dsl.problems import Problem, render_all
from neuraldbg.dsl.program import Program, parse_file
from neuraldbg.dsl.train.loop import Options, Trained, train
from neuraldbg.dsl.train.memory import free_on, need_memory
from neuraldbg.dsl.train.samples import Samples
from neuraldbg.errors import DslError

SMALL_STEP = 1_000_000_000  # operations of an update below which one thread computes it


@dataclass(slots=True)
class Job:
    """A file that was checked and can be trained."""

    path: str
    program: Program
    graphs: list[Graph]
    problems: list[Problem]
    options: Options
    backend: str = "pytorch"
    done: list[Trained] = field(default_factory=list)

    def run(self) -> None:
        """Train every network, one after the other."""
        for graph in self.graphs:
            _need_parameters(graph)
            self.done.append(self._trained(graph))

    def _trained(self, graph: Graph) -> Trained:
        name = graph.network.name.lower() if len(self.graphs) > 1 else None
        if self.backend in ("tensorflow", "jax"):
            from neuraldbg.dsl.build.keras_script import build_keras
            from neuraldbg.dsl.train.keras_loop import train_keras

            keras_built = build_keras(graph, self.path, backend=self.backend)
            need_memory(graph, keras_built.plan, 0, free_on("cpu") or 0)
            return train_keras(keras_built, self._samples(graph, keras_built.loss), self.options, _print)
        from neuraldbg.dsl.build.torch_model import build

        built = build(graph, self.path)
        _threads_for(graph, self.options.batch or built.plan.batch_size)
        samples = self._samples(graph, built.loss)
        done = train(built, samples, self.options, _print, name=name)
        if self.backend == "onnx":
            from neuraldbg.dsl.train.onnx_check import check_onnx

            check_onnx(graph, done.model, samples, _print)
        return done

    def _samples(self, graph: Graph, loss: Loss) -> Samples:
        from neuraldbg.dsl.train.datasets import samples_for

        samples = samples_for(graph, loss, self.options.dataset, seed=self.options.seed)
        print(f"{graph.network.name}: {_size(graph)}", flush=True)
        print(f"data: {samples.told}", flush=True)
        return samples

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


def _shown(path: str) -> str:
    """A file as findings name it: relative to the working directory where it lies below it."""
    here, full = os.getcwd() + os.sep, os.path.abspath(path)
    return full[len(here) :] if full.startswith(here) else os.path.basename(full)


def _print(text: str) -> None:
    print(text, flush=True)


def _size(graph: Graph) -> str:
    shapes = ", ".join(written(each.shape) for each in graph.inputs)
    return f"{shapes} -> {written(graph.shape)}, {graph.parameters:,} parameters, {graph.flops:,} FLOPs a sample"


def prepare(
    path: str,
    options: Options,
    *,
    backend: str | None = None,
    quiet: bool = False,
    written: bool = False,
    searched: bool = False,
) -> Job:
    """Read and check a file; what is to be said about it goes to stderr. Imports no framework; what is only `written`
    as code needs none either. Of choices that are `searched` nothing has been taken yet."""
    wanted = backend_of(backend) if written else need_backend(backend)
    program = parse_file(path)
    if not program.networks:
        raise DslError(f"{path}: holds no network to train")
    graphs, problems = check(program, only=options.network)
    said = [each for each in problems if not (searched and each.kind == "choice")]
    if said and not quiet:
        print(render_all(said, program.source), file=sys.stderr, flush=True)
    return Job(path, program, graphs, problems, options, wanted)
