"""Parameters copied while their gradients are measured: the same statistics as apart, and copies to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quick_layers import nothing_was_compiled, seen_by_c  # noqa: F401
from torch import Tensor, nn
from watching import watching

from neuraldbg.capture.kernels import host
from neuraldbg.capture.torch.earlier import EarlierValues
from neuraldbg.records import Kind
from neuraldbg.trace.tables import KIND_CODE, STATS

pytestmark = seen_by_c
LARGE = 32_768  # elements of 4 bytes from which on both are done at once
SIZES = (1, 63, LARGE - 1, LARGE, LARGE + 1, LARGE + 4_097, 3 * LARGE + 77)
ODD = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e-42, 3e38)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with watching(Path(tmp_path_factory.mktemp("beside"))) as capture:
        yield capture.passes.quick


def rows_of(quick: Any) -> list[dict[str, Any]]:
    stats = np.frombuffer(quick.c.drain()[0], STATS)
    return [dict(zip(STATS.names, row, strict=True)) for row in stats.tolist()]


def planned(parameters: list[Tensor]) -> tuple[EarlierValues, list[Any], list[Tensor | None]]:
    earlier = EarlierValues(under_budget=False)
    earlier.prepare(parameters, 4)
    return (earlier, *earlier.planned(parameters))


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=3),
    odd=st.lists(st.tuples(st.sampled_from(ODD), st.integers(0, 10**6)), max_size=4),
    seed=st.integers(0, 2**16),
    double=st.booleans(),
)
def test_both_at_once_give_what_each_gives_apart(
    quick: Any, sizes: list[int], odd: list[tuple[float, int]], seed: int, *, double: bool
) -> None:
    chance = torch.Generator().manual_seed(seed)
    kind = torch.float64 if double else torch.float32
    parameters: list[Tensor] = [nn.Parameter(torch.randn(size, generator=chance, dtype=kind)) for size in sizes]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=chance, dtype=kind) + 3
        for value, at in odd:
            parameter.grad[at % parameter.numel()] = value
            parameter.data[at % parameter.numel()] = value
    _, plan, copies = planned(parameters)
    quick.c.drain()
    _, left, kept = quick.gradients(list(enumerate(parameters)), plan)
    assert kept
    assert not left
    for parameter, copy in zip(parameters, copies, strict=True):
        assert copy is not None
        bits = torch.int64 if double else torch.int32
        assert torch.equal(copy.view(bits), parameter.detach().view(bits))
    found = rows_of(quick)
    assert [row["site"] for row in found] == list(range(len(parameters)))
    for row, parameter in zip(found, parameters, strict=True):
        assert parameter.grad is not None
        expected = host.measured(parameter.grad)
        assert expected is not None
        values = [row[name] for name in STATS.names[7 : 7 + len(expected)]]
        assert row["kind"] == KIND_CODE[Kind.GRADIENT]
        assert values == pytest.approx(list(expected), rel=1e-12, nan_ok=True)


def test_where_a_gradient_is_missing_its_parameter_is_copied_all_the_same(quick: Any) -> None:
    parameters: list[Tensor] = [nn.Parameter(torch.randn(LARGE)), nn.Parameter(torch.randn(LARGE))]
    parameters[0].grad = torch.ones(LARGE)
    _, plan, copies = planned(parameters)
    _, left, kept = quick.gradients(list(enumerate(parameters)), plan)
    assert kept
    assert not left
    assert all(copy is not None and torch.equal(copy, p) for copy, p in zip(copies, parameters, strict=True))


def elsewhere(parameter: Any) -> None:
    parameter.data = parameter.data.clone()


def turned(parameter: Any) -> None:
    parameter.data = torch.empty_strided((4, LARGE), (1, 4)).copy_(parameter.data.reshape(4, LARGE))
    parameter.grad = None


@pytest.mark.parametrize("changed", [elsewhere, turned])
def test_a_parameter_that_lies_otherwise_now_is_not_copied_by_the_plan(quick: Any, changed: Any) -> None:
    parameters: list[Tensor] = [nn.Parameter(torch.randn(4, LARGE)) for _ in range(3)]
    for parameter in parameters:
        parameter.grad = torch.ones(4, LARGE)
    _, plan, _ = planned(parameters)
    changed(parameters[1])
    quick.c.drain()
    _, left, kept = quick.gradients(list(enumerate(parameters)), plan)
    assert not kept
    assert not left
    assert len(rows_of(quick)) == sum(parameter.grad is not None for parameter in parameters)


def test_without_a_plan_nothing_is_copied(quick: Any) -> None:
    parameter = nn.Parameter(torch.randn(LARGE))
    parameter.grad = torch.ones(LARGE)
    assert quick.gradients([(0, parameter)], [])[2] is False
