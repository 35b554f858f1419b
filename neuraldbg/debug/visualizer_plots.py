"""What a plot holds, whatever it is drawn with: numbers already counted, pooled and named."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from neuraldbg.debug.visualizer_values import Counted, Floats, span

LOG_FROM: Final = 100.0  # positive values that span more are drawn by powers of ten
Row = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Distribution:
    """How often which values occur."""

    name: str
    title: str
    counted: Counted

    @property
    def note(self) -> str:
        return self.counted.told

    def columns(self) -> tuple[str, ...]:
        return ("from", "to", "count")

    def rows(self) -> Iterator[Row]:
        return bin_rows(self.counted)


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    x: Floats
    y: Floats


@dataclass(frozen=True, slots=True)
class Curves:
    """Values over steps."""

    name: str
    title: str
    lines: tuple[Line, ...]
    across: str = "step"
    up: str = "value"

    @property
    def log(self) -> bool:
        ends = span(np.concatenate([line.y for line in self.lines]))
        return ends is not None and ends[0] > 0 and ends[1] / LOG_FROM > ends[0]

    def heights(self, line: Line) -> Floats:
        """Where a line is drawn: its values, or their powers of ten."""
        if not self.log:
            return line.y
        drawn, finite = line.y.copy(), np.isfinite(line.y)
        drawn[finite] = np.log10(drawn[finite])
        return drawn

    @property
    def note(self) -> str:
        odd = [(line.label, int((~np.isfinite(line.y)).sum())) for line in self.lines]
        told = [f"{line.label}: {len(line.y):,} values" for line in self.lines]
        told += [f"{label}: {count:,} not finite" for label, count in odd if count]
        return "; ".join(told)

    def columns(self) -> tuple[str, ...]:
        return ("line", self.across, self.up)

    def rows(self) -> Iterator[Row]:
        for line in self.lines:
            for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True):
                yield line.label, x, y


@dataclass(frozen=True, slots=True)
class Heat:
    """A table as colours. `of` is how many rows and columns it had before those of a block became one cell."""

    name: str
    title: str
    cells: Floats
    labels: tuple[str, ...]  # of the rows; none where they have no names
    of: tuple[int, int]

    @property
    def note(self) -> str:
        held = "x".join(map(str, self.of))
        if self.cells.shape == self.of:
            return f"{held} values"
        return f"{held} values; a cell is the value of the largest magnitude of its block"

    def columns(self) -> tuple[str, ...]:
        return ("row", "column", "value")

    def rows(self) -> Iterator[Row]:
        for row, values in enumerate(self.cells.tolist()):
            for column, value in enumerate(values):
                yield self.labels[row] if self.labels else row, column, value


@dataclass(frozen=True, slots=True)
class Ridges:
    """Distributions one below the other, over one range."""

    name: str
    title: str
    ridges: tuple[tuple[str, Counted], ...]

    @property
    def note(self) -> str:
        odd = [(label, one.total - one.finite) for label, one in self.ridges]
        told = [f"{label}: {count:,} not finite" for label, count in odd if count]
        return "; ".join([f"{len(self.ridges)} distributions", *told])

    def columns(self) -> tuple[str, ...]:
        return ("label", "from", "to", "count")

    def rows(self) -> Iterator[Row]:
        for label, one in self.ridges:
            for row in bin_rows(one):
                yield label, *row


Plot = Distribution | Curves | Heat | Ridges


def bin_rows(counted: Counted) -> Iterator[Row]:
    """A bin each; what is not finite stands in rows of its own."""
    edges = counted.edges.tolist()
    yield from zip(edges[:-1], edges[1:], counted.counts.tolist(), strict=True)
    odd = ((math.nan, counted.nan), (math.inf, counted.plus_inf), (-math.inf, counted.minus_inf))
    yield from ((value, value, count) for value, count in odd if count)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from `low` to `high`; both ends where there is no room for one."""
    wide = high / most - low / most
    if not (math.isfinite(wide) and wide > 1e-300):
        return [low, high] if high > low else [low]
    power = 10.0 ** math.floor(math.log10(wide))
    step = next((power * part for part in (1, 2, 5) if power * part >= wide), power * 10)
    if not step or not math.isfinite(high / step):
        return [low, high]
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [at * step for at in range(first, last + 1)] if 0 <= last - first <= 2 * most else [low, high]
