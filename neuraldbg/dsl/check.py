"""A network checked before anything runs: shapes, arguments, loss, optimizer and training against their rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from neuraldbg.dsl.graph import Graph, Step
from neuraldbg.dsl.losses import loss_of
from neuraldbg.dsl.lower import Lowering, Stop
from neuraldbg.dsl.model import Called, Network
from neuraldbg.dsl.problems import Problem, Severity, Source, mistakes
from neuraldbg.dsl.program import Program
from neuraldbg.dsl.rules.alone import wrong_arguments
from neuraldbg.dsl.settings import check_settings
from neuraldbg.errors import DslError, ShapeMismatch


def examine(network: Network) -> tuple[Graph | None, list[Problem]]:
    """The graph, or None where a layer breaks, and everything there is to say."""
    low = Lowering(network)
    try:
        low.begin()
        low.walk(network.layers)
        low.join(network.line, 1)
    except Stop:
        return None, [*low.problems, *_behind(network, low.problems[-1].layer), *check_settings(network)]
    graph = low.graph()
    last = graph.steps[_last_that_computes(graph)].activation if graph.steps else None
    problems = [*graph.problems, *check_settings(network, loss_of(network, last).name), *_chosen(network)]
    graph = _without_last_softmax(graph, problems)
    graph = replace(graph, penalties=_penalties(graph.steps))
    return graph, problems


def _behind(network: Network, broken: str | None) -> list[Problem]:
    """Of the layers behind the one that breaks nothing has a shape; what is wrong in itself is told all the same."""
    found, reached = [], False
    for layer in network.each_layer():
        for said in wrong_arguments(layer) if reached else ():
            text = f"{layer.name}: {said}"
            found.append(Problem(Severity.ERROR, layer.line, layer.column, text, "value", layer.name))
        reached = reached or layer.name == broken
    return found


def check(program: Program, *, only: str | None = None) -> tuple[list[Graph], list[Problem]]:
    """Every network of the file as a graph. Raises `ShapeMismatch` or `DslError` where one cannot be built."""
    graphs: list[Graph] = []
    problems: list[Problem] = list(program.problems)
    networks = program.networks if only is None else [program.network(only)]
    for network in networks:
        graph, said = examine(network)
        problems += said
        if graph is not None:
            graphs.append(graph)
    refuse(problems, program.source)
    return graphs, sorted(dict.fromkeys(problems), key=lambda each: (each.line, each.column))


def refuse(problems: Iterable[Problem], source: Source) -> None:
    wrong = [problem for problem in problems if problem.severity.fatal]
    if wrong:
        shapes = all(problem.kind == "shape" for problem in wrong)
        raise mistakes(wrong, source, ShapeMismatch if shapes else DslError)


def _chosen(network: Network) -> list[Problem]:
    """What was taken where the file leaves a choice to a search."""
    return [
        Problem(
            Severity.INFO,
            choice.line,
            choice.column,
            f"{choice.path} is left to a search; without one its first choice is taken: {choice.taken}",
            "choice",
        )
        for choice in network.choices
    ]


def _without_last_softmax(graph: Graph, problems: list[Problem]) -> Graph:
    """A softmax before a cross-entropy goes: the loss computes its own. A sigmoid is computed inside the loss."""
    if not graph.steps:
        return graph
    place = _last_that_computes(graph)
    last = graph.steps[place]
    loss = loss_of(graph.network, last.activation)
    if graph.steps[-1].output != graph.output or loss is None:
        return graph
    steps = (*graph.steps[:place], replace(last, activation=None), *graph.steps[place + 1 :])
    if loss.cross_entropy and last.activation in ("softmax", "log_softmax"):
        name = graph.network.loss.name if graph.network.loss is not None and not loss.assumed else loss.name
        why = (
            f"{last.layer.name}: {last.activation} before {name} is left out: "
            "the loss applies its own, and twice flattens the gradient"
        )
        problems.append(
            Problem(Severity.INFO, last.line, last.layer.column, why, "softmax_before_cross_entropy", last.layer.name)
        )
        return replace(graph, steps=steps, dropped_softmax=last.layer)
    if loss.kind == "binary" and last.activation == "sigmoid":
        return replace(graph, steps=steps, fused_sigmoid=last.layer)
    return graph


def _last_that_computes(graph: Graph) -> int:
    """The last step, or the one before it where that only gives time back its place (TimeDistributed)."""
    steps = graph.steps
    before = len(steps) > 1 and steps[-1].op == "unfold_time" and steps[-1].inputs == (steps[-2].output,)
    return len(steps) - 2 if before else len(steps) - 1


def _penalties(steps: tuple[Step, ...]) -> tuple[tuple[str, float, float], ...]:
    """Regularizers of weights, by step."""
    found = []
    for step in steps:
        given = step.layer.params.get("kernel_regularizer")
        if step.op not in ("dense", "conv", "conv_transpose") or step.implied or given is None:
            continue
        name = given.name.lower() if isinstance(given, Called) else str(given).lower()
        amounts = [v for v in given.positional if isinstance(v, int | float)] if isinstance(given, Called) else []
        first = amounts[0] if amounts else 0.01
        if isinstance(given, Called):
            first = next((v for v in given.named.values() if isinstance(v, int | float)), first)
        both = name in ("l1l2", "l1_l2")
        second = amounts[1] if both and len(amounts) > 1 else first
        l1, l2 = (first if both or name == "l1" else 0.0), (second if both or name == "l2" else 0.0)
        if l1 or l2:
            found.append((step.name, float(l1), float(l2)))
    return tuple(found)
