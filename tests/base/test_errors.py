"""What we raise: one tree, and names that are nearly right get a hint."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraldbg import errors
from neuraldbg.errors import NeuralDbgError, UnknownLayer, UnknownName, UsageError, nearest

TREE = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, Exception)]


@pytest.mark.parametrize("error", TREE)
def test_every_error_is_one_of_ours_and_stands_in_the_drawing(error: type[Exception]) -> None:
    assert issubclass(error, NeuralDbgError)
    assert error.__name__ in (errors.__doc__ or "")


def test_an_unknown_layer_names_the_nearest_ones() -> None:
    error = UnknownLayer("encoder.0.atn", ["encoder.0.attn", "encoder.1.attn", "head"])
    assert error.name == "encoder.0.atn"
    assert error.nearest[0] == "encoder.0.attn"
    assert str(error).startswith("no layer 'encoder.0.atn' in this run; did you mean 'encoder.0.attn' or ")
    assert isinstance(error, UsageError)


def test_without_anything_near_the_error_says_who_lists_them() -> None:
    assert str(UnknownLayer("zzz", ["head"])) == "no layer 'zzz' in this run; `neural inspect RUN` lists them"
    assert str(UnknownName("kind", "zzz", [], listed_by="the manual")).endswith("the manual lists them")


def test_case_does_not_matter_for_nearness_and_the_known_spelling_is_shown() -> None:
    assert nearest("LINEAR_1", ["conv", "Linear_1"]) == ["Linear_1"]


@given(st.text(max_size=20), st.lists(st.text(max_size=20), max_size=20), st.integers(1, 5))
def test_nearest_answers_with_known_names_only(name: str, known: list[str], count: int) -> None:
    found = nearest(name, known, count)
    assert len(found) <= count
    assert set(found) <= set(known)
    assert len(set(found)) == len(found)


@given(st.lists(st.text("abcdef_.", min_size=1, max_size=12), min_size=1, max_size=8))
def test_a_known_name_is_nearest_to_itself(known: list[str]) -> None:
    assert nearest(known[0], known, 1) == [known[0]]
