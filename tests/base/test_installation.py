"""Two other projects use our package names: a clash is refused or noted, never left to chance."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuraldbg.config.installation import namesake_notes, own_version, refuse_namesake
from neuraldbg.errors import UsageError


def _install(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_alone_there_is_nothing_to_say() -> None:
    refuse_namesake()
    assert namesake_notes() == []
    assert own_version() != "unknown"


def test_another_neuraldbg_is_refused_naming_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, "neuraldbg", "1.3.2")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match=r"neuraldbg 1\.3\.2 .*neural-debugger .*pip uninstall neuraldbg"):
        refuse_namesake()


def test_another_neural_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, "neural-dsl", "0.2.9")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert len(namesake_notes()) == 1
    assert "neural-dsl 0.2.9" in namesake_notes()[0]
