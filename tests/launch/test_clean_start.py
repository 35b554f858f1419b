"""A script starts as in a fresh interpreter: nothing of ours is in the way of its imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def _debug(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(source)
    command = [sys.executable, "-m", "neuraldbg", "debug", "--headless", "train.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_no_third_party_module_is_there_before_the_first_line(tmp_path: Path) -> None:
    done = _debug(tmp_path, "import sys, json\nprint(json.dumps(sorted({n.split('.')[0] for n in sys.modules})))\n")
    found = set(json.loads(done.stdout))
    assert found.isdisjoint({"numpy", "click", "rich", "yaml", "msgspec", "psutil", "torch", "fastapi", "neural"})


def test_a_module_of_the_users_own_is_not_shadowed_by_ours(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("whose = 'mine'\n")
    done = _debug(tmp_path, "import click\nprint(click.whose)\n")
    assert (done.returncode, done.stdout) == (0, "mine\n")


def test_environment_set_before_numpy_is_imported_is_seen_by_it(tmp_path: Path) -> None:
    source = (
        "import os, sys\nassert 'numpy' not in sys.modules\nos.environ['OPENBLAS_NUM_THREADS'] = '1'\nimport numpy\n"
    )
    assert _debug(tmp_path, source).returncode == 0


def test_a_script_may_close_its_stdout(tmp_path: Path) -> None:
    done = _debug(tmp_path, "import sys\nprint('last words')\nsys.stdout.close()\n")
    assert (done.returncode, done.stdout) == (0, "last words\n")
    assert "Traceback" not in done.stderr
