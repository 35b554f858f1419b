"""Which parts of a data set a bounded cache holds: all, or where that is too much, the newest whole and of the older
ones every so many steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from neuraldbg.store.extras import is_installed
from neuraldbg.store.manifest import DataSet, Part
from neuraldbg.trace.tables import TABLES

SMALL: Final = ("facts", "scalars", "calls")  # as a rule, and no report goes without them
NEWEST_SHARE, OLDER_SHARE = 0.5, 0.25  # of the limit; the rest is room to grow without choosing again
WHOLE, NOT_AT_ALL = 1, 0
Known = Mapping[str, tuple[int, int]]  # file: checksum, and of which steps it was taken


@dataclass(frozen=True, slots=True)
class Choice:
    """Of every part which steps are wanted: every first (all), every k-th, or none."""

    every: Mapping[str, int]
    left_rows: int  # of parts that are not wanted at all
    thinned_rows: int  # that older parts have there, of which only every so many steps are wanted

    @property
    def apart(self) -> int:
        """Every how many steps of the older parts; 0 where there are none."""
        return max((k for k in self.every.values() if k > WHOLE), default=0)


Owned = tuple[int, str, Part]


def choose(data_set: DataSet, limit_bytes: int, known: Known | None = None, *, thins: bool | None = None) -> Choice:
    """What was chosen before stays, and what is new is added, until that is too much."""
    parts = [
        (rank, table, part)
        for rank, manifest in data_set.manifests.items()
        for table, part in manifest.parts()
        if table in TABLES or table in SMALL
    ]
    everything = {part.file: WHOLE for _, _, part in parts}
    before = {file: k for file, (_, k) in (known or {}).items()}
    for every in (everything, {file: before.get(file, WHOLE) for file in everything}):
        if sum(_bytes_of(table, part, every[part.file]) for _, table, part in parts) <= limit_bytes:
            return _choice(parts, every)
    return _choice(parts, _afresh(parts, limit_bytes, thins=is_installed("duckdb") if thins is None else thins))


def _afresh(parts: list[Owned], limit_bytes: int, *, thins: bool) -> dict[str, int]:
    small = sum(_bytes_of(table, part) for _, table, part in parts if table in SMALL)
    always = SMALL if small <= NEWEST_SHARE / 2 * limit_bytes else ("facts",)
    every = {part.file: WHOLE for _, table, part in parts if table in always}
    room = NEWEST_SHARE * limit_bytes - sum(_bytes_of(table, part) for _, table, part in parts if table in always)
    closed: set[tuple[int, str]] = set()
    older: list[Owned] = []
    rest = [one for one in parts if one[1] not in always]
    for rank, table, part in sorted(rest, key=lambda one: (-(one[2].step_max or 0), one[0], one[1], -one[2].first_row)):
        size = _bytes_of(table, part)
        if (rank, table) in closed or size > room:
            closed.add((rank, table))
            older.append((rank, table, part))
        else:
            room -= size
            every[part.file] = WHOLE
    apart = _apart(sum(_bytes_of(table, part) for _, table, part in older), OLDER_SHARE * limit_bytes) if thins else 0
    # calls count the steps: half of them would count half
    return {**every, **{part.file: NOT_AT_ALL if table == "calls" else apart for _, table, part in older}}


def _apart(size: float, room: float) -> int:
    """A power of two: a run that grows changes it seldom."""
    apart = 2
    while size / apart > room and apart < 2**40:
        apart *= 2
    return apart


def _choice(parts: list[Owned], every: Mapping[str, int]) -> Choice:
    left = sum(part.rows for _, _, part in parts if every[part.file] == NOT_AT_ALL)
    return Choice(every, left, sum(part.rows for _, _, part in parts if every[part.file] > WHOLE))


def _bytes_of(table: str, part: Part, every: int = WHOLE) -> float:
    whole = part.rows * TABLES[table].itemsize if table in TABLES else 4 * part.size_bytes
    return whole / every if every else 0
