"""neural doctor: what is installed, what works here, and what it means."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import click

from neuraldbg.surfaces.cli.runs import RUNS

OURS = "neural-debugger"
FRAMEWORKS = {
    "torch": "training scripts are watched through PyTorch",
    "tensorflow": "Keras trainings are watched; .neural files run on it",
    "jax": "Keras trainings are watched, pure JAX is not; .neural files run on it",
    "onnx": ".neural files are exported to it and run",
}
PARTS = {
    "numpy": "the trace needs it",
    "rich": "the report needs it",
    "psutil": "memory of the process",
    "msgspec": "faster JSON",
    "pyyaml": "neural_config.yaml and config.yaml",
    "nvidia-ml-py": "state of NVIDIA GPUs",
}
LOWEST_PYTHON = (3, 10)
LITTLE_SPACE_BYTES = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    status: str  # ok, missing, warning
    found: str
    meaning: str


@click.command(short_help="Say what is installed and what works here.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def command(as_json: bool) -> int:
    """Say what is installed, what works here, and what each thing is for. Imports no framework."""
    checks = list(run_checks())
    if as_json:
        click.echo(json.dumps({"checks": [asdict(check) for check in checks]}, indent=1))
        return 0
    from rich.table import Table
    from rich.text import Text

    from neuraldbg.surfaces.terminal.console import make_console

    style = {"ok": "green", "missing": "dim", "warning": "bold yellow"}
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    for _ in range(3):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        table.add_row(Text(check.status, style=style[check.status]), check.name, check.found, check.meaning)
    make_console(sys.stdout).print(table)
    return 0


def run_checks() -> Iterator[Check]:
    yield _python()
    for name, meaning in (FRAMEWORKS | PARTS).items():
        yield _distribution(name, meaning)
    yield _cuda()
    for package in ("neuraldbg", "neural"):
        yield _owner(package)
    yield _terminal()
    cores = os.cpu_count()
    yield Check(
        "cores", "ok" if cores else "warning", str(cores or "unknown"), "one more process reads what a run writes"
    )
    yield _disk()
    yield _statistics()


def _statistics() -> Check:
    try:
        from neuraldbg.capture.kernels import _fused
    except ImportError:
        return Check("statistics", "missing", "torch ops", "no C kernel: install again with a C compiler to be faster")
    return Check("statistics", "ok", f"C kernel, {_fused.INSTRUCTION_SETS[-1]}", "how host tensors are measured")


def _python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < LOWEST_PYTHON:
        return Check("python", "warning", found, "3.10 or newer is needed")
    return Check("python", "ok", found, sys.executable)


def version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _distribution(name: str, meaning: str) -> Check:
    found = version_of(name)
    return Check(name, "ok" if found else "missing", found or "-", meaning)


def _cuda() -> Check:
    """The driver's own answer; torch would take seconds to ask."""
    try:
        import pynvml
    except ImportError:
        return Check("cuda", "missing", "-", "nvidia-ml-py is not installed; CPU training works")
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError):
        return Check("cuda", "missing", "-", "no NVIDIA driver answers; CPU training works")
    try:
        count = pynvml.nvmlDeviceGetCount()
        names = [pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(at)) for at in range(count)]
    except pynvml.NVMLError as error:
        return Check("cuda", "warning", "-", f"the NVIDIA driver answers with an error: {error}")
    finally:
        pynvml.nvmlShutdown()
    texts = [name.decode() if isinstance(name, bytes) else str(name) for name in names]
    return Check("cuda", "ok" if texts else "missing", f"{count} GPU", ", ".join(texts) or "no GPU is visible")


def _owner(package: str) -> Check:
    """Whether another distribution installs a package of our name, and who would win."""
    owners = owners_of(package)
    others = [owner for owner in owners if owner != OURS]
    if not others:
        return Check(
            package, "ok", "ours", "no other distribution has this name" if owners else "source tree, not installed"
        )
    found = ", ".join(others)
    if package == "neuraldbg":
        return Check(package, "warning", found, f"two packages of one name: pip uninstall {others[0]}")
    return Check(package, "warning", found, "our `neural` names are shadowed; use neuraldbg.compat")


def owners_of(package: str, distributions: Callable[[], Iterator[metadata.Distribution]] | None = None) -> list[str]:
    """Every installed distribution that has files in the top-level `package`."""
    found = set()
    for distribution in (distributions or _all_distributions)():
        name = distribution.metadata["Name"]
        listed = (distribution.read_text("top_level.txt") or "").split()
        if package in listed or (not listed and _has_files(distribution, package)):
            found.add(str(name))
    return sorted(found)


def _all_distributions() -> Iterator[metadata.Distribution]:
    return iter(metadata.distributions())


def _has_files(distribution: metadata.Distribution, package: str) -> bool:
    return any(file.parts[:1] in ((package,), (f"{package}.py",)) for file in distribution.files or ())


def _terminal() -> Check:
    name = os.environ.get("TERM") or "none"
    if not sys.stderr.isatty():
        return Check("terminal", "missing", "not a terminal", "no live line; the report is plain text")
    from neuraldbg.surfaces.terminal.live import can_draw

    live = can_draw(sys.stderr.fileno(), os.environ.get("TERM"))
    columns, rows = shutil.get_terminal_size()
    meaning = "the live line works" if live else "too small or too simple for the live line"
    return Check("terminal", "ok" if live else "missing", f"{name} {columns}x{rows}", meaning)


def _disk() -> Check:
    from neuraldbg.surfaces.terminal.figures import size

    place = RUNS if RUNS.is_dir() else Path()
    free = shutil.disk_usage(place).free
    where = f"free for runs in ./{RUNS}"
    if not os.access(place, os.W_OK):
        return Check("disk", "warning", size(free), f"no permission to write in {place.absolute()}: use --out DIR")
    return Check("disk", "ok" if free >= LITTLE_SPACE_BYTES else "warning", size(free), where)
