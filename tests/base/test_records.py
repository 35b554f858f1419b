"""The nouns: frozen, slotted, out of the standard library alone."""

from __future__ import annotations

import ast
import inspect
import sys
from dataclasses import FrozenInstanceError, fields, is_dataclass
from enum import Enum
from pathlib import Path

import pytest

from neuraldbg import records
from neuraldbg.records import Site, SiteKind, TensorStats

CLASSES = [each for _, each in inspect.getmembers(records, inspect.isclass) if each.__module__ == records.__name__]
NOUNS = [each for each in CLASSES if is_dataclass(each)]
KINDS = [each for each in CLASSES if issubclass(each, Enum)]


@pytest.mark.parametrize("noun", NOUNS)
def test_a_noun_is_frozen_and_slotted(noun: type) -> None:
    assert noun.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert "__slots__" in vars(noun)
    assert not hasattr(object.__new__(noun), "__dict__")


def test_a_noun_cannot_be_changed() -> None:
    site = Site(0, "encoder.0", SiteKind.MODULE)
    with pytest.raises(FrozenInstanceError):
        site.path = "other"  # type: ignore[misc]
    assert site == Site(0, "encoder.0", SiteKind.MODULE)


@pytest.mark.parametrize("kind", KINDS)
def test_the_values_of_an_enum_are_its_names_in_small_letters(kind: type[Enum]) -> None:
    assert [member.value for member in kind] == [member.name.lower() for member in kind]


def test_unknown_is_none_and_not_zero() -> None:
    assert TensorStats(0, None, None, None, None, None, 0, 0, 0).zero_ratio is None
    assert TensorStats(4, 0.0, 0.0, 0.0, 0.0, 0.0, 1, 0, 0).zero_ratio == 0.25
    absent = [field.default for field in fields(Site) if field.name in ("op", "shape", "dtype", "source", "flops")]
    assert absent == [None] * 5


def test_records_import_only_the_standard_library() -> None:
    tree = ast.parse(Path(inspect.getfile(records)).read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {name.split(".")[0] for name in imported} <= set(sys.stdlib_module_names)
