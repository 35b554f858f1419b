from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from object_store import Gateway, ObjectStore, gateway, object_store

sys.path.append(str(Path(__file__).parents[1] / "surfaces"))  # `commands`


@pytest.fixture(scope="session")
def s3() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture
def bucket(s3: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix of one's own in the bucket, and the environment that leads to it."""
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NEURALDBG_CACHE_DIR", str(tmp_path / "cache"))
    return f"{s3.url}/{tmp_path.name}"


@pytest.fixture
def gate(s3: ObjectStore, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    with gateway(s3) as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{made.port}")
        yield made
