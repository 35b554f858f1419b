"""Plug-in tables: one name, one item; a session's copy stands still; installed packages take part."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from neuraldbg import registry
from neuraldbg.errors import AlreadyRegistered
from neuraldbg.registry import Registry


def offer(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    installed = EntryPoints(points)
    monkeypatch.setattr(registry, "entry_points", lambda **wanted: installed.select(**wanted))


def test_the_decorator_keeps_the_item_and_hands_it_back() -> None:
    detectors: Registry[object] = Registry("detector")
    item = object()
    assert detectors.register("nan")(item) is item
    assert detectors.copy() == {"nan": item}
    assert list(detectors) == ["nan"]
    assert len(detectors) == 1


def test_the_same_name_twice_is_an_error_that_names_both() -> None:
    detectors: Registry[str] = Registry("detector")
    detectors.register("nan")("first")
    with pytest.raises(AlreadyRegistered, match="two detectors are called 'nan': first and second"):
        detectors.register("nan")("second")
    assert detectors.copy() == {"nan": "first"}


def test_a_copy_does_not_see_later_registrations_and_changes_nothing() -> None:
    detectors: Registry[str] = Registry("detector")
    detectors.register("early")("kept")
    copy = detectors.copy()
    detectors.register("late")("missed")
    copy["early"] = "changed"
    assert "late" not in copy
    assert detectors.copy()["early"] == "kept"


def test_two_registries_share_nothing() -> None:
    Registry[str]("detector").register("nan")("item")
    assert len(Registry[str]("detector")) == 0


def test_installed_packages_add_their_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(
        monkeypatch,
        EntryPoint("join", "os.path:join", "neuraldbg.detector"),
        EntryPoint("other", "os.path:split", "neuraldbg.surface"),
    )
    detectors: Registry[object] = Registry("detector")
    detectors.register("own")("item")
    assert set(detectors.load_entry_points()) == {"own", "join"}
    assert list(detectors) == ["own"]


def test_an_entry_point_of_a_taken_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, EntryPoint("nan", "os.path:join", "neuraldbg.detector"))
    detectors: Registry[object] = Registry("detector")
    detectors.register("nan")("item")
    with pytest.raises(AlreadyRegistered, match=r"two detectors are called 'nan': item and os\.path:join"):
        detectors.load_entry_points()
