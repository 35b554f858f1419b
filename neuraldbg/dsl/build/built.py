"""What a builder hands back, whatever it built on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neuraldbg.dsl.build.model_code import class_name
from neuraldbg.dsl.graph import Graph
from neuraldbg.dsl.losses import Loss
from neuraldbg.dsl.settings import Plan


@dataclass(frozen=True)
class Built:
    """A network that can run. `make()` gives a fresh model, `train(model, ...)` trains it as its backend does."""

    graph: Graph
    plan: Plan
    loss: Loss
    namespace: dict[str, Any]

    def make(self) -> Any:
        return self.namespace[class_name(self.graph.network.name)]()

    @property
    def train(self) -> Any:
        return self.namespace["train"]
