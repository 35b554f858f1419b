"""A script starts as in a fresh interpreter: nothing of ours is in the way of its imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


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


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.1, 0.2])
def test_ctrl_c_while_the_viewer_is_still_starting_does_not_cost_the_report(tmp_path: Path, delay: float) -> None:
    source = """import time
print("running", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("caught")
"""
    (tmp_path / "train.py").write_text(source)
    command = [sys.executable, "-m", "neuraldbg", "train.py"]
    pipe = subprocess.PIPE
    started = subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    assert started.stdout is not None
    assert started.stdout.readline() == "running\n"
    time.sleep(delay)
    os.killpg(started.pid, signal.SIGINT)
    out, err = started.communicate(timeout=60)
    assert (started.returncode, out) == (0, "caught\n")
    assert "Verdict" in err
    assert "Traceback" not in err
