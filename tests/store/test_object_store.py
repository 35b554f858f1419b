"""Runs on an object store: written, read, reported and compared over the S3 API, with a cache that stays small."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import AS_SCRIPT, environment, neural, refused
from made_runs import made_run, train, two_runs
from object_store import Gateway
from recorded import rows_and_facts

from neuraldbg.store.cache import RunCache
from neuraldbg.store.choosing import choose
from neuraldbg.store.exporting import export_run
from neuraldbg.store.importing import import_run
from neuraldbg.store.manifest import open_dataset
from neuraldbg.store.places import open_place, url_in
from neuraldbg.trace import TraceWriter
from neuraldbg.trace.tables import TABLES


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return two_runs(tmp_path)


@pytest.mark.parametrize("url", ["s3://bucket/a/b", "gs://bucket/a", "file:///tmp/a", "abfs://c@account/a"])
def test_a_url_survives_being_taken_for_a_path(url: str) -> None:
    assert url_in(url) == url
    assert url_in(Path(url)) == url
    assert url_in(Path("neuraldbg_runs/a")) is None
    assert url_in(Path("/tmp/a:/b")) is None
    assert url_in("C:/runs") is None


def test_a_run_goes_there_and_comes_back(place: Path, bucket: str) -> None:
    run = place / "neuraldbg_runs" / "broken"
    export_run(run, open_place(f"{bucket}/broken"))
    back = import_run(open_dataset(open_place(f"{bucket}/broken")), place / "back")
    assert rows_and_facts(back) == rows_and_facts(run)


def test_report_inspect_and_compare_read_it_there(place: Path, bucket: str) -> None:
    for name in ("good", "broken"):
        assert neural("export", name, f"{bucket}/{name}", "--format", "parquet", cwd=place).returncode == 0
    here = [
        ("report", "broken", "--json"),
        ("inspect", "broken", "--json"),
        ("inspect", "broken", "fc", "--json"),
        ("compare", "good", "broken", "--json"),
    ]
    for words in here:
        there = [f"{bucket}/{word}" if word in ("good", "broken") else word for word in words]
        one, other = neural(*words, cwd=place), neural(*there, cwd=place)
        assert other.returncode == 0, other.stderr
        assert json.loads(other.stdout) == json.loads(one.stdout)
    folder = neural("export", "good", "beside", "--format", "parquet", cwd=place)
    assert folder.returncode == 0
    report = json.loads(neural("report", "beside", "--json", cwd=place).stdout)
    assert report == json.loads(neural("report", "good", "--json", cwd=place).stdout)


def test_view_serves_it_from_there(place: Path, bucket: str) -> None:
    export_run(place / "neuraldbg_runs" / "good", open_place(f"{bucket}/good"))
    words = [sys.executable, "-c", AS_SCRIPT, "view", f"{bucket}/good", "--port", "0"]
    process = subprocess.Popen(words, cwd=place, env=environment(), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        address = re.search(r"http://\S+", process.stderr.readline())
        assert address is not None
        url = f"{address[0].rstrip('/')}/api/run"
        answer = json.loads(subprocess.run(["curl", "-sS", url], capture_output=True, check=True).stdout)
        assert answer["name"] == "good"
        assert answer["last_step"] == 49
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
        process.stderr.close()


def test_what_is_wrong_is_said_in_one_line(place: Path, bucket: str) -> None:
    wrong = {"AWS_SECRET_ACCESS_KEY": "wrong"}
    for words in (("export", "good", f"{bucket}/x", "--format", "parquet"), ("report", f"{bucket}/x")):
        assert "not allowed; check the credentials" in refused(neural(*words, cwd=place, **wrong))
    line = refused(neural("export", "good", "s3://nowhere/x", "--format", "parquet", cwd=place))
    assert "there is no bucket 'nowhere'" in line
    assert "holds no dataset.json" in refused(neural("report", f"{bucket}/none", cwd=place))
    away = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    assert "connect" in refused(neural("report", f"{bucket}/x", cwd=place, **away)).lower()
    assert "no passwords in a URL" in refused(neural("report", "s3://me:secret@runs/x", cwd=place))


def test_a_second_look_asks_only_for_what_is_new(place: Path, bucket: str, gate: Gateway) -> None:
    export_run(place / "neuraldbg_runs" / "good", open_place(f"{bucket}/good"))
    cache = RunCache(place / "cache", 10**9)
    before = gate.bytes_back
    first = cache.fetch(f"{bucket}/good")
    whole = gate.bytes_back - before
    assert first.ended
    again = cache.fetch(f"{bucket}/good")
    assert gate.bytes_back - before - whole < whole / 3
    assert rows_and_facts(again.path) == rows_and_facts(place / "neuraldbg_runs" / "good")


def test_a_run_that_replaces_another_is_fetched_anew(place: Path) -> None:
    cache = RunCache(place / "cache", 10**9)
    for name in ("good", "broken"):
        export_run(place / "neuraldbg_runs" / name, open_place(place / "data"))
        fetched = cache.fetch(place / "data")
        assert rows_and_facts(fetched.path) == rows_and_facts(place / "neuraldbg_runs" / name)
        subprocess.run(["rm", "-r", str(place / "data")], check=True)
    assert {entry.name for entry in fetched.path.parent.iterdir() if entry.is_dir()} == {"broken"}


def long_run(directory: Path, steps: int = 40, rows_a_step: int = 2_000) -> Path:
    with made_run(directory) as run:
        train(run, steps=3)
        for step in range(steps):
            rows = np.zeros(rows_a_step, TABLES["stats"])
            rows["step"], rows["seq"] = step, step * rows_a_step + np.arange(rows_a_step)
            run.writer.append("stats", rows)
            run.writer.flush()
    return directory


def test_the_cache_stays_under_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from neuraldbg.store import parts

    monkeypatch.setattr(parts, "PART_BYTES", 1_000_000)
    for name in ("a", "b", "c"):
        export_run(long_run(tmp_path / name), open_place(tmp_path / f"{name}.parquet"))
    one = RunCache(tmp_path / "one", 10**9)
    one.fetch(tmp_path / "a.parquet")
    size = disk(tmp_path / "one")
    cache = RunCache(tmp_path / "cache", int(size * 2.5))
    for name in ("a", "b", "c", "a"):
        fetched = cache.fetch(tmp_path / f"{name}.parquet")
        assert fetched.notes == ()
        assert disk(tmp_path / "cache") <= size * 2.5
        assert len(rows_and_facts(fetched.path)["stats"]["numbers"]) == 80_000 + 27


def disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_a_thousand_ranks_are_opened_without_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from neuraldbg.store.places import Place

    with made_run(tmp_path / "run") as run:
        for rank in range(1, 24):
            TraceWriter(run.directory, rank=rank, threaded=False).close()
    export_run(run.directory, open_place(tmp_path / "data"))
    page = json.loads((tmp_path / "data" / "dataset.json").read_text())
    page["ranks"] = list(range(1_024))
    (tmp_path / "data" / "dataset.json").write_text(json.dumps(page))
    monkeypatch.setattr(Place, "names", lambda _: pytest.fail("listed"))
    found = open_dataset(open_place(tmp_path / "data"))
    assert len(found.manifests) == 24
    assert len(found.missing) == 1_000
    assert choose(found, 10**6).left_rows == 0


def test_the_folder_of_another_user_is_no_traceback(place: Path, bucket: str) -> None:
    export_run(place / "neuraldbg_runs" / "good", open_place(f"{bucket}/good"))
    (place / "file").write_text("")
    line = refused(neural("report", f"{bucket}/good", cwd=place, NEURALDBG_CACHE_DIR=os.fspath(place / "file")))
    assert "cannot keep" in line
