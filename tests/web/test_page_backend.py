"""Installing: the page is built by npm, and an installation outlives an npm that fails."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "web"))
    sys.modules.pop("page_backend", None)
    import page_backend

    for name, value in {"SOURCES": tmp_path / "web", "STATIC": tmp_path / "static"}.items():
        monkeypatch.setattr(page_backend, name, value)
    monkeypatch.setattr(page_backend, "STAMP", tmp_path / "static" / "built_from.txt")
    monkeypatch.setattr(page_backend, "NOT_BUILT", tmp_path / "static" / "not_built.txt")
    (tmp_path / "web" / "src").mkdir(parents=True)
    (tmp_path / "web" / "src" / "main.ts").write_text("1")
    yield page_backend
    sys.modules.pop("page_backend", None)


def fake_node(folder: Path, version: str, npm: str) -> str:
    folder.mkdir()
    for name, text in (("node", f"#!/bin/sh\necho {version}\n"), ("npm", f"#!/bin/sh\n{npm}\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return str(folder)


def test_without_npm_one_from_pypi_is_asked_for(backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert backend.node_requirement() == [backend.NODE_FROM_PYPI]
    monkeypatch.setenv("PATH", fake_node(tmp_path / "old", "v18.1.0", "exit 0"))
    assert backend.node_requirement() == [backend.NODE_FROM_PYPI]
    monkeypatch.setenv("PATH", fake_node(tmp_path / "new", "v22.12.0", "exit 0"))
    assert backend.node_requirement() == []


def test_an_npm_that_fails_does_not_stop_the_installation_and_is_told(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", fake_node(tmp_path / "bin", "v22.12.0", "echo no such registry; exit 1"))
    monkeypatch.delenv("REQUIRE_NEURALDBG_PAGE", raising=False)
    backend.build_page()
    assert "installed WITHOUT its page" in capsys.readouterr().err
    assert "no such registry" in (tmp_path / "static" / "not_built.txt").read_text()
    assert not backend.is_built()
    monkeypatch.setenv("REQUIRE_NEURALDBG_PAGE", "1")
    with pytest.raises(SystemExit, match="no such registry"):
        backend.build_page()


def test_a_page_that_is_built_is_not_built_again_until_its_sources_change(backend: Any, tmp_path: Path) -> None:
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "index.html").write_text("")
    (tmp_path / "static" / "built_from.txt").write_text(backend.fingerprint())
    assert backend.is_built()
    assert backend.node_requirement() == []
    (tmp_path / "web" / "src" / "main.ts").write_text("2")
    assert not backend.is_built()
