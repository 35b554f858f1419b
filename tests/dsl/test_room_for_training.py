"""A training that cannot fit into memory is refused with what it needs, before anything is allocated."""

from __future__ import annotations

import numpy as np
import pytest

from neuraldbg.dsl import parse
from neuraldbg.dsl.check import check
from neuraldbg.dsl.graph import Graph
from neuraldbg.dsl.settings import Plan, plan_of
from neuraldbg.dsl.train.loop import Options, train
from neuraldbg.dsl.train.memory import need_memory, of_parameters, of_sample
from neuraldbg.dsl.train.samples import Samples
from neuraldbg.errors import BackendMissing


def network(layers: str, optimizer: str = "Adam(0.01)", input: str = "(4,)") -> tuple[Graph, Plan]:
    graph = check(parse(f"network N {{ input: {input} layers: {layers} loss: mse optimizer: {optimizer} }}"))[0][0]
    return graph, plan_of(graph.network)[0]


@pytest.mark.parametrize(
    ("optimizer", "numbers"),
    [("SGD(0.1)", 2), ("SGD(0.1, momentum=0.9)", 3), ("RMSprop(0.1)", 3), ("Adam(0.1)", 4), ("AdamW(0.1)", 4)],
)
def test_weights_gradients_and_what_the_optimizer_keeps_are_counted(optimizer: str, numbers: int) -> None:
    graph, plan = network("Dense(6)", optimizer)
    assert graph.parameters == 30
    assert of_parameters(graph, plan) == 30 * 4 * numbers


def test_a_sample_leaves_the_outputs_of_its_layers() -> None:
    graph, _ = network("Dense(6) Dense(3)")
    assert of_sample(graph) == 4 * (6 + 3 + 3)


def test_attention_that_drops_weights_keeps_those_of_all_pairs() -> None:
    dropping, _ = network("TransformerEncoder(2, 16, dropout=0.1)", input="(100, 8)")
    keeping, _ = network("TransformerEncoder(2, 16, dropout=0)", input="(100, 8)")
    assert of_sample(dropping) - of_sample(keeping) == 4 * 2 * 100 * 100


def test_parameters_that_do_not_fit_are_refused() -> None:
    graph, plan = network("Dense(100000) Dense(100000)")
    with pytest.raises(BackendMissing, match=r"10,000,600,000 parameters need about 160 GB to train, 64 GB are free"):
        need_memory(graph, plan, 32, 64 * 10**9)


def test_a_batch_that_does_not_fit_is_refused_with_one_that_does() -> None:
    graph, plan = network("Dense(1000) Dense(1000)", "SGD(0.1)")
    free = of_parameters(graph, plan) + 10 * of_sample(graph)
    need_memory(graph, plan, 10, free)
    with pytest.raises(BackendMissing, match=r"a batch of 11 needs more than .* --batch-size 10 may fit"):
        need_memory(graph, plan, 11, free)
    with pytest.raises(BackendMissing, match="not even one sample fits"):
        need_memory(graph, plan, 1, of_parameters(graph, plan))


def test_it_is_asked_before_the_model_is_made() -> None:
    from neuraldbg.dsl.build.torch_model import build

    graph, _ = network("Dense(1000000) Dense(1000000)")
    samples = Samples((), np.zeros(4), "none")
    with pytest.raises(BackendMissing, match="cannot be trained on this machine"):
        train(build(graph), samples, Options(), lambda _: None)
