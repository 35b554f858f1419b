"""Tables by identity: the same by C and by Python."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from neuraldbg.capture.identity import Entries, IdentityTable
from neuraldbg.capture.kernels import frameless


class Same:
    """Equal to everything."""

    def __eq__(self, _: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [Entries, IdentityTable])
def test_a_table_knows_an_object_by_what_it_is_and_lets_go_of_it(kind: Any) -> None:
    table, one, other = kind(), Same(), Same()
    table[one] = "value"
    assert (table.get(one), one in table, len(table)) == ("value", True, 1)
    assert (table.get(other), other in table) == (None, False)
    table._entries[id(other)] = table._entries[id(one)]  # as if it had the place of one that is gone
    assert table.get(other) is None
    del table._entries[id(other)]
    table[other] = "old"
    old, table[other] = table._entries[id(other)][0], "new"
    old.__callback__(old)  # of an entry that is no longer there
    assert table.get(other) == "new"
    del one, other
    gc.collect()
    assert len(table) == 0


@pytest.mark.parametrize("kind", [Entries, IdentityTable])
def test_a_table_takes_no_key_that_it_could_not_let_go_of(kind: Any) -> None:
    table = kind()
    with pytest.raises(TypeError, match="weak reference"):
        table[5] = "value"
    with pytest.raises((TypeError, AttributeError)):
        del table[table]
    assert len(table) == 0


@pytest.mark.parametrize("kind", [Entries, IdentityTable])
def test_a_table_tells_the_values_of_many_or_that_one_has_none(kind: Any) -> None:
    table, one, other, third = kind(), Same(), Same(), Same()
    table[one], table[other] = 1, 2
    found = table.pairs([other, one])
    assert [value for value, _ in found] == [2, 1]
    assert found[0][1] is other
    assert table.pairs([one, third]) is None
    assert table.pairs([]) == []
    if kind is IdentityTable and frameless.Identities is not None:
        with pytest.raises(TypeError, match="pairs takes a list"):
            table.pairs((one,))
