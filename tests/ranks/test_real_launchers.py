"""Real launchers: one started by us, and us started by one. Two of them, and scripts that spawn: test_nodes.py and
test_real_pauses.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from forkserver import ForkServer
from ranking import PROGRAMS, free_port, kinds

from neuraldbg import open_trace
from neuraldbg.analysis.summary import summarise

pytestmark = pytest.mark.slow
TWO = ("--nproc-per-node=2", "--master-port")


def test_a_module_that_launches_ends_as_it_would_and_names_who_failed(torch_server: ForkServer, tmp_path: Path) -> None:
    own = ("debug", "--headless", "--out", "run", "-m", "torch.distributed.run", *TWO, str(free_port()))
    result = torch_server.neural(*own, str(PROGRAMS / "ddp.py"), "killed", cwd=tmp_path, timeout=200)
    assert result.code == 1
    assert "ChildFailedError" in result.stderr, "the launcher's own words"
    with open_trace(tmp_path / "run") as trace:
        found = summarise(trace, alive=False).findings[0]
        assert trace.ranks == [0, 1], "the launcher itself trains nothing and has no folder"
        assert trace.run.script == str(PROGRAMS / "ddp.py")
    assert (found["kind"], found["rank"], found["step"]) == ("rank_divergence", 1, 11)
    assert found["evidence"]["signal"] == "SIGKILL"
    assert result.stderr.count("Verdict") == 1


def test_the_debugger_under_torchrun_is_one_run(torch_server: ForkServer, tmp_path: Path) -> None:
    words = ("-m", "torch.distributed.run", *TWO, str(free_port()), "-m", "neuraldbg", "--headless")
    script = tmp_path / "run_it.py"
    script.write_text(
        "import runpy, sys\n"
        f"sys.argv = ['torchrun', *{list(words[2:])!r}, {str(PROGRAMS / 'ddp.py')!r}]\n"
        "runpy.run_module('torch.distributed.run', run_name='__main__')\n"
    )
    result = torch_server.python(script, cwd=tmp_path, timeout=200)
    assert result.code == 0, result.stderr
    assert result.stderr.count("Verdict") == 1
    [run] = (tmp_path / "neuraldbg_runs").iterdir()
    with open_trace(run) as trace:
        assert trace.ranks == [0, 1]
        assert kinds(summarise(trace, alive=False)) == []


def test_ranks_of_accelerate_are_one_run(torch_server: ForkServer, tmp_path: Path) -> None:
    command = str(Path(sys.executable).with_name("accelerate"))
    two = ("--multi_gpu", "--num_processes=2", "--num_machines=1", f"--main_process_port={free_port()}")
    how = ("--mixed_precision=no", "--dynamo_backend=no", str(PROGRAMS / "ddp.py"))
    words = ("debug", "--headless", "--out", "run", command, "launch", *two, *how)
    result = torch_server.neural(*words, cwd=tmp_path, timeout=200)
    assert result.code == 0, result.stderr
    assert "2 of 2 ranks" in result.stderr
    with open_trace(tmp_path / "run") as trace:
        assert trace.ranks == [0, 1]
        assert kinds(summarise(trace, alive=False)) == []
