"""Where ranks that should hold the same numbers do not: hashes that each took by itself, compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neuraldbg.analysis.ranks import processes
from neuraldbg.records import Call
from neuraldbg.trace.tables import CALL_CODE

if TYPE_CHECKING:
    from neuraldbg.trace import Trace


@dataclass(frozen=True, slots=True)
class Difference:
    """The first update before which ranks differed, and what is known around it."""

    step: int
    agreed: int | None  # the last compared update before, at which they did not
    site: int
    sites: int  # that differed there, of those compared
    compared: int
    ranks: tuple[int, ...]  # that differ from most of the others; with two ranks, all but the first
    lasting: bool  # still so at the last comparison


def first_difference(trace: Trace, call: Call) -> Difference | None:
    """None where everything that was compared agrees, or nothing could be compared."""
    group = processes(trace)
    rank_of = {one.folder: rank for rank, one in group.items()}
    table = trace.table("calls", ("step", "site", "call", "digest", "rank"))
    chosen = (table["call"] == CALL_CODE[call]) & np.isin(table["rank"], list(rank_of))
    if len(group) < 2 or not chosen.any():
        return None
    step, site, digest, folder = (table[name][chosen] for name in ("step", "site", "digest", "rank"))
    order = np.lexsort((folder, site, step))
    step, site, digest, folder = step[order], site[order], digest[order], folder[order]
    starts = np.flatnonzero(np.diff(step, prepend=-1) | np.diff(site, prepend=-1))
    low, high = np.minimum.reduceat(digest, starts), np.maximum.reduceat(digest, starts)
    several = np.diff(np.append(starts, len(step))) > 1
    bad, of_step = (low != high) & several, step[starts]
    if not bad.any():
        return None
    first = int(of_step[bad][0])
    here = bad & (of_step == first)
    at = int(np.flatnonzero(here)[0])
    end = int(starts[at + 1]) if at + 1 < len(starts) else len(step)
    rows = slice(int(starts[at]), end)
    before = of_step[several & (of_step < first)]
    return Difference(
        step=first,
        agreed=int(before.max()) if len(before) else None,
        site=int(site[starts[at]]),
        sites=int(here.sum()),
        compared=int((several & (of_step == first)).sum()),
        ranks=_odd_ones([rank_of[int(each)] for each in folder[rows]], digest[rows].tolist()),
        lasting=bool(bad[of_step == of_step[several].max()].any()),
    )


def _odd_ones(ranks: list[int], digests: list[int]) -> tuple[int, ...]:
    """Against the digest that most ranks have; where none is in the majority, against the first rank's."""
    values, counts = np.unique(np.array(digests, np.uint64), return_counts=True)
    first = digests[ranks.index(min(ranks))]
    most = int(values[counts.argmax()]) if (counts == counts.max()).sum() == 1 else first
    return tuple(sorted(rank for rank, digest in zip(ranks, digests, strict=True) if digest != most))
