"""States of generators, asked for again only where they have moved, are always what the generators themselves say."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from neuraldbg.capture.torch import generators
from neuraldbg.capture.torch.generators import LastStates
from neuraldbg.capture.torch.passes import RngState

SEEDED = np.random.RandomState(7).get_state()
STEPS: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "random.random": random.random,
    "random.gauss, the first of two": lambda: random.gauss(0, 1),
    "random.gauss, the second": lambda: random.gauss(0, 1),
    "random.seed": lambda: random.seed(3),
    "the same seed": lambda: random.seed(3),
    "random.shuffle": lambda: random.shuffle([1, 2, 3]),
    "random.setstate": lambda: random.setstate(random.Random(5).getstate()),
    "numpy.random.rand": np.random.rand,
    "a normal number": np.random.randn,
    "the other one of two": np.random.randn,
    "numpy.random.seed": lambda: np.random.seed(3),
    "numpy.random.binomial": lambda: np.random.binomial(10, 0.5),
    "numpy.random.permutation": lambda: np.random.permutation(5),
    "numpy.random.set_state": lambda: np.random.set_state(SEEDED),
    "a normal number that waits": lambda: np.random.set_state((*SEEDED[:3], 1, 0.25)),
    "another that waits": lambda: np.random.set_state((*SEEDED[:3], 1, 0.5)),
    "none that waits": lambda: np.random.set_state((*SEEDED[:3], 0, 0.0)),
    "a place among the words": lambda: np.random.set_state((*SEEDED[:2], 5, 0, 0.0)),
    "torch.rand": lambda: torch.rand(3),
}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = RngState.take()
    yield
    before.restore()


def plainly(state: Any) -> list[Any]:
    return [np.asarray(each).tolist() for each in state]


def check(last: LastStates) -> RngState:
    found, own = RngState.take(last), RngState.take()
    assert found.python == own.python
    assert plainly(found.numpy) == plainly(own.numpy)
    assert torch.equal(found.torch_cpu, own.torch_cpu)
    return found


@pytest.mark.parametrize("readable", [True, False])
def test_states_are_those_of_the_generators_whoever_drew(readable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generators, "_readable", lambda: readable)
    last = LastStates()
    for step in STEPS.values():
        step()
        check(last)
    for step in reversed(STEPS.values()):
        step()
        check(last)


def test_they_are_found_where_they_are_looked_for() -> None:
    assert generators._readable()


def test_a_state_that_has_not_moved_is_the_one_of_the_last_time() -> None:
    last = LastStates()
    first, again = check(last), check(last)
    assert again.python is first.python
    assert again.numpy is first.numpy
    random.random()
    other = check(last)
    assert other.python is not first.python
    assert other.numpy is first.numpy
    np.random.rand()
    assert check(last).numpy is not first.numpy
    first.restore()
    assert check(last).python == first.python


def test_a_generator_in_the_place_of_numpys_own_is_asked_itself() -> None:
    last, own = LastStates(), np.random.get_bit_generator()
    check(last)
    try:
        np.random.set_bit_generator(np.random.MT19937(3))
        check(last)
        np.random.rand()
        check(last)
        np.random.set_bit_generator(np.random.PCG64(3))
        with pytest.warns(RuntimeWarning, match="legacy"):
            assert last.numpy()["bit_generator"] == "PCG64"
    finally:
        np.random.set_bit_generator(own)
    check(last)


def test_functions_that_stand_in_for_them_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    last = LastStates()
    check(last)
    monkeypatch.setattr(random, "getstate", lambda: "mine")
    monkeypatch.setattr(np.random, "get_state", np.random.RandomState(9).get_state)
    assert last.python() == "mine"
    assert plainly(last.numpy()) == plainly(np.random.RandomState(9).get_state())
