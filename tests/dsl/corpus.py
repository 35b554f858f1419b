"""The `.neural` files under tests/programs/dsl, and one training step of a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from neuraldbg.dsl.build.built import Built
from neuraldbg.dsl.build.torch_model import build
from neuraldbg.dsl.graph import Graph
from neuraldbg.dsl.train.synthetic import synthesize

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "tests" / "programs" / "dsl").iterdir())


def batch_for(graph: Graph, built: Built, *, count: int = 4) -> list[Any]:
    samples = synthesize(graph, built.loss, count=count)
    return [torch.as_tensor(array) for array in (*samples.inputs, samples.targets)]


def train_one_step(graph: Graph, name: str = "<text>") -> tuple[Any, dict[str, float]]:
    """A fresh model after one update, and what the epoch told."""
    torch.manual_seed(0)
    built = build(graph, name)
    model = built.make()
    told: list[dict[str, float]] = []
    built.train(model, [batch_for(graph, built)], epochs=1, report=told.append)
    return model, told[0]
