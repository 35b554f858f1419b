"""Small runs to write and read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neuraldbg.records import Call, Kind, RunInfo, SiteKind
from neuraldbg.trace import TraceWriter, create_run
from neuraldbg.trace.tables import CALL_CODE, CALLS, KIND_CODE, SCALARS, STATS


def new_run(folder: Path, name: str = "run") -> Path:
    return create_run(
        RunInfo(name, ("train.py",), None, {"numpy": np.__version__}, "2026-01-01T00:00:00Z"), out=folder / name
    )


def stats(
    first: int, count: int, *, step: int | None = None, site: int = 1, kind: Kind = Kind.GRADIENT
) -> NDArray[np.void]:
    """`count` rows, numbered by `seq` from `first`; l2 repeats the number."""
    rows = np.zeros(count, STATS)
    numbers = np.arange(first, first + count)
    rows["seq"] = numbers
    rows["step"] = numbers if step is None else step
    rows["site"] = site
    rows["kind"] = KIND_CODE[kind]
    rows["l2"] = numbers
    rows["count"] = 10
    return rows


def calls(seqs: list[int], call: Call, *, step: int = 0) -> NDArray[np.void]:
    rows = np.zeros(len(seqs), CALLS)
    rows["seq"] = seqs
    rows["step"] = step
    rows["call"] = CALL_CODE[call]
    rows["source"] = -1
    return rows


def scalars(site: int, values: list[float]) -> NDArray[np.void]:
    rows = np.zeros(len(values), SCALARS)
    rows["site"] = site
    rows["step"] = np.arange(len(values))
    rows["value"] = values
    return rows


def describe_net(writer: TraceWriter) -> None:
    """A model `net` with two Linear layers, a weight, and the series `loss`."""
    writer.fact("site", id=0, path="net", kind=SiteKind.MODEL, op="Sequential")
    writer.fact("site", id=1, path="0", kind=SiteKind.MODULE, op="Linear", model=0, shape=[4, 8])
    writer.fact("site", id=2, path="2", kind=SiteKind.MODULE, op="Linear", model=0)
    writer.fact("site", id=3, path="0.weight", kind=SiteKind.PARAMETER, model=0)
    writer.fact("site", id=4, path="loss", kind=SiteKind.SERIES)
