"""Stacks of ranks, taken from outside by py-spy."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from neuraldbg.analysis.ranks import Process
from neuraldbg.surfaces.stacks import take_stacks

HERE = Process(0, 0, 2, host=socket.gethostname(), pid=os.getpid())


def a_tool(folder: Path, *, says: str = "", complains: str = "", code: int = 0) -> str:
    file = folder / "py-spy"
    file.write_text(f"#!/bin/sh\ncat <<'E'\n{says}\nE\ncat >&2 <<'E'\n{complains}\nE\nexit {code}\n")
    file.chmod(0o755)
    return str(file)


def test_where_the_tool_is_absent_it_is_said_how_to_get_it() -> None:
    told = take_stacks([HERE], 8, find=lambda: None)
    assert (told["step"], told["by"], told["ranks"]) == (8, None, {})
    assert "pip install py-spy" in told["why_not"]


def test_the_main_thread_comes_first_and_workers_last_and_the_viewer_not_at_all(tmp_path: Path) -> None:
    rank, worker, viewer = 4242, 4243, os.getpid()
    frame = {"name": "load", "filename": "data.py", "line": 3}
    threads = [
        {"pid": worker, "thread_name": "MainThread", "frames": [frame]},
        {"pid": viewer, "thread_name": "MainThread", "frames": [frame]},
        {"pid": rank, "thread_name": "writer", "frames": []},
        {"pid": rank, "thread_name": "MainThread", "frames": [frame, frame]},
    ]
    tool = a_tool(tmp_path, says=json.dumps(threads))
    one = Process(1, 1, 2, host=socket.gethostname(), pid=rank)
    seen = take_stacks([one], 8, find=lambda: tool)["ranks"]["1"]["threads"]
    assert [(each["pid"], each["name"]) for each in seen] == [
        (rank, "MainThread"),
        (rank, "writer"),
        (worker, "MainThread"),
    ]
    assert seen[0]["frames"] == ["load (data.py:3)"] * 2


def test_a_rank_that_cannot_be_read_says_why_and_the_others_are_read(tmp_path: Path) -> None:
    denied = a_tool(tmp_path, complains="Error: Permission denied (os error 13)", code=1)
    told = take_stacks([HERE, Process(1, 1, 2, host="another", pid=5)], 8, find=lambda: denied)["ranks"]
    assert "Permission denied" in told["0"]["why_not"]
    assert "SYS_PTRACE" in told["0"]["why_not"]
    assert told["1"]["why_not"] == "it runs on another host"


def test_a_tool_that_says_nonsense_is_no_failure(tmp_path: Path) -> None:
    told = take_stacks([HERE], 8, find=lambda: a_tool(tmp_path, says="hello"))["ranks"]["0"]
    assert told["pid"] == HERE.pid
    assert "why_not" in told
