"""How ranks that somebody else launched find one run directory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from neuraldbg.capture.attachment import Plan
from neuraldbg.ranks.meeting import Note, find_run, launch_key
from neuraldbg.ranks.orders import Orders, read_orders

LAUNCH = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "a"}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "neuraldbg_runs" / "20260101-train"
    folder.mkdir(parents=True)
    Orders(Plan(str(folder)), key=launch_key(LAUNCH)).write(folder)
    return folder


def test_the_others_find_the_run_of_the_first(run: Path) -> None:
    note = Note(run, LAUNCH)
    assert find_run(LAUNCH, None, patience_s=0) == run
    note.close()
    assert find_run(LAUNCH, None, patience_s=0) is None
    assert [each.name for each in run.parent.iterdir()] == [run.name], "nothing is left beside the run"


def test_another_launch_is_not_joined(run: Path) -> None:
    Note(run, LAUNCH)
    assert find_run({**LAUNCH, "MASTER_PORT": "29501"}, None, patience_s=0) is None


def test_a_note_that_a_killed_launch_has_left_is_not_believed(run: Path) -> None:
    """Ports and ids are used again; the process that launches is another one."""
    Note(run, LAUNCH)
    [file] = run.parent.glob(".launch-*")
    told = json.loads(file.read_text())
    file.write_text(json.dumps({**told, "agent": os.getppid() + 1}))
    assert find_run(LAUNCH, None, patience_s=0) is None


def test_a_note_of_another_node_is_believed_while_it_is_fresh(run: Path) -> None:
    Note(run, LAUNCH)
    [file] = run.parent.glob(".launch-*")
    told = json.loads(file.read_text())
    file.write_text(json.dumps({**told, "host": "another", "agent": 1}))
    assert find_run(LAUNCH, None, patience_s=0) == run
    file.write_text(json.dumps({**told, "host": "another", "time": told["time"] - 3600}))
    assert find_run(LAUNCH, None, patience_s=0) is None


def test_a_directory_that_was_named_is_taken_once_its_orders_are_there(run: Path, tmp_path: Path) -> None:
    assert find_run(LAUNCH, run, patience_s=0) == run
    assert find_run(LAUNCH, tmp_path, patience_s=0) is None


def test_orders_come_back_as_they_were_given(run: Path) -> None:
    orders = Orders(
        Plan(str(run), budget=0.02, layers=("fc*",)), key="k", breakpoints=("fc1 if loss > 3",), step=True, served=True
    )
    orders.write(run)
    assert read_orders(run) == orders
    assert orders.may_pause
    assert not Orders(Plan(str(run)), served=False).may_pause, "nobody could answer"
