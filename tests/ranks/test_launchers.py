"""Which commands of a launcher are ranks, and how those are started instead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from neuraldbg.capture.place import Place, place_of
from neuraldbg.ranks.launchers import Launcher, as_member, is_launcher, script_of

RANK = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "GROUP_RANK": "0"}
RUN = Path("/somewhere/run")


@pytest.mark.parametrize(
    "words",
    [
        ["/usr/bin/python3", "-u", "train.py", "--lr", "0.1"],
        ["python", "-X", "dev", "-m", "package.train", "3"],
        ["python3.11", "train.py"],
    ],
)
def test_a_rank_keeps_its_interpreter_its_options_and_its_words(words: list[str]) -> None:
    told = as_member(words, RANK, RUN)
    assert told is not None
    at = told.index("-c")
    assert told[:at] + told[at + 2 :] == words
    assert str(RUN) in told[at + 1]


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        (["python", "-u", "train.py"], {}),
        (["python", "-c", "print(1)"], RANK),
        (["nvidia-smi"], RANK),
        (["bash", "train.sh"], RANK),
        (["python", "-m", "neuraldbg", "train.py"], RANK),
        (["python"], RANK),
        ([], RANK),
    ],
)
def test_whatever_is_no_rank_is_left_alone(words: list[str], environ: dict[str, str]) -> None:
    assert as_member(words, environ, RUN) is None


def test_the_one_process_of_accelerate_is_watched_too() -> None:
    """`accelerate launch` gives a single process no rank."""
    assert as_member(["python", "train.py"], {"ACCELERATE_MIXED_PRECISION": "no"}, RUN) is not None


def test_launchers_are_told_from_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_launcher("torchrun", module=False)
    assert is_launcher("/opt/env/bin/accelerate", module=False)
    assert is_launcher("torch.distributed.run", module=True)
    assert not is_launcher("train.py", module=False)
    assert not is_launcher("torchrun", module=True)
    (tmp_path / "torchrun").mkdir()
    assert not is_launcher("torchrun", module=False), "a folder of one's own"


def test_a_run_is_named_after_the_script_behind_the_launcher() -> None:
    assert script_of(["--nproc-per-node=2", "train.py", "other.py"]) == "train.py"
    assert script_of(["-m", "package.train"]) is None


def test_a_process_knows_its_place_from_its_environment() -> None:
    assert place_of(RANK) == Place(1, 4, 1, 0)
    assert place_of({**RANK, "TORCHELASTIC_RESTART_COUNT": "2"}) == Place(1, 4, 1, 0, 2)
    assert place_of({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}) == Place(3, 8)
    assert place_of({}) is None
    assert place_of({"RANK": "4", "WORLD_SIZE": "4"}) is None
    assert place_of({"RANK": "one", "WORLD_SIZE": "4"}) is None


def test_a_launcher_tells_how_its_children_ended_and_leaves_nothing(tmp_path: Path) -> None:
    from neuraldbg.trace.rundir import read_launched

    before = subprocess.Popen.__init__
    launcher = Launcher(tmp_path)
    launcher.start()
    try:
        other = subprocess.run([sys.executable, "-c", "print('as ever')"], capture_output=True, text=True, check=True)
        child = subprocess.Popen([sys.executable, "no_such_script.py"], env=RANK, stderr=subprocess.PIPE)
        _, complaint = child.communicate()
    finally:
        launcher.close(exit_code=1, error=None)
    assert other.stdout == "as ever\n"
    assert subprocess.Popen.__init__ is before
    told = read_launched(tmp_path)
    assert told is not None
    assert told["exit_code"] == 1
    assert told["children"] == [[1, child.returncode]]
    assert b"no_such_script.py" in complaint
