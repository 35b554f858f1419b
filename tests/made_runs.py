"""Runs written by hand with TraceWriter, for tests that look at a trace and need no framework."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from neuraldbg.records import Call, Kind, Phase, RunInfo, SiteKind
from neuraldbg.trace import TraceWriter, create_run
from neuraldbg.trace.tables import CALL_CODE, KIND_CODE, LOWEST_OCTAVE, OCTAVES, PHASE_CODE, TABLES


def a_run_info(**changes: Any) -> RunInfo:
    given: dict[str, Any] = {
        "id": "20260102-030405-train",
        "command": ("train.py", "--lr", "0.1"),
        "backend": "torch",
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "started": "2026-01-02T03:04:05+00:00",
        "script": "train.py",
        **changes,
    }
    return RunInfo(**given)


@dataclass
class MadeRun:
    """A run being written: sites by name, rows one at a time, readable as the story of a training."""

    directory: Path
    writer: TraceWriter
    _ids: dict[str, int] = field(default_factory=dict)
    _seq: int = 0

    def site(self, name: str, kind: SiteKind, **fields: Any) -> int:
        number = self._ids.setdefault(f"{kind.value} {name}", len(self._ids))
        self.writer.fact("site", id=number, path=fields.pop("path", name), kind=kind.value, **fields)
        return number

    def model(self, name: str = "model", cls: str = "Net", parameters: int = 1000, **fields: Any) -> int:
        number = self.site(name, SiteKind.MODEL, op=cls, parameters=parameters)
        given = {"trainable": parameters, "wrapper": None, "source": None, **fields}
        self.writer.fact("model", **{"site": number, "name": name, "class": cls, "parameters": parameters, **given})
        return number

    def module(self, path: str, op: str, model: int, **fields: Any) -> int:
        return self.site(f"{model} {path}", SiteKind.MODULE, path=path, op=op, model=model, **fields)

    def parameter(self, path: str, shape: tuple[int, ...], model: int) -> int:
        size = math.prod(shape)
        return self.site(f"{model} {path}", SiteKind.PARAMETER, path=path, model=model, shape=shape, parameters=size)

    def optimizer(self, cls: str = "SGD", *, lr: float = 0.1, holds: tuple[int, ...] = (), **fields: Any) -> int:
        name = fields.pop("name", "optimizer")
        number = self.site(name, SiteKind.OPTIMIZER, op=cls)
        given = {"groups": [{"lr": lr, "parameters": len(holds)}], "parameter_sites": list(holds), **fields}
        given.setdefault("unknown_parameters", 0)
        self.writer.fact("optimizer", **{"site": number, "name": name, "class": cls, "source": None, **given})
        return number

    def stats(self, site: int, kind: Kind, step: int, phase: Phase = Phase.FORWARD, **values: Any) -> None:
        given = {"count": 100, "mean": 0.0, "std": 1.0, "min": -3.0, "max": 3.0, "l2": 10.0, **values}
        self._row("stats", step, site, kind=KIND_CODE[kind], phase=PHASE_CODE[phase], **given)

    def histogram(self, site: int, kind: Kind, step: int, octaves: dict[int, int], zeros: int = 0) -> None:
        """`octaves`: how many values by the power of two below their magnitude."""
        counts = np.zeros(OCTAVES, "<u2")
        for octave, count in octaves.items():
            counts[octave - LOWEST_OCTAVE] = count
        looked_at = zeros + int(counts.sum())
        given = {"count": looked_at, "looked_at": looked_at, "zero_count": zeros, "octaves": counts.tobytes()}
        self._row("histograms", step, site, kind=KIND_CODE[kind], phase=PHASE_CODE[Phase.FORWARD], **given)

    def span(self, site: int, phase: Phase, step: int, duration_ms: float, host_bytes: int = -1) -> None:
        given = {"duration_ns": int(duration_ms * 1e6), "host_bytes": host_bytes, "device_bytes": -1}
        self._row("spans", step, site, phase=PHASE_CODE[phase], **given)

    def scalar(self, name: str, step: int, value: float) -> None:
        known = f"{SiteKind.SERIES.value} {name}"
        site = self._ids[known] if known in self._ids else self.site(name, SiteKind.SERIES)
        self._row("scalars", step, site, value=value)

    def call(self, call: Call, step: int, site: int = -1, **values: Any) -> None:
        self._row("calls", step, site, call=CALL_CODE[call], source=-1, **values)

    def end(
        self, *, exit_code: int | None = 0, error: str | None = None, duration_s: float = 12.5, steps: int = 0
    ) -> None:
        given = {"exit_code": exit_code, "error": error, "duration_s": duration_s, "dropped": {}, "steps": steps}
        self.writer.fact("end", **given)

    def _row(self, table: str, step: int, site: int, **values: Any) -> None:
        row = np.zeros(1, TABLES[table])
        row["step"], row["seq"], row["site"], row["pass_id"] = step, self._seq, site, -1
        self._seq += 1
        for name, value in values.items():
            row[name] = value
        self.writer.append(table, row)


@contextmanager
def made_run(out: Path, **info: Any) -> Iterator[MadeRun]:
    directory = create_run(a_run_info(**info), out=out)
    writer = TraceWriter(directory, threaded=False)
    try:
        yield MadeRun(directory, writer)
    finally:
        writer.close()


LAYERS = (("conv1", "Conv2d", (32, 1, 3, 3)), ("act", "ReLU", None), ("fc", "Linear", (10, 5408)))


def train(
    run: MadeRun, *, steps: int = 50, nan_from: int | None = None, holds_parameters: bool = True, scale: float = 1.0
) -> None:
    """A small CNN that learns; from step `nan_from` on, its last layer gives NaN."""
    model = run.model("model", "Net", parameters=54_400)
    sites = [(run.module(path, op, model, flops=1000), shape) for path, op, shape in LAYERS]
    weights = [run.parameter(f"{path}.weight", shape, model) for path, _, shape in LAYERS if shape]
    optimizer = run.optimizer("Adam", lr=0.001, holds=tuple(weights) if holds_parameters else ())
    run.writer.fact(
        "loss", kinds=["cross_entropy"], anatomy="nll(log_softmax)", source=None, in_model=False, reduction="mean"
    )
    run.writer.fact("accumulation", backwards_per_update=1)
    for step in range(steps):
        broken = nan_from is not None and step >= nan_from
        run.call(Call.PASS, step, model, value=1, aux=1)
        for site, _ in sites:
            last = site == sites[-1][0]
            bad = {"nan_count": 100, "mean": math.nan, "l2": math.nan} if broken and last else {}
            run.stats(site, Kind.ACTIVATION, step, **{"mean": 0.25 * scale, "std": 0.5, **bad})
            run.span(site, Phase.FORWARD, step, 0.5 if last else 1.25, host_bytes=4096)
            run.span(site, Phase.BACKWARD, step, 2.0)
        loss = math.nan if broken else 2.3 * scale * math.exp(-step / 20)
        run.scalar("loss", step, loss)
        run.call(Call.BACKWARD, step, value=loss)
        run.call(Call.PASS_TRAIN, step, model)
        for weight in weights:
            run.stats(weight, Kind.GRADIENT, step, Phase.BACKWARD, l2=0.3 * scale)
            run.stats(weight, Kind.PARAMETER, step, Phase.UPDATE, l2=20.0)
            run.stats(weight, Kind.UPDATE, step, Phase.UPDATE, l2=0.02)
        run.call(Call.STEP, step, optimizer, value=0.001)
        run.scalar("lr", step, 0.001)
        run.scalar("grad_norm", step, 0.4)
        run.scalar("step_time_s", step, 0.01)
    run.writer.fact("overhead", ratio=0.0093, sampled_steps=20, total_steps=steps, own_s=0.1, run_s=12.5)


def two_runs(folder: Path) -> Path:
    """A working directory with two finished runs, `good` and, newer, `broken`."""
    for name, nan_from in (("good", None), ("broken", 33)):
        with made_run(folder / "neuraldbg_runs" / name) as run:
            train(run, nan_from=nan_from)
            run.end(steps=50)
    return folder
