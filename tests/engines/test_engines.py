"""Ray and Spark say what we say, of ten million rows. `make test-engines` runs this, in an environment of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from engines import clusters, made, measured

ROWS = int(os.environ.get("ENGINE_ROWS", "10_000_000"))
ENGINES = ["local", "duckdb", "ray", "spark"]
pytestmark = [pytest.mark.timeout(3000), pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def sessions() -> Iterator[None]:
    with clusters(ENGINES):
        yield


def test_every_engine_gives_the_same_answer(sessions: None, tmp_path: Path, capsys: Any) -> None:
    found = measured(made(tmp_path, ROWS), ENGINES, rounds=1)
    with capsys.disabled():
        print(f"\nat {ROWS:,} rows on {os.cpu_count()} cores: {json.dumps(found)}")
