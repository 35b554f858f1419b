"""What every rank did with the time of every step, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.analysis.ranks import processes
from neuraldbg.records import Call, SiteKind
from neuraldbg.trace.tables import CALL_CODE

if TYPE_CHECKING:
    from neuraldbg.trace import Trace

Grid = NDArray[np.float64]
ENOUGH = 0.5  # of the steps of the rank that told most
PHASES = {  # of a rank's own time, and what a person calls them
    "data": "in its data loader",
    "backward": "in its backward",
    "optimizer": "in its optimizer",
    "forward": "in its forward and the code around it",
}


@dataclass(frozen=True, slots=True)
class RankSteps:
    """Rows are ranks, columns steps; seconds, nan where nothing was recorded."""

    ranks: tuple[int, ...]
    steps: NDArray[np.int64]
    step_s: Grid
    sync_s: Grid  # in collectives, and waiting for the gradients of others
    phases: dict[str, Grid]

    @property
    def own_s(self) -> Grid:
        """A rank's own work: what the others may have to wait for."""
        return np.maximum(self.step_s - self.sync_s, 0.0)

    def of_those_that_told(self) -> RankSteps:
        """Without ranks that are missing, died early or came late: nothing could be held against them step by step."""
        told = np.isfinite(self.own_s).sum(axis=1)
        rows = np.flatnonzero(told >= ENOUGH * told.max(initial=0))
        phases = {name: grid[rows] for name, grid in self.phases.items()}
        ranks = tuple(self.ranks[row] for row in rows)
        return RankSteps(ranks, self.steps, self.step_s[rows], self.sync_s[rows], phases)

    def known(self) -> NDArray[np.bool_]:
        """Steps that every rank has told of, less the first two, in which everything is made."""
        return np.isfinite(self.own_s).all(axis=0) & (self.steps >= 2)


def rank_steps(trace: Trace) -> RankSteps | None:
    """None for a run of one process, and where ranks recorded no times."""
    group = processes(trace)
    names = {site.path: site.id for site in trace.sites if site.kind is SiteKind.SERIES}
    if len(group) < 2 or "sync_s" not in names or "step_time_s" not in names:
        return None
    row_of = {one.folder: row for row, one in enumerate(group.values())}
    wanted = [name for name in ("step_time_s", "sync_s", "backward_own_s") if name in names]
    scalars = {name: trace.table("scalars", ("step", "value", "rank"), site=names[name]) for name in wanted}
    last = max((int(table["step"].max()) for table in scalars.values() if len(table["step"])), default=-1)
    shape = (len(group), last + 1)
    step_s, sync_s = (_grid(scalars[name], "value", row_of, shape) for name in ("step_time_s", "sync_s"))
    backward = scalars.get("backward_own_s")
    phases = {"backward": np.zeros(shape) if backward is None else _grid(backward, "value", row_of, shape)}
    calls = trace.table("calls", ("step", "call", "duration_ns", "rank"))
    for phase, call in (("data", Call.BATCH), ("optimizer", Call.STEP)):
        chosen = (calls["call"] == CALL_CODE[call]) & (calls["duration_ns"] >= 0)
        phases[phase] = _summed({name: column[chosen] for name, column in calls.items()}, row_of, shape)
    rest = step_s - sync_s - sum(np.nan_to_num(grid) for grid in phases.values())
    phases["forward"] = np.maximum(rest, 0.0)
    return RankSteps(tuple(group), np.arange(last + 1), step_s, sync_s, phases)


def _grid(table: Any, value: str, row_of: dict[int, int], shape: tuple[int, int]) -> Grid:
    grid = np.full(shape, np.nan)
    rows = _rows(table["rank"], row_of)
    known = rows >= 0
    grid[rows[known], table["step"][known]] = table[value][known]
    return grid


def _summed(table: dict[str, Any], row_of: dict[int, int], shape: tuple[int, int]) -> Grid:
    grid = np.zeros(shape)
    rows = _rows(table["rank"], row_of)
    known = (rows >= 0) & (table["step"] < shape[1])
    np.add.at(grid, (rows[known], table["step"][known]), table["duration_ns"][known] / 1e9)
    return grid


def by_folder(folders: NDArray[Any]) -> dict[int, NDArray[np.int64]]:
    """Which rows are whose: sorted once, however many ranks there are."""
    if not len(folders):
        return {}
    order = np.argsort(folders, kind="stable")
    starts = np.flatnonzero(np.diff(folders[order], prepend=-1))
    whose = folders[order][starts].tolist()
    return dict(zip(whose, np.split(order, starts[1:]), strict=True))


def _rows(folders: NDArray[Any], row_of: dict[int, int]) -> NDArray[np.int64]:
    lookup = np.full(max([*row_of, int(folders.max(initial=0))]) + 1, -1)
    for folder, row in row_of.items():
        lookup[folder] = row
    found: NDArray[np.int64] = lookup[folders]
    return found


def communication(trace: Trace) -> list[dict[str, Any]]:
    """Every collective in every group: calls, bytes and the time that ranks spent in it, over all of them."""
    sites = {site.id: site for site in trace.sites if site.kind is SiteKind.COLLECTIVE}
    calls = trace.table("calls", ("site", "call", "value", "aux", "duration_ns"))
    chosen = calls["call"] == CALL_CODE[Call.COLLECTIVE]
    told = []
    for number, site in sites.items():
        mine = chosen & (calls["site"] == number)
        told.append(
            {
                "operation": site.path.partition(":")[0],
                "group": site.op,
                "calls": int(calls["aux"][mine].sum()),
                "bytes": int(calls["value"][mine].sum()),
                "seconds": float(calls["duration_ns"][mine].sum()) / 1e9,
            }
        )
    return sorted(told, key=lambda one: -one["seconds"])
