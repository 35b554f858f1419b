"""What has to be the same for a recorded step to come out the same: versions, processor, threads, the user's files."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from pathlib import Path
from typing import Any, Final

from neuraldbg.capture.torch.repeatable import WORKSPACE

MOST_FILES: Final = 500
LARGEST_FILE: Final = 2_000_000  # bytes
_TOLD: Final = {  # key -> what it is called
    "torch": "torch",
    "python": "Python",
    "machine": "the kind of processor",
    "capability": "what torch uses of the processor",
    "device": "the GPU",
}

_INSTALLED = f"{os.sep}site-packages{os.sep}"


def environment(folder: Path) -> dict[str, Any]:
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    return {
        "torch": str(torch.__version__),
        "python": ".".join(map(str, sys.version_info[:2])),
        "machine": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "device": device,
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "workspace": os.environ.get(WORKSPACE),
        "files": user_files(folder),
    }


def user_files(folder: Path) -> dict[str, str]:
    """Hashes of the user's Python files that this process has imported or runs: those below a folder by their path in
    it, others beside the script by their whole path."""
    root = os.path.realpath(folder) + os.sep
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    beside = os.path.dirname(os.path.realpath(main)) + os.sep if isinstance(main, str) else root
    found: dict[str, str] = {}
    real: dict[str, str | None] = {}  # folders, which a few thousand modules share; None of what is not the user's
    links: dict[str, bool] = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or len(found) >= MOST_FILES or not file.endswith(".py"):
            continue
        above, _, name = file.rpartition(os.sep)
        if above not in real:
            real[above] = None if _was_installed(file, links) else os.path.realpath(above)
        folder_of_it = real[above]
        if folder_of_it is None:
            continue
        path = os.path.join(folder_of_it, name)
        if os.path.islink(path):
            path = os.path.realpath(path)
        if path.startswith((root, beside)) and _INSTALLED not in path:
            digest = hash_of(path)
            if digest is not None:
                found[path.removeprefix(root)] = digest
    return found


def _was_installed(file: str, links: dict[str, bool]) -> bool:
    """Python's own and what was installed, but for what lies elsewhere in truth, as a package under development does
    (`flit install --symlink`). To ask the system about each module takes 40 ms."""
    above, found, inside = file.partition(_INSTALLED)
    if not found:
        return file.startswith(os.path.dirname(getattr(os, "__file__", None) or os.devnull) + os.sep)
    package = above + found + inside.partition(os.sep)[0]
    if package not in links:
        links[package] = os.path.islink(package)
    return not links[package]


def hash_of(path: str | Path) -> str | None:
    try:
        if os.path.getsize(path) > LARGEST_FILE:
            return None
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
    except OSError:
        return None


def changed_files(recorded: dict[str, Any], folder: Path) -> list[str]:
    """Of the files that were hashed, those that are another now, or gone."""
    return [name for name, digest in recorded.get("files", {}).items() if hash_of(folder / name) != digest]


def _has_a_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def unlike(recorded: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What is different in this process, in words."""
    found = []
    for key, name in _TOLD.items():
        if key == "device" and (recorded.get(key) is None or (now.get(key) is None and _has_a_gpu())):
            continue
        if recorded.get(key) != now.get(key):
            found.append(f"{name} was {recorded.get(key)} and is {now.get(key) or 'not there'}")
    return found
