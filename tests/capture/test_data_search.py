"""Arrays that a line of the user's has in sight: each once, by its nearest name, wherever it is kept."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from neuraldbg.capture.torch.evidence.data_search import ENTRIES, arrays_in_sight
from neuraldbg.capture.torch.evidence.data_sets import _all_among

SHARED = torch.arange(4.0)
TABLE: dict[Any, Any] = {"x": torch.arange(5.0), 3: np.arange(6), (1, 2): torch.arange(7.0), "empty": None}


class Holder:
    def __init__(self) -> None:
        self.rows, self.size, self.again = torch.arange(8.0), 8, SHARED


def seen_from_inside() -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    own = np.arange(2)
    nested = [1, "text", (torch.arange(3.0), None)]
    held = Holder()
    loader = DataLoader(TensorDataset(torch.arange(9.0)))
    many = [torch.zeros(1)] * (ENTRIES + 1)
    found = list(arrays_in_sight(iter([sys._getframe(), sys._getframe(1)])))
    return found, {"own": own, "nested": nested, "held": held, "loader": loader, "many": many}


def test_each_is_found_once_by_its_nearest_name() -> None:
    outer = torch.arange(10.0)
    found, made = seen_from_inside()
    names = [name for name, _ in found]
    assert len({id(value) for _, value in found}) == len(found)
    inside = ["own", "nested[2][0]", "held.rows", "held.again", "loader.dataset.tensors[0]"]
    assert [name for name in names if name in inside] == inside
    assert {"TABLE['x']", "TABLE[3]", "TABLE[...]"} <= set(names)
    assert "SHARED" not in names  # nearer by another name
    assert names.index("own") < names.index("TABLE['x']") < names.index("outer")
    assert not any(name.startswith("many") for name in names)
    by_name = dict(found)
    assert by_name["own"] is made["own"]
    assert by_name["outer"] is outer


def test_keys_are_among_others_if_all_are() -> None:
    own = np.array([3, 5, 7, 7], np.uint64)
    for keys in ([3], [7, 5], [5, 4], [4, 5], []):
        wanted = np.array(keys, np.uint64)
        assert _all_among(wanted, own) == bool(np.isin(wanted, own).all())
    assert not _all_among(own, own[:0])


def kept(value: Tensor) -> int:
    return sys.getrefcount(value)


def test_nothing_is_held_afterwards() -> None:
    before = kept(SHARED)
    seen_from_inside()
    assert kept(SHARED) == before
