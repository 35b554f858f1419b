"""An experiment works on a copy: the working directory is the same afterwards, byte for byte."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from neuraldbg.replay import scratch
from neuraldbg.replay.patching import apply_patch
from neuraldbg.replay.scratch import differences, look, scratch_copy

PACKAGE = str(Path(__file__).parents[2])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "data" / "inner").mkdir(parents=True)
    (folder / "neuraldbg_runs").mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "big.bin").write_bytes(b"x" * (scratch.LARGE + 1))
    for number in range(scratch.MANY + 1):
        (folder / "data" / f"{number}.txt").write_text("row\n")
    (folder / "data" / "inner" / "deep.txt").write_text("deep\n")
    return folder


def run_in_copy(project: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a copy of the project, guarded as an arm is."""
    with scratch_copy(project) as copy:
        program = (
            f"import sys; sys.path.append({PACKAGE!r})\n"
            "from neuraldbg.replay.guarding import Guard\n"
            f"guard = Guard({str(project)!r}, {str(copy)!r}, {str(project / 'neuraldbg_runs')!r})\n"
            f"guard.install()\nORIGIN = {str(project)!r}\n{code}\nguard.remove()\n"
        )
        return subprocess.run([sys.executable, "-c", program], cwd=copy, capture_output=True, text=True, check=False)


def test_the_copy_has_the_same_content_and_goes_away(project: Path) -> None:
    with scratch_copy(project) as copy:
        assert (copy / "train.py").read_text() == "print('hello')\n"
        assert (copy / "big.bin").is_symlink()
        assert (copy / "data").is_symlink()
        assert not (copy / "neuraldbg_runs").exists()
    assert not copy.exists()


WAYS = {
    "relative": "open('new.txt', 'w').write('x')",
    "absolute": "open(ORIGIN + '/new.txt', 'w').write('x'); assert open(ORIGIN + '/new.txt').read() == 'x'",
    "over a large file": "open('big.bin', 'wb').write(b'y'); assert open('big.bin', 'rb').read() == b'y'",
    "append to a large file": "open('big.bin', 'ab').write(b'y')",
    "into a linked folder": "open('data/7.txt', 'w').write('x'); open('data/new.txt', 'w').write('x')",
    "deep in a linked folder": "open(ORIGIN + '/data/inner/deep.txt', 'a').write('x')",
    "remove from a linked folder": "import os; os.remove('data/3.txt'); assert not os.path.exists('data/3.txt')",
    "rename in a linked folder": "import os; os.rename('data/3.txt', 'data/z.txt')",
    "make a folder": "import os; os.makedirs(ORIGIN + '/data/made/inner')",
    "pathlib": "from pathlib import Path; Path(ORIGIN, 'data', '4.txt').write_text('x'); Path('train.py').unlink()",
    "chmod": "import os; os.chmod('big.bin', 0o600)",
    "low level": "import os; fd = os.open('data/5.txt', os.O_WRONLY | os.O_TRUNC); os.write(fd, b'x'); os.close(fd)",
    "copied over": "import shutil; shutil.copy('train.py', 'data/6.txt')",
    "a link": "import os; os.symlink('train.py', ORIGIN + '/latest.py'); os.symlink('7.txt', 'data/latest')",
    "a database": "import sqlite3; sqlite3.connect(ORIGIN + '/new.db').execute('create table t (a)')",
    "safetensors": "import numpy as np; from safetensors.numpy import save_file\n"
    "save_file({'a': np.ones(3)}, 'big.bin'); save_file({'a': np.ones(3)}, ORIGIN + '/new.safetensors')",
}


@pytest.mark.parametrize("way", WAYS)
def test_writing_reaches_the_copy_and_never_the_original(project: Path, way: str) -> None:
    before = look(project)
    modes = {path: os.stat(project / path).st_mode for path in before}
    done = run_in_copy(project, WAYS[way])
    assert done.returncode == 0, done.stderr
    assert differences(before, look(project)) == []
    assert {path: os.stat(project / path).st_mode for path in before} == modes


BESIDE = {
    "reads": "assert open('../data/rows.txt').read() == 'rows'; assert open('../../far.txt').read() == 'far'",
    "writes over": "open('../data/rows.txt', 'w').write('x'); assert open('../data/rows.txt').read() == 'x'",
    "appends": "open('../../far.txt', 'a').write('x'); assert open('../../far.txt').read() == 'farx'",
    "adds": "import os; os.makedirs('../data/made', exist_ok=True); open('../data/made/new.txt', 'w').write('x')",
    "removes": "import os; os.remove('../data/rows.txt'); assert not os.path.exists('../data/rows.txt')",
}


@pytest.mark.parametrize("way", BESIDE)
def test_what_lies_beside_the_working_directory_is_found_and_left_alone(tmp_path: Path, way: str) -> None:
    project = tmp_path / "top" / "project"
    project.mkdir(parents=True)
    (tmp_path / "far.txt").write_text("far")
    (tmp_path / "top" / "data").mkdir()
    (tmp_path / "top" / "data" / "rows.txt").write_text("rows")
    before = look(tmp_path)
    done = run_in_copy(project, BESIDE[way])
    assert done.returncode == 0, done.stderr
    assert differences(before, look(tmp_path)) == []


def test_what_a_run_wrote_is_copied_however_large_since_it_is_written_again(project: Path) -> None:
    began = os.stat(project / "big.bin").st_mtime
    with scratch_copy(project, began) as copy:
        assert not (copy / "big.bin").is_symlink()
        assert not (copy / "data").is_symlink()
    with scratch_copy(project, began + 60) as copy:
        assert (copy / "big.bin").is_symlink()
        assert (copy / "data").is_symlink()


def test_a_whole_folder_of_the_original_is_not_deleted(project: Path) -> None:
    before = look(project)
    done = run_in_copy(project, "import shutil; shutil.rmtree('data/inner')")
    assert differences(before, look(project)) == []
    assert done.returncode == 0 or "leaves alone" in done.stderr


PATCH = """--- train.py
+++ train.py
@@ -1,3 +1,3 @@
 one
-two
+2
 three
"""


def test_a_patch_is_applied_where_every_line_stands_as_it_says(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("one\ntwo\nthree\nfour\n")
    assert apply_patch(PATCH, tmp_path)
    assert (tmp_path / "train.py").read_text() == "one\n2\nthree\nfour\n"


@pytest.mark.parametrize("text", ["one\nTWO\nthree\n", "", "two\nthree\n", "one\n"])
def test_a_patch_that_does_not_fit_changes_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text)
    assert not apply_patch(PATCH, tmp_path)
    assert (tmp_path / "train.py").read_text() == text


@pytest.mark.parametrize("patch", ["", "nonsense", PATCH.replace("train.py", "../train.py"), "--- a\n+++ b\n"])
def test_what_is_no_patch_of_this_folder_is_refused(tmp_path: Path, patch: str) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "train.py").write_text("one\ntwo\nthree\n")
    assert not apply_patch(patch, inner)
    assert (tmp_path / "train.py").read_text() == "one\ntwo\nthree\n"


def test_a_run_that_lies_in_the_project_is_ours_and_neither_copied_nor_compared(project: Path) -> None:
    before = look(project)
    (project / "out" / "rank-00000").mkdir(parents=True)
    (project / "out" / "run.json").write_text("{}")
    assert differences(before, look(project)) == []
    with scratch_copy(project) as copy:
        assert not (copy / "out").exists()
