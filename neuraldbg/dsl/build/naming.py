"""Names of the values of a network in written code: `x` for what is gone with the next line, its layer's otherwise."""

from __future__ import annotations

import keyword

from neuraldbg.dsl.graph import Graph, Step

_RESERVED = ("x", "inputs", "self", "torch", "nn", "f", "keras", "layers", "ops")


class Names:
    """`inputs` are the names of the network's inputs, in order."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._uses: dict[int, list[int]] = {}
        for index, step in enumerate(graph.steps):
            for value in step.inputs:
                self._uses.setdefault(value, []).append(index)
        self._taken: set[str] = set()
        self.inputs = [self._input(each.value) for each in graph.inputs]

    def _input(self, value: int) -> str:
        known = self.graph.values[value]
        alone = len(self.graph.inputs) == 1
        name = ("x" if self._uses.get(value, [0]) == [0] else "inputs") if alone else self.free(known.input or "x")
        self._taken.add(name)
        return name

    def free(self, wanted: str) -> str:
        base = "".join(c if c.isalnum() or c == "_" else "_" for c in wanted.lower())
        base = base if base.isidentifier() and not keyword.iskeyword(base) else f"v_{base}"
        name, number = base, 2
        while name in self._taken or name in _RESERVED:
            name, number = f"{base}_{number}", number + 1
        self._taken.add(name)
        return name

    def target(self, index: int, step: Step) -> str:
        """`x` for what only the next step reads; a name of its own for what is read later."""
        uses = self._uses.get(step.output, [])
        brief = not uses or set(uses) == {index + 1}
        last = step.output == self.graph.output
        return "x" if brief and (not last or index == len(self.graph.steps) - 1) else self.free(step.name)
