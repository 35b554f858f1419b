"""Runs of several ranks written by hand: what each recorded, without a framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from made_runs import a_run_info

from neuraldbg import open_trace
from neuraldbg.analysis.diagnose import diagnose
from neuraldbg.records import Call, Finding, SiteKind
from neuraldbg.trace import TraceWriter, create_run
from neuraldbg.trace.tables import CALL_CODE, CALLS, SCALARS

SERIES = ("loss", "step_time_s", "sync_s", "backward_own_s")
START_NS = 1_700_000_000_000_000_000


class SimulatedRank:
    """One process: its facts, its series, its calls."""

    def __init__(self, run: Path, rank: int, world: int, *, folder: int | None = None, **process: Any) -> None:
        self.writer = TraceWriter(run, rank=rank if folder is None else folder, threaded=False)
        about = {"host": "here", "pid": None, "local_rank": rank, "node": 0, "attempt": 0, "backend": "gloo", **process}
        self.writer.fact("process", group_rank=rank, world_size=world, **about)
        self.writer.fact("site", id=0, path="net", kind=SiteKind.MODEL.value, op="Net")
        self.writer.fact("model", site=0, name="net", **{"class": "Net"}, parameters=10, trainable=10, wrapper=None)
        self.writer.fact("site", id=1, path="fc.weight", kind=SiteKind.PARAMETER.value, model=0)
        for at, name in enumerate(SERIES):
            self.writer.fact("site", id=2 + at, path=name, kind=SiteKind.SERIES.value)
        self._seq = 0

    def series(self, name: str, values: Any, first: int = 0) -> SimulatedRank:
        rows = np.zeros(len(values), SCALARS)
        rows["step"], rows["site"], rows["value"] = (
            np.arange(first, first + len(values)),
            2 + SERIES.index(name),
            values,
        )
        rows["seq"] = self._seqs(len(rows))
        self.writer.append("scalars", rows)
        return self

    def calls(self, call: Call, steps: Any, **columns: Any) -> SimulatedRank:
        rows = np.zeros(len(steps), CALLS)
        rows["step"], rows["call"], rows["site"], rows["source"] = steps, CALL_CODE[call], -1, -1
        rows["duration_ns"], rows["seq"] = -1, self._seqs(len(rows))
        rows["wall_ns"] = START_NS + np.asarray(steps) * 10_000_000
        for name, value in columns.items():
            rows[name] = value
        self.writer.append("calls", rows)
        return self

    def updates(self, count: int) -> SimulatedRank:
        return self.calls(Call.STEP, np.arange(count))

    def end(self, *, exit_code: int = 0, error: str | None = None, at_s: float = 100.0) -> SimulatedRank:
        wall = START_NS + int(at_s * 1e9)
        self.writer.fact("end", exit_code=exit_code, error=error, duration_s=at_s, wall_ns=wall, steps=0)
        return self

    def close(self) -> None:
        self.writer.close()

    def _seqs(self, count: int) -> Any:
        first, self._seq = self._seq, self._seq + count
        return np.arange(first, first + count)


def a_run_of_ranks(folder: Path, world: int) -> tuple[Path, list[SimulatedRank]]:
    run = create_run(a_run_info(), out=folder / "run")
    return run, [SimulatedRank(run, rank, world) for rank in range(world)]


def judged(run: Path, kind: str) -> list[Finding]:
    with open_trace(run) as trace:
        judgement = diagnose(trace)
        assert judgement.failed == {}
        return [one.finding for one in judgement.diagnoses if one.finding.kind == kind]


def timed(one: SimulatedRank, own: np.ndarray, step: float = 0.1, backward: float = 0.02) -> None:
    count = len(own)
    one.series("step_time_s", np.full(count, step)).series("sync_s", step - own)
    one.series("backward_own_s", np.full(count, backward)).updates(count)
