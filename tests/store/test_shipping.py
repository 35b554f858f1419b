"""A run is shipped while it is recorded: whatever happens to the store on the way, nothing is lost silently."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from commands import neural
from forkserver import ForkServer, Running
from made_runs import MadeRun, made_run, train
from object_store import Gateway
from recorded import rows_and_facts
from waiting import eventually

from neuraldbg.records import SiteKind
from neuraldbg.store import parts
from neuraldbg.store.counters import read_counters
from neuraldbg.store.importing import import_run
from neuraldbg.store.manifest import open_dataset
from neuraldbg.store.places import open_place
from neuraldbg.store.shipping import LEAST_LONGEST_S, Refused, Shipper
from neuraldbg.trace import TraceWriter, open_trace
from neuraldbg.trace.tables import TABLES

SCRIPT = """
import os, time
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
until = time.monotonic() + 150
while True:
    x = torch.randn(32, 8)
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
    if time.monotonic() > until or os.path.exists("enough"):
        break
print("trained")
"""


def back_from(place: str | Path, out: Path) -> Path:
    return import_run(open_dataset(open_place(place)), out)


def some_rows(step: int, count: int = 2_000) -> np.ndarray:
    rows = np.zeros(count, TABLES["stats"])
    rows["step"], rows["seq"], rows["l2"] = step, np.arange(count), np.nan
    return rows


def record(run: MadeRun, step: int) -> None:
    run.writer.append("stats", some_rows(step))
    run.scalar("loss", step, 1 / (step + 1))
    run.writer.flush()


def test_what_is_shipped_piece_by_piece_is_the_run(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        shipper = Shipper(run.directory, str(tmp_path / "there"), every_s=0)
        shipper.begin()
        train(run, steps=3)
        for step in range(5):
            record(run, step)
            shipper.tend()
            seen = open_dataset(open_place(tmp_path / "there"))
            assert sum(part.rows for part in seen.manifests[0].tables["stats"]) >= 2_000 * (step + 1)
            assert not seen.ended
        run.end(steps=5)
    (run.directory / "findings.jsonl").write_text('{"id":"late"}\n')
    assert shipper.finish(seconds=30)
    back = back_from(tmp_path / "there", tmp_path / "back")
    assert rows_and_facts(back) == rows_and_facts(run.directory)
    assert (back / "findings.jsonl").read_text() == '{"id":"late"}\n'
    assert open_dataset(open_place(tmp_path / "there")).ended
    assert not (run.directory / "shipping").exists()


def test_small_pieces_wait_for_company_and_large_ones_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 500_000)
    monkeypatch.setattr("neuraldbg.store.shipping.PART_BYTES", 500_000)
    with made_run(tmp_path / "run") as run:
        shipper = Shipper(run.directory, str(tmp_path / "there"), every_s=3600)
        shipper.begin()
        shipper.tend()  # what is there at the start
        record(run, 0)
        shipper.tend()
        assert shipper.counters.parts == 0
        for step in range(1, 4):
            record(run, step)
        shipper.tend()
        assert shipper.counters.parts == 1
    assert shipper.finish(seconds=30)
    assert rows_and_facts(back_from(tmp_path / "there", tmp_path / "back")) == rows_and_facts(run.directory)


def test_a_store_that_is_down_costs_time_and_nothing_else(tmp_path: Path, bucket: str, gate: Gateway) -> None:
    with made_run(tmp_path / "run") as run:
        shipper = Shipper(run.directory, f"{bucket}/run", every_s=0)
        shipper.begin()
        record(run, 0)
        shipper.tend()
        gate.refuse()
        for step in range(1, 4):
            record(run, step)
            shipper.tend()
        assert shipper.counters.failures >= 1
        assert "connect" in str(shipper.counters.error).lower()
        assert shipper.counters.waiting_parts >= 3
        assert read_counters(run.directory) is not None
        assert not shipper.finish(seconds=0.2)
        gate.open()
    assert shipper.finish(seconds=60)
    assert (shipper.counters.lost_rows, shipper.counters.waiting_parts, shipper.counters.error) == (0, 0, None)
    assert rows_and_facts(back_from(f"{bucket}/run", tmp_path / "back")) == rows_and_facts(run.directory)


def test_pauses_between_tries_grow(tmp_path: Path, bucket: str, gate: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    with made_run(tmp_path / "run") as run:
        record(run, 0)
    shipper = Shipper(run.directory, f"{bucket}/run", every_s=0)
    gate.refuse()
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 5:
            gate.open()

    assert shipper.finish(seconds=600, pause=pause)
    assert len(pauses) == 5
    assert pauses[:4] == sorted(pauses[:4])  # twice as long each time, with a little chance, up to the longest
    assert pauses[-1] > 4 * pauses[0]
    assert max(pauses) <= 1.25 * LEAST_LONGEST_S


def test_a_second_viewer_goes_on_where_the_first_was_killed(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        first = Shipper(run.directory, str(tmp_path / "there"), every_s=0)
        first.begin()
        record(run, 0)
        first.tend()
        record(run, 1)
        first._cut(least_bytes=0)  # killed between making the parts and shipping them
        made = {path.name for path in (run.directory / "shipping").rglob("*.parquet")}
        assert made
        record(run, 2)
        second = Shipper(run.directory, str(tmp_path / "there"), every_s=0)
        second.begin()
        second.tend()
    assert second.finish(seconds=30)
    assert rows_and_facts(back_from(tmp_path / "there", tmp_path / "back")) == rows_and_facts(run.directory)
    assert second.counters.parts > first.counters.parts


def test_rows_that_the_disk_limit_deletes_first_are_counted(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        pass
    there = str(tmp_path / "there")
    with TraceWriter(run.directory, rank=1, threaded=False, max_disk_bytes=600_000) as writer:
        shipper = Shipper(run.directory, there, every_s=0)
        for step in range(60):
            writer.append("stats", some_rows(step))
            writer.flush()
    assert shipper.finish(seconds=30)
    numbers = rows_and_facts(run.directory, 1)["stats"]["numbers"]
    assert numbers[0] > 0
    assert shipper.counters.lost_rows == numbers[0]
    assert open_dataset(open_place(there)).manifests[1].lost == {"stats": numbers[0]}


def test_a_full_spool_leaves_rows_in_the_trace(tmp_path: Path, bucket: str, gate: Gateway) -> None:
    with made_run(tmp_path / "run") as run:
        shipper = Shipper(run.directory, f"{bucket}/run", every_s=0, spool_bytes=1)
        gate.refuse()
        for step in range(6):
            record(run, step)
            shipper.tend()
        assert shipper.counters.waiting_parts == 1
        assert not shipper.finish(seconds=0.1)
        assert shipper.counters.waiting_parts == 1, "nor when the run is over"
        gate.open()
    assert shipper.finish(seconds=60)
    assert rows_and_facts(back_from(f"{bucket}/run", tmp_path / "back")) == rows_and_facts(run.directory)


@pytest.mark.parametrize(
    ("url", "secret", "why"),
    [("s3://nowhere/run", None, "there is nothing here"), (None, "wrong", "not allowed; check the credentials")],
)
def test_a_place_that_cannot_be_used_is_refused_at_the_start(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, url: str | None, secret: str | None, why: str
) -> None:
    if secret:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    with made_run(tmp_path / "run") as run:
        record(run, 0)
    with pytest.raises(Refused, match=why):
        Shipper(run.directory, url or f"{bucket}/run").begin()


def test_what_lies_there_is_never_written_over(tmp_path: Path, bucket: str, gate: Gateway) -> None:
    for name in ("first", "second"):
        with made_run(tmp_path / name, id=name) as run:
            record(run, 0)
    assert Shipper(tmp_path / "first", f"{bucket}/run").finish(seconds=30)
    with pytest.raises(Refused, match="holds the run first already; choose another place"):
        Shipper(tmp_path / "second", f"{bucket}/run").begin()
    unaware = Shipper(tmp_path / "second", f"{bucket}/run", every_s=0)
    gate.refuse()
    unaware.begin()  # nobody answers: it is looked at later
    gate.open()
    assert not unaware.finish(seconds=0.1)
    assert "holds the run first already" in str(unaware.counters.error)
    assert rows_and_facts(back_from(f"{bucket}/run", tmp_path / "back")) == rows_and_facts(tmp_path / "first")


def test_a_part_that_finds_no_room_on_the_disk_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with made_run(tmp_path / "run") as run:
        train(run, steps=3)
        shipper = Shipper(run.directory, str(tmp_path / "there"), every_s=0)
        for full in ("facts", "stats", "scalars"):
            run.writer.fact("note", text=f"before the disk was full of {full}")
            record(run, 1)
            with monkeypatch.context() as patched:
                patched.setattr(shipper, "_put_aside", no_room_for(full, shipper._put_aside))
                shipper.tend()
            assert "No space left" in str(shipper.counters.error)
    assert shipper.finish(seconds=30)
    assert shipper.counters.lost_rows == 0
    assert rows_and_facts(back_from(tmp_path / "there", tmp_path / "back")) == rows_and_facts(run.directory)


def no_room_for(table: str, put: Callable[[str, bytes], None]) -> Callable[[str, bytes], None]:
    def put_or_fail(name: str, data: bytes) -> None:
        if f"/{table}-" in name:
            raise OSError(errno.ENOSPC, "No space left on device")
        put(name, data)

    return put_or_fail


# -- the whole way: `neural debug --out s3://...` ----------------------------------------------------------------------


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


@dataclass
class Debugged:
    """`neural debug --out URL train.py`, under way."""

    running: Running
    place: Path

    @property
    def run(self) -> Path:
        (found,) = (self.place / "neuraldbg_runs").iterdir()
        return found

    def end(self) -> tuple[int, str]:
        """The training has enough; its exit code and what was said."""
        (self.place / "enough").touch()
        result = self.running.wait(timeout=200)
        assert "trained" in result.stdout
        return result.code, result.stderr


def debugged(server: ForkServer, place: Path, url: str, **changes: str) -> Debugged:
    words = ("debug", "--headless", "--out", url, "train.py")
    env = {"NEURALDBG_SHIP_EVERY": "1", **changes}
    return Debugged(server.start(*words, neural=True, cwd=place, env=env), place)


@pytest.mark.slow
def test_twenty_seconds_without_a_store_in_the_middle_of_a_run_lose_nothing(
    torch_server: ForkServer, script: Path, bucket: str, gate: Gateway
) -> None:
    going = debugged(torch_server, script, f"{bucket}/run")
    eventually(lambda: gate.connections >= 6)
    gate.refuse()
    time.sleep(20)
    gate.open()
    eventually(lambda: (read_counters(going.run) or {"error": "none yet"})["error"] is None)
    code, said = going.end()
    assert code == 0
    assert "cannot ship now" in said
    assert "is reachable again" in said
    counters = read_counters(going.run)
    assert counters is not None
    assert counters["complete"]
    assert counters["failures"] > 0
    assert counters["lost_rows"] == 0
    back = back_from(f"{bucket}/run", script / "back")
    assert rows_and_facts(back) == rows_and_facts(going.run)
    assert len(rows_and_facts(back)["scalars"]["numbers"]) > 100
    for name in ("run.json", "findings.jsonl", "verdict.json"):
        assert (back / name).read_bytes() == (going.run / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("there", "why"), [("nowhere", "NO_SUCH_BUCKET"), ("", "not allowed; check the credentials")])
def test_a_wrong_place_is_told_at_the_start_and_the_run_is_whole_here(
    torch_server: ForkServer, script: Path, bucket: str, there: str, why: str
) -> None:
    wrong = {} if there else {"AWS_SECRET_ACCESS_KEY": "wrong"}
    url = f"s3://{there}/run" if there else f"{bucket}/run"
    going = debugged(torch_server, script, url, **wrong)
    eventually(lambda: b"not shipped" in going.running.err)
    code, said = going.end()
    assert code == 0
    (line,) = [line for line in said.splitlines() if "this run is not shipped" in line]
    assert why in line
    assert str(going.run) in line
    assert f"neural export {going.run.name} {url} --format parquet" in line
    assert said.splitlines().index(line) < 3  # long before the verdict
    with open_trace(going.run) as trace:
        assert trace.run.exit_code == 0
        (loss,) = [site for site in trace.sites if site.path == "loss" and site.kind is SiteKind.SERIES]
        assert trace.run.steps == len(trace.table("scalars", ("step",), None, loss)["step"])
        assert trace.run.steps > 0


@pytest.mark.slow
def test_what_could_not_be_shipped_is_shipped_later(
    torch_server: ForkServer, script: Path, bucket: str, gate: Gateway
) -> None:
    going = debugged(torch_server, script, f"{bucket}/run", NEURALDBG_SHIP_REST="1")
    eventually(lambda: gate.connections >= 6)
    gate.refuse()
    code, said = going.end()
    assert code == 0
    assert "could not be shipped" in said
    gate.open()
    result = neural("export", going.run.name, f"{bucket}/run", "--format", "parquet", cwd=script)
    assert "complete" in result.stdout, result.stderr
    assert rows_and_facts(back_from(f"{bucket}/run", script / "back")) == rows_and_facts(going.run)


@pytest.mark.slow
def test_a_store_that_takes_and_never_answers_holds_nobody_up_and_is_told(
    torch_server: ForkServer, script: Path, bucket: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        going = debugged(torch_server, script, f"{bucket}/run", AWS_ENDPOINT_URL=address, NEURALDBG_SHIP_REST="0.5")
        eventually(lambda: (going.place / "neuraldbg_runs").exists() and (going.run / "rank-00000").exists())
        code, said = going.end()
    assert code == 0
    assert "does not answer; what it has not taken is in" in said
    assert "--format parquet` ships it later" in said
    assert "did not finish in time" not in said
