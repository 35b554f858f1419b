"""findings.jsonl: appended by one analysing process at a time, later lines win."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from neuraldbg.trace.findings import analysis_lock, read_findings, write_findings


def one(kind: str, **more: object) -> dict[str, object]:
    return {"id": f"{kind}::0", "kind": kind, **more}


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    assert write_findings(tmp_path, [one("a"), one("b")])
    assert [entry["kind"] for entry in read_findings(tmp_path)] == ["a", "b"]


def test_the_same_findings_are_not_written_twice(tmp_path: Path) -> None:
    write_findings(tmp_path, [one("a")])
    size = (tmp_path / "findings.jsonl").stat().st_size
    write_findings(tmp_path, [one("a")])
    assert (tmp_path / "findings.jsonl").stat().st_size == size


def test_a_later_line_replaces_and_what_is_gone_is_withdrawn(tmp_path: Path) -> None:
    write_findings(tmp_path, [one("a", step=1), one("b")])
    write_findings(tmp_path, [one("a", step=2)])
    found = {entry["id"]: entry for entry in read_findings(tmp_path)}
    assert found["a::0"]["step"] == 2
    assert found["b::0"] == {"id": "b::0", "withdrawn": True}
    assert len((tmp_path / "findings.jsonl").read_text().splitlines()) == 4


def test_a_torn_last_line_is_no_finding(tmp_path: Path) -> None:
    (tmp_path / "findings.jsonl").write_text(json.dumps(one("a")) + '\n{"id": "b", "ki')
    assert [entry["kind"] for entry in read_findings(tmp_path)] == ["a"]


def test_only_one_process_analyses_a_run(tmp_path: Path) -> None:
    with analysis_lock(tmp_path) as mine:
        assert mine
        child = os.fork()
        if child == 0:
            os._exit(0 if not write_findings(tmp_path, [one("b")]) else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert write_findings(tmp_path, [one("b")])


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert not write_findings(gone, [one("a")])
    assert read_findings(gone) == []


@pytest.mark.parametrize("text", ["", "\n\n", "[]\n3\n", "not json\n"])
def test_odd_files_hold_no_findings(tmp_path: Path, text: str) -> None:
    (tmp_path / "findings.jsonl").write_text(text)
    assert read_findings(tmp_path) == []
