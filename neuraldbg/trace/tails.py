"""The last values of a few series in every rank, read from the ends of their files: the same work however long a run
is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from neuraldbg.records import SiteKind

if TYPE_CHECKING:
    from neuraldbg.trace.merge import MergedRanks, RankView

Tail = dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]  # series -> steps, values


class Tails:
    """Remembers what it has read: a rank that has written nothing since costs nothing."""

    def __init__(self, ranks: MergedRanks) -> None:
        self._ranks = ranks
        self._kept: dict[int, tuple[Any, Tail]] = {}

    def of_each(self, series: Sequence[str], steps: int, until: int | None = None) -> dict[int, Tail]:
        """By folder: the values of the last `steps` steps up to one, in order."""
        numbers = {
            site.id: site.path
            for site in self._ranks.sites.values()
            if site.kind is SiteKind.SERIES and site.path in series
        }
        found = {}
        for folder, view in self._ranks.views.items():
            chunks = view.reader.chunks["scalars"]
            key = (chunks[-1].end_row if chunks else 0, tuple(numbers), steps, until)
            kept = self._kept.get(folder)
            if kept is None or kept[0] != key:
                kept = self._kept[folder] = (key, _tail(view, numbers, steps, until))
            found[folder] = kept[1]
        return found


def _tail(view: RankView, numbers: dict[int, str], steps: int, until: int | None) -> Tail:
    chunks = [one for one in view.reader.chunks["scalars"] if until is None or one.step_min <= until]
    if not chunks or not numbers:
        return {}
    last = chunks[-1].step_max if until is None else min(chunks[-1].step_max, until)
    since = last - steps
    wanted = []
    for chunk in reversed(chunks):
        wanted.append(chunk)
        if chunk.step_min <= since:
            break
    wanted.reverse()
    step, site, value = (
        np.concatenate([chunk.column(name) for chunk in wanted]) if len(wanted) > 1 else wanted[0].column(name)
        for name in ("step", "site", "value")
    )
    recent = (step > since) & (step <= last)
    step, value, site = step[recent], value[recent], view.to_global(site[recent])
    told: Tail = {}
    for number, path in numbers.items():
        mine = np.flatnonzero(site == number)
        if len(mine):
            told[path] = (step[mine], value[mine])
    return told
