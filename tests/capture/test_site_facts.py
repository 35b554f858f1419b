"""What is learnt of a site before it is written is one fact; it stands before all that names it, and is not lost."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from neuraldbg import open_trace
from neuraldbg.capture.torch.recorder import Recorder
from neuraldbg.records import Call, Site, SiteKind
from neuraldbg.trace import TraceWriter, create_run
from neuraldbg.trace.rundir import new_run_info


def recorder_of(folder: Path, **options: Any) -> tuple[Recorder, TraceWriter]:
    run = create_run(new_run_info(("train.py",), script="train.py", budget="full"), out=folder / "run")
    writer = TraceWriter(run, **{"threaded": False, **options})
    return Recorder(lambda: writer), writer


def told(folder: Path, type: str | None = None) -> list[dict[str, Any]]:
    with open_trace(folder / "run") as trace:
        return trace.facts(type)


def read(folder: Path) -> list[Site]:
    with open_trace(folder / "run") as trace:
        return trace.sites


def test_a_site_that_is_refined_before_it_is_written_is_one_fact(tmp_path: Path) -> None:
    recorder, _ = recorder_of(tmp_path)
    site = recorder.add_site("fc", SiteKind.MODULE, op="Linear", parameters=0, defined=None)
    recorder.step = 3
    recorder.refine_site(site, shape=(2, 8), source="train.py:7")
    known = recorder.sites[site]
    recorder.close()
    assert known == Site(site, "fc", SiteKind.MODULE, op="Linear", parameters=0, shape=(2, 8), source="train.py:7")
    assert read(tmp_path) == [known]
    [fact] = told(tmp_path, "site")
    assert (fact["step"], fact["seq"], fact["shape"], "defined" in fact) == (0, 0, [2, 8], False)


def test_a_site_that_is_refined_later_is_told_again(tmp_path: Path) -> None:
    recorder, writer = recorder_of(tmp_path)
    site = recorder.add_site("fc", SiteKind.MODULE)
    writer.flush()
    recorder.step = 1
    recorder.refine_site(site, flops=4)
    recorder.refine_site(site, dtype="float32")
    recorder.close()
    assert [(fact["step"], fact.get("flops")) for fact in told(tmp_path, "site")] == [(0, None), (1, 4)]
    assert read(tmp_path) == [recorder.sites[site]] == [Site(0, "fc", SiteKind.MODULE, flops=4, dtype="float32")]


def test_no_fact_that_names_a_site_stands_before_it(tmp_path: Path) -> None:
    """Also where the flush thread writes while sites are added by several threads."""
    recorder, _ = recorder_of(tmp_path, threaded=True, flush_interval_s=0.001)

    def add(thread: int) -> None:
        for number in range(300):
            site = recorder.add_site(f"{thread}.{number}", SiteKind.MODULE, op="x")
            recorder.fact("names", site=site)
            recorder.call(Call.PASS, site)
            recorder.refine_site(site, shape=(thread, number))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    seen: set[int] = set()
    for fact in told(tmp_path):
        if fact["type"] == "site":
            seen.add(fact["id"])
        assert fact["type"] != "names" or fact["site"] in seen
    assert len(seen) == 900
    assert sorted(read(tmp_path), key=lambda site: site.id) == list(recorder.sites.values())


def test_files_are_told_before_the_sites_that_name_them(tmp_path: Path) -> None:
    recorder, _ = recorder_of(tmp_path)
    recorder.add_site("fc", SiteKind.MODULE, source=recorder.frames.display(__file__) + ":1")
    recorder.close()
    assert [fact["type"] for fact in told(tmp_path)] == ["source_file", "site"]


def test_a_site_there_was_no_room_for_is_told_when_there_is(tmp_path: Path) -> None:
    recorder, writer = recorder_of(tmp_path)
    writer._facts._limit_bytes = 0
    site = recorder.add_site("fc", SiteKind.MODULE)
    assert recorder.dropped()["facts"] == 1
    writer._facts._limit_bytes = 100_000
    recorder.refine_site(site, flops=4)
    recorder.close()
    assert read(tmp_path) == [recorder.sites[site]]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_killed_process_leaves_the_sites_of_earlier_flushes(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        recorder, writer = recorder_of(tmp_path)
        recorder.refine_site(recorder.add_site("fc", SiteKind.MODULE), flops=4)
        writer.flush()
        recorder.refine_site(recorder.add_site("lost", SiteKind.MODULE), flops=4)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert read(tmp_path) == [Site(0, "fc", SiteKind.MODULE, flops=4)]


def test_a_site_whose_line_could_not_be_made_is_written_by_the_next_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, writer = recorder_of(tmp_path)
    site = recorder.add_site("fc", SiteKind.MODULE)

    def no_memory(_: Any) -> str:
        raise MemoryError

    with monkeypatch.context() as short:
        short.setattr("neuraldbg.trace.facts._line_of", no_memory)
        writer.flush()
        assert writer.error is not None
    recorder.refine_site(site, op="Linear")
    recorder.close()
    assert read(tmp_path) == [recorder.sites[site]] == [Site(0, "fc", SiteKind.MODULE, op="Linear")]
