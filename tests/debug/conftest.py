"""Sessions that write into a folder of their own and are stopped whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from neuraldbg.debug import DebugConfig, DebugSession


@pytest.fixture
def make_session(tmp_path: Path) -> Iterator[Callable[..., DebugSession]]:
    made: list[DebugSession] = []

    def make(**options: Any) -> DebugSession:
        options.setdefault("output_dir", tmp_path / f"run{len(made)}")
        options.setdefault("alert_log", False)
        made.append(DebugSession(DebugConfig(**options)))
        return made[-1]

    yield make
    for session in made:
        session.stop()


@pytest.fixture
def session(make_session: Callable[..., DebugSession]) -> DebugSession:
    return make_session()
