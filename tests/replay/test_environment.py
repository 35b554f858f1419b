"""Which files of the user's a recording knows."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from neuraldbg.capture.torch.recording.environment import changed_files, user_files


def imported(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, name, module)


def test_files_below_the_folder_are_known_also_where_links_lead_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, elsewhere, packages = tmp_path / "project", tmp_path / "elsewhere", tmp_path / "project" / "site-packages"
    for folder in (project / "inner", elsewhere, packages):
        folder.mkdir(parents=True)
    for path in (project / "here.py", project / "inner" / "deep.py", elsewhere / "other.py", packages / "library.py"):
        path.write_text("x = 1\n")
    (elsewhere / "linked.py").symlink_to(project / "here.py")
    (tmp_path / "alias").symlink_to(project / "inner")
    paths = (elsewhere / "linked.py", tmp_path / "alias" / "deep.py", elsewhere / "other.py", packages / "library.py")
    for number, path in enumerate(paths):
        imported(path, f"known_file_{number}", monkeypatch)
    found = user_files(project)
    assert {name for name in found if not name.startswith("/")} == {"here.py", "inner/deep.py"}
    assert not any("other.py" in name or "library.py" in name for name in found)
    (project / "here.py").write_text("x = 2\n")
    assert changed_files({"files": {"here.py": found["here.py"]}}, project) == ["here.py"]


def test_a_package_that_was_installed_by_a_link_is_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, packages = tmp_path / "project", tmp_path / "venv" / "site-packages"
    for folder in (project / "mine", packages / "theirs"):
        folder.mkdir(parents=True)
        (folder / "part.py").write_text("x = 1\n")
    (packages / "mine").symlink_to(project / "mine")
    imported(packages / "mine" / "part.py", "linked_part", monkeypatch)
    imported(packages / "theirs" / "part.py", "installed_part", monkeypatch)
    found = user_files(project)
    assert "mine/part.py" in found
    assert not any("theirs" in name for name in found)
