"""Runs of many ranks and many rows, made from numbers alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from made_runs import MadeRun, made_run

from neuraldbg.records import Kind, SiteKind
from neuraldbg.trace import TraceWriter
from neuraldbg.trace.tables import KIND_CODE, TABLES


def ranks_of(run: MadeRun, count: int) -> list[MadeRun]:
    """The given run as rank 0, and further ranks."""
    others = [MadeRun(run.directory, TraceWriter(run.directory, rank=r, threaded=False)) for r in range(1, count)]
    return [run, *others]


def close(ranks: list[MadeRun]) -> None:
    for one in ranks[1:]:
        one.writer.close()


def large_run(directory: Path, rows: int, *, ranks: int = 2, odd: int = 0) -> Path:
    """So many rows of statistics, with NaN, infinities, outliers and ranks that part, all made from their numbers."""
    with made_run(directory) as run:
        everyone = ranks_of(run, ranks)
        for rank, one in enumerate(everyone):
            model = one.model()
            sites = [one.module(f"block.{n}.linear", "Linear", model) for n in range(20)]
            weights = [one.parameter(f"block.{n}.linear.weight", (8, 8), model) for n in range(20)]
            series = one.site("step_time_s", SiteKind.SERIES)
            each, done = rows // ranks, 0
            while done < each:
                count = min(60_000, each - done)
                one.writer.append("stats", _numbers(done, count, sites, weights, rank + odd))
                one.writer.flush()
                done += count
            times = np.zeros(each // 400, TABLES["scalars"])
            times["step"], times["site"] = np.arange(len(times)), series
            times["value"] = 0.1 + (np.arange(len(times)) * (rank + 3) % 7) * 0.01
            one.writer.append("scalars", times)
        close(everyone)
    return directory


def _numbers(first: int, count: int, sites: list[int], weights: list[int], salt: int) -> np.ndarray:
    number = np.arange(first, first + count)
    rows = np.zeros(count, TABLES["stats"])
    rows["step"], rows["seq"], rows["pass_id"] = number // 40, number, -1
    of_weight = number % 2 == 1
    rows["site"] = np.where(of_weight, np.array(weights)[number // 2 % 20], np.array(sites)[number // 2 % 20])
    kinds = (KIND_CODE[Kind.PARAMETER], KIND_CODE[Kind.ACTIVATION])
    rows["kind"] = np.where(of_weight, *kinds)
    rows["l2"] = 1 + number % 97 / 10
    rows["l2"][number % 50_021 == 7] = np.nan
    rows["l2"][number % 60_013 == 9] = np.inf
    rows["l2"][number % 70_001 == 11] = 1e9
    rows["mean"] = np.where(number > 15_000, salt, 0.0)
    rows["digest"] = number // 40 + 1 + np.where((number % 40 == 7) & (number > 12_000), salt, 0)
    return rows
