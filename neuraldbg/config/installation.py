"""Which of the packages called `neuraldbg` and `neural` is ours: both names also belong to other projects on PyPI."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from neuraldbg.errors import UsageError

OURS = "neural-debugger"


def version_of(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def own_version() -> str:
    return version_of(OURS) or "unknown"


def refuse_namesake() -> None:
    """Another project's `neuraldbg` writes its files over ours: what then runs is neither."""
    other = version_of("neuraldbg")
    if other is not None:
        raise UsageError(
            f"another project's package neuraldbg {other} is installed over ours ({OURS} {own_version()}); "
            f"pip uninstall neuraldbg, then reinstall {OURS}"
        )


def namesake_notes() -> list[str]:
    """What to tell a user in whose environment `neural` is somebody else's."""
    others = [f"{name} {found}" for name in ("neural-dsl", "neural") if (found := version_of(name)) is not None]
    return [f"`import neural` may be that of {other}; everything in `neuraldbg` works" for other in others]
