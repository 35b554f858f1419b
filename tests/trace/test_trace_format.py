"""Whatever happens to the bytes, everything intact before the damage is served, and nothing else."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from trace_making import describe_net, new_run, stats

from neuraldbg.errors import TraceTooNew
from neuraldbg.records import Kind
from neuraldbg.trace import TraceWriter, open_trace
from neuraldbg.trace import format as ndt
from neuraldbg.trace.histograms import histograms
from neuraldbg.trace.tables import TABLES


def rows_of(table: str) -> st.SearchStrategy[np.ndarray]:
    """Any rows of a table; bytes stand for columns that have no type of their own."""
    dtype = TABLES[table]
    kinds = [
        (name, dtype[name] if dtype[name].kind != "V" else f"S{dtype[name].itemsize}") for name in dtype.names or ()
    ]
    return npst.arrays(np.dtype(kinds), st.integers(0, 40)).map(lambda rows: rows.view(dtype))


BLOCKS = st.lists(
    st.sampled_from(sorted(TABLES)).flatmap(lambda table: st.tuples(st.just(table), rows_of(table), st.booleans())),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(BLOCKS)
def test_what_was_appended_is_what_is_read(blocks: list[tuple[str, np.ndarray, bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = new_run(Path(folder))
        writer = TraceWriter(run, threaded=False)
        for table, rows, flush_here in blocks:
            assert writer.append(table, rows) == len(rows)
            if flush_here:
                writer.flush()
        writer.close()
        with open_trace(run) as trace:
            assert trace.damage is None
            for table, dtype in TABLES.items():
                expected = np.concatenate([np.empty(0, dtype), *(rows for name, rows, _ in blocks if name == table)])
                chunks = trace._ranks.views[0].reader.chunks[table]
                for column in dtype.names or ():
                    stored = b"".join(chunk.column(column).tobytes() for chunk in chunks)
                    assert stored == expected[column].tobytes()  # bits, so that nan equals nan


@pytest.fixture(scope="module")
def sound_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five chunks of 300 rows in one segment file, and facts."""
    run = new_run(tmp_path_factory.mktemp("sound"))
    writer = TraceWriter(run, threaded=False)
    describe_net(writer)
    writer.flush()
    for chunk in range(5):
        writer.append("stats", stats(300 * chunk, 300))
        writer._flush_lane(writer._lanes["stats"], last=True)
    writer.close()
    return run


def damaged_copy(run: Path, folder: Path, name: str, change: bytes) -> Path:
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    (copy / "rank-00000" / name).write_bytes(change)
    return copy


def chunk_ends(data: bytes) -> list[int]:
    """Where the header and then each chunk ends."""
    header = ndt.decode_file_header(data)
    assert header is not None
    ends = [header.size]
    while ends[-1] < len(data):
        head = ndt.decode_chunk_header(data[ends[-1] : ends[-1] + ndt.CHUNK_HEADER.size])
        assert head is not None
        ends.append(ends[-1] + ndt.CHUNK_HEADER.size + head.payload_bytes)
    return ends


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_file_cut_anywhere_keeps_every_whole_chunk(sound_run: Path, data: st.DataObject) -> None:
    whole = (sound_run / "rank-00000" / "segment-000000.ndt").read_bytes()
    ends = chunk_ends(whole)
    cut = data.draw(st.integers(0, len(whole)) | st.sampled_from(ends))
    kept = max(0, sum(end <= cut for end in ends) - 1)
    with tempfile.TemporaryDirectory() as folder:
        copy = damaged_copy(sound_run, Path(folder), "segment-000000.ndt", whole[:cut])
        with open_trace(copy) as trace:
            assert trace.table("stats")["seq"].tolist() == list(range(300 * kept))
            if cut in ends:
                assert trace.damage is None
            else:
                assert trace.damage is not None
                assert "segment-000000.ndt at byte" in trace.damage
                assert "cut short" in trace.damage or cut == 0


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_anywhere_loses_nothing_before_it(sound_run: Path, data: st.DataObject) -> None:
    whole = bytearray((sound_run / "rank-00000" / "segment-000000.ndt").read_bytes())
    ends = chunk_ends(bytes(whole))
    at = data.draw(st.integers(0, len(whole) - 1) | st.integers(0, ends[0]) | st.integers(ends[2], ends[2] + 64))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    kept = max(0, sum(end <= at for end in ends) - 1)
    with tempfile.TemporaryDirectory() as folder:
        copy = damaged_copy(sound_run, Path(folder), "segment-000000.ndt", bytes(whole))
        with open_trace(copy) as trace:
            assert trace.table("stats")["seq"].tolist() == list(range(300 * kept))
            assert trace.damage is not None


@settings(max_examples=40, deadline=None)
@given(junk=st.binary(max_size=400))
def test_junk_in_place_of_any_file_is_damage_and_no_exception(sound_run: Path, junk: bytes) -> None:
    for name in ("segment-000000.ndt", "facts-000000.ndt", "journal-stats-000009.ndt"):
        with (
            tempfile.TemporaryDirectory() as folder,
            open_trace(damaged_copy(sound_run, Path(folder), name, junk)) as trace,
        ):
            assert len(trace.table("stats")["seq"]) in (0, 1500)
            assert trace.damage is not None


def test_damage_in_a_chunk_names_file_place_and_reason(sound_run: Path, tmp_path: Path) -> None:
    whole = bytearray((sound_run / "rank-00000" / "segment-000000.ndt").read_bytes())
    third = chunk_ends(bytes(whole))[2]
    whole[third + 200] ^= 0xFF
    trace = open_trace(damaged_copy(sound_run, tmp_path, "segment-000000.ndt", bytes(whole)))
    assert trace.damage == f"rank-00000/segment-000000.ndt at byte {third}: a chunk of 300 rows fails its checksum"


def test_a_newer_major_version_says_so_and_what_to_do(
    sound_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ndt, "MAJOR", 2)
    newer = ndt.encode_file_header(rank=0)
    monkeypatch.undo()
    copy = damaged_copy(sound_run, tmp_path, "segment-000000.ndt", newer)
    with pytest.raises(TraceTooNew, match=r"newer NeuralDbg \(format 2\.1; this one reads up to 1\.x\): upgrade with"):
        open_trace(copy)


def test_a_newer_minor_version_with_one_more_column_and_table_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wider = np.dtype([*((name, TABLES["stats"][name]) for name in TABLES["stats"].names or ()), ("entropy", "<f4")])
    run = new_run(tmp_path)
    with monkeypatch.context() as patch:
        patch.setitem(TABLES, "stats", wider)
        patch.setattr(ndt, "MINOR", 7)
        with TraceWriter(run, threaded=False) as writer:
            rows = np.zeros(100, wider)
            rows["seq"] = np.arange(100)
            writer.append("stats", rows)
    with open_trace(run) as trace:
        assert trace.damage is None
        assert trace.table("stats")["seq"].tolist() == list(range(100))


def test_a_run_of_before_there_were_histograms_opens_without_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path)
    with monkeypatch.context() as patch:
        patch.delitem(TABLES, "histograms")
        patch.setattr(ndt, "MINOR", 0)
        with TraceWriter(run, threaded=False) as writer:
            describe_net(writer)
            writer.append("stats", stats(0, 100))
    with open_trace(run) as trace:
        assert trace.damage is None
        assert len(trace.table("stats")["step"]) == 100
        assert len(trace.table("histograms")["step"]) == 0
        assert histograms(trace, "0.weight", Kind.PARAMETER).steps.tolist() == []
        assert trace.last_step is not None


def test_a_column_that_an_older_file_lacks_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [name for name in TABLES["stats"].names or () if name not in ("std", "inf_count", "digest")]
    narrower = np.dtype([(name, TABLES["stats"][name]) for name in kept])
    run = new_run(tmp_path)
    with monkeypatch.context() as patch:
        patch.setitem(TABLES, "stats", narrower)
        with TraceWriter(run, threaded=False) as writer:
            writer.append("stats", np.zeros(3, narrower))
    with open_trace(run) as trace:
        columns = trace.table("stats")
        assert np.isnan(columns["std"]).all()
        assert columns["inf_count"].tolist() == [-1, -1, -1]
        assert columns["digest"].tolist() == [0, 0, 0]
