"""The original import paths, also where `import neural` gives another project's package.

`from neuraldbg.compat.dashboard.dashboard import update_dashboard_data`, `neuraldbg.compat.profiling`,
`neuraldbg.compat.cloud.cloud_execution`, `neuraldbg.compat.cli`. They are modules of their own: in one program use
these or those of `neural`.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["cli", "cloud", "dashboard", "profiling"]

if not (Path(__file__).parent / "dashboard").is_dir():  # a source tree: an installation has copies of its own here
    __path__.append(str(Path(__file__).resolve().parents[2] / "neural"))


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return import_module(f"{__name__}.{name}")
