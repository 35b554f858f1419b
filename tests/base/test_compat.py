"""Where another project's `neural` is installed, the original names are under `neuraldbg.compat`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from house import modules

ROOT = Path(__file__).parents[2]
ASKED = """
import neural
assert neural.__file__.startswith({theirs!r}), neural.__file__
from neuraldbg.compat.dashboard.dashboard import update_dashboard_data, breakpoint_manager, anomaly_detector, profiler
from neuraldbg.compat.dashboard import update_profiling_data
from neuraldbg.compat.dashboard.hooks import register_hook
from neuraldbg.compat.profiling import ProfilerManager
from neuraldbg.compat.cloud.cloud_execution import CloudExecutor
from neuraldbg.compat.cli import cli, main
assert "debug" in cli.list_commands(None)
from neuraldbg import compat
manager = compat.profiling.ProfilerManager()
with manager.profile_layer("Conv2D_1"):
    pass
assert manager.get_comprehensive_report()["layer_profiling"]["layer_stats"]["Conv2D_1"]["call_count"] == 1
assert not breakpoint_manager.should_break("Dense_1", {{}})
import sys
ours = [name for name, each in sys.modules.items() if name.startswith("neural.") and name != "neural.theirs"]
assert ours == [], ours
"""


def a_foreign_neural(folder: Path) -> Path:
    (folder / "neural").mkdir(parents=True)
    (folder / "neural" / "__init__.py").write_text("who = 'somebody else'\n")
    return folder


def asked(theirs: Path, *places: Path) -> None:
    search = os.pathsep.join(map(str, (theirs, *places)))
    words = [sys.executable, "-c", ASKED.format(theirs=str(theirs))]
    done = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": search}, cwd=theirs, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_original_name_is_there_beside_a_foreign_neural(tmp_path: Path) -> None:
    asked(a_foreign_neural(tmp_path / "theirs"), ROOT)


def test_an_installation_has_copies_that_nobody_writes_over(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT, tmp_path / "source", ignore=shutil.ignore_patterns("web", ".git", "tests", "*.so", "benchmarks")
    )
    words = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path / "installed")]
    subprocess.run(words, cwd=tmp_path / "source", check=True, capture_output=True)
    shutil.rmtree(tmp_path / "installed" / "neural")
    shutil.rmtree(tmp_path / "source")
    asked(a_foreign_neural(tmp_path / "theirs"), tmp_path / "installed")


def test_the_facade_imports_itself_only_by_where_it_stands() -> None:
    """By another name it could not find itself."""
    import ast

    wrong = [
        f"{module.place}:{node.lineno}"
        for module in modules().values()
        if module.name.startswith("neural.")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] == "neural"
        if module.name != "neural.dashboard.dashboard"  # run as a file it is in no package yet
    ]
    assert wrong == []


def test_an_unknown_name_is_said() -> None:
    from neuraldbg import compat

    with pytest.raises(AttributeError, match="dashbord"):
        compat.dashbord  # noqa: B018
