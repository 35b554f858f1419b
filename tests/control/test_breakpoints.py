"""The breakpoints of a run: names, phases, groups, and what makes no sense."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import pytest

from neuraldbg.control.breakpoints import Breakpoints, split_break
from neuraldbg.errors import ConditionError, UnknownBreakpoint, UsageError
from neuraldbg.records import Phase

LAYERS = {1: "encoder.0", 2: "encoder.1", 3: "head"}


def resolve(pattern: str) -> dict[int, str]:
    return {site: name for site, name in LAYERS.items() if fnmatchcase(name, pattern)}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("head", ("head", None, None)),
        ("head backward", ("head", "backward", None)),
        ("head if step > 1", ("head", None, "step > 1")),
        ("encoder.* step if loss > 1", ("encoder.*", "step", "loss > 1")),
        ("backward", ("backward", None, None)),
    ],
)
def test_a_breakpoint_as_it_is_typed(text: str, parts: tuple[str, str | None, str | None]) -> None:
    assert split_break(text) == parts


def test_a_condition_that_is_missing_is_missed() -> None:
    with pytest.raises(UsageError, match="lacks its condition"):
        split_break("head if")


def test_they_are_listed_in_lines() -> None:
    table = Breakpoints()
    table.add("head", "loss > 1")
    assert repr(table) == "  1 on  head step if loss > 1  hits 0  [no such layer yet]"
    assert [one.id for one in table] == [1]
    assert len(table) == 1


def test_names_are_taken_as_they_are_until_layers_are_known() -> None:
    table = Breakpoints()
    one = table.add("haed")
    assert one.pending
    table.resolve = resolve
    table.settle()
    assert table.lost() == [one]
    assert one.pending
    with pytest.raises(UnknownBreakpoint):
        table.add("haed")


def test_a_breakpoint_can_wait_for_a_layer_that_comes_later() -> None:
    told: list[int] = []
    table = Breakpoints(changed=lambda: told.append(1))
    names = {"head": 1}
    table.resolve = lambda name: {names[name]: name} if name in names else {}
    one = table.add("critic", pending=True)
    assert (one.pending, len(told)) == (True, 1)
    table.settle()
    assert len(told) == 1  # nothing is other than before
    names["critic"] = 2
    table.settle()
    assert (one.pending, one.layers, len(told)) == (False, ("critic",), 2)
    assert table.at(2) == (one,)


def test_a_breakpoint_goes_by_every_name_of_its_layer() -> None:
    table = Breakpoints()
    table.resolve = lambda name: {1: "conv2"} if name in ("conv2", "Conv2D_2") else {}
    one = table.add("conv2")
    with pytest.raises(UnknownBreakpoint):
        table.remove("conv1")
    assert table.remove("Conv2D_2") == [one]


def test_the_same_breakpoint_again_is_the_same() -> None:
    table = Breakpoints()
    first = table.add("head", "step > 1")
    assert table.add("head", "step > 1", enabled=False) is first
    assert not first.spec.enabled
    assert table.add("head") is not first


@pytest.mark.parametrize(
    ("condition", "phase"),
    [
        ("step > 1", Phase.FORWARD),
        ("mean_activation > 1", Phase.FORWARD),
        ("grad_norm > 1", Phase.BACKWARD),
        ("loss > 1", Phase.UPDATE),
        ("loss > 1 and grad_norm > 1", Phase.BACKWARD),
        ("lr > 1", Phase.UPDATE),
    ],
)
def test_a_condition_stops_where_all_it_names_is_known(condition: str, phase: Phase) -> None:
    assert Breakpoints().add("head", condition).spec.phase is phase


def test_groups_are_switched_together() -> None:
    table = Breakpoints()
    for name in ("a", "b"):
        table.add(name, group="mine")
    table.add("c")
    table.set_group("mine", enabled=False)
    assert [one.spec.enabled for one in table.all()] == [False, False, True]
    with pytest.raises(UnknownBreakpoint, match="did you mean 'mine'"):
        table.set_group("mien", enabled=True)


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (lambda t: t.add(""), UsageError),
        (lambda t: t.add("a", "import os"), ConditionError),
        (lambda t: t.add("a", phase="sideways"), UsageError),
        (lambda t: t.add("a", "grad_norm > 1", phase="forward"), UsageError),
        (lambda t: t.add("a", "lr > 1 and grad_norm > 1"), UsageError),
        (lambda t: t.add("a", "mean_activation > 1", phase="step"), UsageError),
        (lambda t: t.remove("nothing"), UnknownBreakpoint),
        (lambda t: t.change(99, enabled=True), UnknownBreakpoint),
    ],
)
def test_what_makes_no_sense_is_refused(action: Callable[[Breakpoints], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        action(Breakpoints())
