"""Histograms over the steps: of one layer and kind, the magnitudes of its values by powers of two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.records import Kind
from neuraldbg.trace.selection import Selection, Span
from neuraldbg.trace.tables import KIND_CODE, OCTAVES

if TYPE_CHECKING:
    from neuraldbg.trace.query import Trace


@dataclass(frozen=True, slots=True)
class Histograms:
    """One row a step. `octaves` counts those of the `looked_at` values that are neither zero nor bad."""

    tensor: str | None  # whose they are: of a layer's parameters the largest; None where there are none
    steps: NDArray[np.int64]
    count: NDArray[np.int64]
    looked_at: NDArray[np.int32]
    zero_count: NDArray[np.int32]
    bad_count: NDArray[np.int32]
    octaves: NDArray[np.uint16]  # steps x 64


def histograms(trace: Trace, layer: str, kind: Kind, between: Span | None = None) -> Histograms:
    """Those of the first rank that has some; of several in a step the last."""
    selection: Selection = trace.selection("histograms", between)
    hits = list(selection.hits(sites=trace.site_ids(layer, kind), kind=KIND_CODE[kind]))
    rows = selection.gather(hits)
    if not len(rows["step"]):
        return _from(rows, np.empty(0, np.intp), None)
    largest = int(rows["site"][np.argmax(rows["count"])])
    mine = np.flatnonzero((rows["site"] == largest) & (rows["rank"] == rows["rank"].min()))
    last_of_step = {int(rows["step"][at]): int(at) for at in mine[np.argsort(rows["seq"][mine], kind="stable")]}
    return _from(rows, np.array([last_of_step[step] for step in sorted(last_of_step)]), trace.canonical(largest))


def _from(rows: dict[str, NDArray[Any]], at: NDArray[np.intp], tensor: str | None) -> Histograms:
    return Histograms(
        tensor,
        steps=rows["step"][at],
        count=rows["count"][at],
        looked_at=rows["looked_at"][at],
        zero_count=rows["zero_count"][at],
        bad_count=rows["bad_count"][at],
        octaves=np.ascontiguousarray(rows["octaves"][at]).view("<u2").reshape(-1, OCTAVES),
    )
