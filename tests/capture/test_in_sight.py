"""Whoever keeps something alive is found by name and line, wherever the user's code put it."""

from __future__ import annotations

import importlib.util
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

from torch import nn

from neuraldbg.capture.torch.frames import Frames
from neuraldbg.capture.torch.growing import growing_line
from neuraldbg.capture.torch.in_sight import held_by_the_user
from neuraldbg.script import load_script

HELPERS = """
from torch import nn

seen = []

def note(value):
    seen.append(value)

class Rows:
    def __init__(self):
        self.cache = {}
    def __getitem__(self, at):
        self.cache[at] = at
        return at

class Meter:
    values = []
    def __call__(self, value):
        self.values.append(value)

class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.outputs = []
    def forward(self, x):
        self.outputs += [x]
        return x
"""


@pytest.fixture
def helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "helpers_of_mine.py").write_text(HELPERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("helpers_of_mine")
    del sys.modules["helpers_of_mine"]


class Loader:
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset


def test_what_is_kept_has_a_name_and_a_line_wherever_it_stands(helpers: Any) -> None:
    loader, meter = Loader(helpers.Rows()), helpers.Meter()
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(helpers.Remembers()))
    frames = Frames()
    values = {
        "loader.dataset.cache": loader.dataset.cache,
        "meter.values": meter.values,  # of the class, which all of its objects share
        "model.1.0.outputs": model[1][0].outputs,
        "helpers_of_mine.seen": helpers.seen,  # no variable of this function
    }
    found = {where: (files, what) for files, where, what in held_by_the_user(frames)}
    lines = HELPERS.splitlines()
    for name, filled in (
        ("loader.dataset.cache", "self.cache[at] = at"),
        ("meter.values", "self.values.append"),
        ("model.1.0.outputs", "self.outputs += [x]"),
        ("helpers_of_mine.seen", "seen.append"),
    ):
        files, what = found[name]
        assert what is values[name]
        line = next(at for at, text in enumerate(lines, start=1) if filled in text)
        assert growing_line(frames, files, name) == f"helpers_of_mine.py:{line}"


def test_an_object_that_cannot_be_looked_into_costs_nobody_else() -> None:
    class Hides(nn.Module):
        def named_modules(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("not now")

    hides, history = Hides(), [1.0]
    found = {where: what for _, where, what in held_by_the_user(Frames())}
    assert found["history"] is history
    assert hides is not None


def test_looking_keeps_nothing_alive() -> None:
    class Batch:
        pass

    batch = Batch()
    alive = weakref.ref(batch)
    found = list(held_by_the_user(Frames()))
    assert "batch" in [where for _, where, _ in found]
    del found, batch
    assert alive() is None


def test_a_module_that_loads_itself_when_it_is_asked_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lazy_of_mine.py").write_text("raise RuntimeError('loaded')\n")
    found = importlib.util.spec_from_file_location("lazy_of_mine", tmp_path / "lazy_of_mine.py")
    assert found is not None
    assert found.loader is not None
    found.loader = importlib.util.LazyLoader(found.loader)
    module = importlib.util.module_from_spec(found)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "lazy_of_mine", module)
    found.loader.exec_module(module)
    assert list(held_by_the_user(Frames()))
    with pytest.raises(RuntimeError, match="loaded"):
        _ = module.anything


def test_a_file_that_is_no_python_has_no_lines(tmp_path: Path) -> None:
    (tmp_path / "cell.py").write_text("%matplotlib inline\nhistory.append(1)\n")
    (tmp_path / "train.py").write_text("\nhistory.append(1)\n")
    files = (str(tmp_path / "cell.py"), str(tmp_path / "train.py"))
    assert growing_line(Frames(), files[:1], "history") is None
    assert growing_line(Frames(), files, "history") == "train.py:2"


def test_the_frames_of_our_command_line_are_not_the_users(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\ndef step():\n    sys.seen.extend(f.f_code.co_name for f in sys.frames())\nstep()\n")
    seen: list[str] = []
    sys.seen, sys.frames = seen, Frames().user_frames  # type: ignore[attr-defined]
    main, argv, path = sys.modules["__main__"], list(sys.argv), list(sys.path)
    try:
        assert load_script(str(script), ()).run().exit_code == 0
    finally:
        sys.modules["__main__"], sys.argv[:], sys.path[:] = main, argv, path
        del sys.seen, sys.frames  # type: ignore[attr-defined]
    assert seen[-2:] == ["step", "<module>"]
    assert seen.count("<module>") == 1


def test_a_file_of_the_users_that_is_called_as_a_package_hides_none_of_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    click = ModuleType("click")
    click.__file__ = str(tmp_path / "click.py")
    monkeypatch.setitem(sys.modules, "click", click)
    frames = Frames()
    assert frames.is_user_file(str(tmp_path / "train.py"))
    assert not frames.is_user_file(str(tmp_path / "click.py"))
