"""A run that goes out as Parquet and comes back is the same run, bit for bit; what is torn or foreign is refused."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from made_runs import made_run, train
from recorded import rows_and_facts

from neuraldbg.errors import NeuralDbgError, RunDirectoryError, TraceDamaged, TraceNotFound, TraceTooNew, UsageError
from neuraldbg.store import parts
from neuraldbg.store.arrow import arrow_of, parquet_bytes, parquet_table, rows_of
from neuraldbg.store.exporting import export_run
from neuraldbg.store.importing import import_run
from neuraldbg.store.manifest import open_dataset
from neuraldbg.store.places import open_place
from neuraldbg.trace import TraceWriter, open_trace
from neuraldbg.trace.format import ChunkHeader
from neuraldbg.trace.reader import Chunk
from neuraldbg.trace.tables import TABLES

NAN_WITH_PAYLOAD = np.array([0x7FF0000000000001, 0xFFF8DEADBEEF0001], "<u8").view("<f8")
ODD_FLOATS = [0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, *NAN_WITH_PAYLOAD.tolist()]


def a_chunk(table: str, rows: np.ndarray, first_row: int = 0) -> Chunk:
    columns = {name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names or ()}
    return Chunk(table, ChunkHeader(0, len(rows), 0, 0, first_row, 0, 0, 0, 0), columns)


def any_rows(table: str) -> Any:
    """Every bit pattern of every column, also such as no literal has; few sites, so that sorting moves rows."""
    size = TABLES[table].itemsize
    raw = st.integers(1, 40).flatmap(lambda rows: hnp.arrays(np.uint8, (rows, size)))
    return raw.map(lambda bits: _few_sites(np.ascontiguousarray(bits).view(TABLES[table])[:, 0]))


def _few_sites(rows: np.ndarray) -> np.ndarray:
    rows = rows.copy()
    rows["site"] = rows["site"] % 3 - 1
    return rows


@pytest.mark.parametrize("table", TABLES)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_bit_of_a_row_comes_back(table: str, data: st.DataObject) -> None:
    rows = data.draw(any_rows(table))
    arrow = arrow_of([a_chunk(table, rows, first_row=7)], 0, "layer {}".format)
    numbers, back = rows_of(parquet_table(parquet_bytes(arrow), table, "here"), table)
    assert numbers.tolist() == list(range(7, 7 + len(rows)))
    assert back.tobytes() == rows.tobytes()


def test_nan_payloads_and_both_zeros_stay_apart() -> None:
    rows = np.zeros(len(ODD_FLOATS) * 50, TABLES["stats"])
    for name in ("mean", "std", "min", "max", "l2"):
        rows[name] = np.tile(np.array(ODD_FLOATS), 50)
        rows[name][1::8] = -0.0
    rows["mean"].view("<u8")[:] = np.tile(np.array([0x7FF8000000000000 + i for i in range(len(ODD_FLOATS))], "<u8"), 50)
    arrow = arrow_of([a_chunk("stats", rows)], 0, str)
    _, back = rows_of(parquet_table(parquet_bytes(arrow), "stats", "here"), "stats")
    assert back.tobytes() == rows.tobytes()


def test_a_run_comes_back_with_its_rows_facts_and_files(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        train(run, nan_from=33)
        run.writer.fact("note", text="naïve – 模型")
        run.end(steps=50)
    (run.directory / "findings.jsonl").write_text('{"id":"a"}\n')
    (run.directory / "analysis.lock").write_text("")
    written = export_run(run.directory, open_place(tmp_path / "out"))
    back = import_run(open_dataset(open_place(tmp_path / "out")), tmp_path / "back")
    assert rows_and_facts(back) == rows_and_facts(run.directory)
    assert (back / "run.json").read_bytes() == (run.directory / "run.json").read_bytes()
    assert (back / "findings.jsonl").read_bytes() == b'{"id":"a"}\n'
    assert not (back / "analysis.lock").exists()
    with open_trace(back) as one, open_trace(run.directory) as other:
        assert written.rows == sum(len(one.table(name)["step"]) for name in TABLES) + len(one.facts())
        assert [vars(site) if hasattr(site, "__dict__") else site for site in one.sites] == other.sites
        assert one.run == other.run
        assert one.damage is None


def test_rows_are_sorted_by_layer_kind_and_step_in_parts_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet as pq

    monkeypatch.setattr(parts, "PART_BYTES", 5_000)
    with made_run(tmp_path / "run") as run:
        train(run, steps=4)
        for step in range(12):
            rows = np.zeros(2_000, TABLES["stats"])
            rows["step"], rows["seq"] = step, np.arange(2_000)
            rows["site"], rows["kind"] = np.arange(2_000) % 5, np.arange(2_000) % 3
            run.writer.append("stats", rows)
            run.writer.flush()
    export_run(run.directory, open_place(tmp_path / "out"))
    files = sorted((tmp_path / "out" / "rank-00000").glob("stats-*.parquet"))
    assert len(files) > 3
    for file in files:
        table = pq.read_table(file)
        keys = list(zip(*(table[name].to_pylist() for name in ("layer", "kind", "step", "row")), strict=True))
        assert keys == sorted(keys)
    back = import_run(open_dataset(open_place(tmp_path / "out")), tmp_path / "back")
    assert rows_and_facts(back) == rows_and_facts(run.directory)


def test_every_rank_has_a_prefix_of_its_own_and_names_are_those_of_the_run(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    with made_run(tmp_path / "run") as run:
        train(run, steps=3)
        with TraceWriter(run.directory, rank=2, threaded=False) as second:
            other = type(run)(run.directory, second)
            other.model("other")  # numbers its sites otherwise
            train(other, steps=3)
    export_run(run.directory, open_place(tmp_path / "out"))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "dataset.json",
        "run.json",
        "rank-00000",
        "rank-00002",
    }
    tables = [pq.read_table(tmp_path / "out" / f"rank-0000{rank}" / "stats-000000.parquet") for rank in (0, 2)]
    assert [set(table["rank"].to_pylist()) for table in tables] == [{0}, {2}]
    back = import_run(open_dataset(open_place(tmp_path / "out")), tmp_path / "back")
    for rank in (0, 2):
        assert rows_and_facts(back, rank) == rows_and_facts(run.directory, rank)


def test_rows_deleted_by_the_disk_limit_stay_missing_under_their_numbers(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        pass
    shutil.rmtree(run.directory / "rank-00000")
    with TraceWriter(run.directory, threaded=False, max_disk_bytes=600_000) as writer:
        for step in range(200):
            rows = np.zeros(100, TABLES["stats"])
            rows["step"] = step
            writer.append("stats", rows)
            writer.flush()
    export_run(run.directory, open_place(tmp_path / "out"))
    back = import_run(open_dataset(open_place(tmp_path / "out")), tmp_path / "back")
    numbers = rows_and_facts(back)["stats"]["numbers"]
    assert numbers[0] > 0
    assert numbers == rows_and_facts(run.directory)["stats"]["numbers"]


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    with made_run(tmp_path / "run") as run:
        train(run, steps=5)
    export_run(run.directory, open_place(tmp_path / "out"))
    return tmp_path / "out"


def refusal(folder: Path, out: Path) -> NeuralDbgError:
    with pytest.raises(NeuralDbgError) as refused:
        import_run(open_dataset(open_place(folder)), out)
    return refused.value


def test_a_torn_file_is_named_with_what_is_there_of_it(exported: Path, tmp_path: Path) -> None:
    file = exported / "rank-00000" / "stats-000000.parquet"
    whole = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-20])
    error = refusal(exported, tmp_path / "back")
    assert isinstance(error, TraceDamaged)
    assert "stats-000000.parquet is torn" in str(error)
    assert f"{whole - 20:,} bytes of {whole:,}" in str(error)


def test_one_wrong_bit_is_noticed(exported: Path, tmp_path: Path) -> None:
    file = exported / "rank-00000" / "stats-000000.parquet"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert "stats-000000.parquet is damaged" in str(refusal(exported, tmp_path / "back"))


def test_a_torn_or_foreign_parquet_file_is_refused_also_without_a_manifest(exported: Path, tmp_path: Path) -> None:
    import pyarrow as pa

    data = (exported / "rank-00000" / "stats-000000.parquet").read_bytes()
    with pytest.raises(TraceDamaged, match=r"x\.parquet is torn or no Parquet file"):
        parquet_table(data[: len(data) // 2], "stats", "x.parquet")
    with pytest.raises(TraceDamaged, match="was not written by `neural export"):
        parquet_table(parquet_bytes(pa.table({"a": [1]})), "stats", "x.parquet")
    with pytest.raises(TraceDamaged, match="holds stats, not spans"):
        parquet_table(data, "spans", "x.parquet")


def test_a_data_set_of_a_newer_version_is_refused_with_what_to_do(exported: Path, tmp_path: Path) -> None:
    page = json.loads((exported / "dataset.json").read_text())
    (exported / "dataset.json").write_text(json.dumps({**page, "version": [2, 0]}))
    error = refusal(exported, tmp_path / "back")
    assert isinstance(error, TraceTooNew)
    assert "pip install -U neural-debugger" in str(error)


@pytest.mark.parametrize("name", ["../../outside", "/etc/passwd", "rank-00000/../x", ".hidden"])
def test_a_manifest_cannot_write_outside_the_run(exported: Path, tmp_path: Path, name: str) -> None:
    page = json.loads((exported / "dataset.json").read_text())
    page["files"].append({"file": name, "size_bytes": 1, "crc32": 0})
    (exported / "dataset.json").write_text(json.dumps(page))
    assert "names files outside the data set" in str(refusal(exported, tmp_path / "back"))


def test_a_folder_that_is_none_and_a_place_that_is_taken_are_refused(exported: Path, tmp_path: Path) -> None:
    assert isinstance(refusal(tmp_path / "run", tmp_path / "back"), TraceNotFound)
    with pytest.raises(UsageError, match="already holds a data set"):
        export_run(tmp_path / "run", open_place(exported))
    with pytest.raises(RunDirectoryError, match="is not empty"):
        import_run(open_dataset(open_place(exported)), tmp_path / "run")


def test_a_rank_that_has_put_nothing_there_yet_is_named(exported: Path) -> None:
    page = json.loads((exported / "dataset.json").read_text())
    (exported / "dataset.json").write_text(json.dumps({**page, "ranks": [0, 1]}))
    assert open_dataset(open_place(exported)).missing == (1,)
