"""Plots as text, for machines without a screen: Unicode or pure ASCII, never wider or taller than asked."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final

import numpy as np

from neuraldbg.analysis.series import buckets
from neuraldbg.debug import terminal_text as text
from neuraldbg.debug.terminal_curve import curve_lines
from neuraldbg.debug.visualizer_values import Counted, as_numbers, counted, flat, grid, points, pooled, share_of, span
from neuraldbg.errors import UsageError
from neuraldbg.surfaces.terminal.console import ascii_only as needs_ascii
from neuraldbg.surfaces.terminal.figures import DASH, figure
from neuraldbg.surfaces.terminal.figures import sparkline as line_of_blocks

LEAST_BAR: Final = 4
HUGE: Final = 1e290
WELL, ILL = 0.8, 0.5  # a score below is shown as a warning, as critical
COLOUR_OF: Final = {"healthy": "green", "warning": "yellow", "critical": "red"}
STATUSES: Final = ("healthy", "warning", "critical", "unknown")


class TerminalVisualizer:
    """Every method gives one string of at most `height` lines of at most `width` cells.

    `ascii_only` and `color` are what `stream` (stdout) can show, unless they are given.
    """

    def __init__(
        self,
        width: int = 80,
        height: int = 24,
        *,
        ascii_only: bool | None = None,
        color: bool | None = None,
        stream: IO[str] | None = None,
    ) -> None:
        if width < 1 or height < 1:
            raise UsageError(f"a plot needs at least 1 column and 1 line, not {width} x {height}")
        self.width, self.height = int(width), int(height)
        out = stream or sys.stdout
        self.ascii_only = needs_ascii(out) if ascii_only is None else ascii_only
        self.color = text.has_colours(out) if color is None else color

    # -- the original's names: always pure ASCII -----------------------------------------------------------------------

    def ascii_histogram(self, values: Any, bins: int = 10) -> str:
        """`histogram` in pure ASCII, without colours."""
        return self._in_ascii().histogram(values, bins)

    def ascii_line_plot(self, x: Any, y: Any, title: str = "") -> str:
        """`line_plot` in pure ASCII, without colours."""
        return self._in_ascii().line_plot(x, y, title)

    def _in_ascii(self) -> TerminalVisualizer:
        return TerminalVisualizer(self.width, self.height, ascii_only=True, color=False)

    # -- plots ---------------------------------------------------------------------------------------------------------

    def histogram(self, values: Any, bins: int = 10, title: str = "") -> str:
        """A bar for each bin, with its lower edge and its count. What is not finite is told below, and in no bin."""
        head = [self._plain(title)] if title and self.height > 2 else []
        room = self.height - len(head) - (1 if self.height > 1 else 0)
        found = counted(as_numbers(values, "a histogram"), min(bins, room))
        bars = self._bars(found) if found.finite else ["no finite values"]
        return self._lines([*head, *bars, found.told])

    def line_plot(self, x: Any, y: Any, title: str = "") -> str:
        """A curve over x. NaN is a gap with a `!`, infinities are `^` and `v` at the edge."""
        across, up = points(x, y, "a line plot")
        size = (self.width, self.height)
        return "\n".join(curve_lines(across, up, self._plain(title), size, self._marks))

    def sparkline(self, values: Any) -> str:
        """One line; of more values than columns the means of equal stretches."""
        given = flat(values, "a sparkline")
        if np.abs(given[np.isfinite(given)]).max(initial=0.0) > HUGE:
            given = given / len(given)  # only heights among each other are drawn, and sums must not be infinite
        return line_of_blocks(buckets(given, self.width), ascii_only=self.ascii_only)

    def heatmap(self, values: Any, rows: Sequence[object] | None = None, title: str = "") -> str:
        """Rows and columns as shades, from the smallest finite value to the largest; `!` is NaN, `^` and `v` infinite.

        Of more cells than there is room for the value of the largest magnitude.
        """
        table = grid(values, "a heatmap")
        if rows is not None and len(rows) != len(table):
            raise UsageError(f"a heatmap of {len(table)} rows has {len(rows)} names")
        head = [self._plain(title)] if title and self.height > 2 else []
        room = self.height - len(head) - (1 if self.height > 1 else 0)
        if not table.size:
            return self._lines([*head, "no values"])
        return self._lines([*head, *self._shaded(table, rows, room)])

    def layer_health(self, health: Mapping[str, Any], title: str = "") -> str:
        """A bar for each layer: a score from 0 to 1, a status (`Healthy`, `Warning`, `Critical`, `Unknown`), or both as
        a pair. Of more layers than lines those that are worst."""
        told = [(self._plain(name), *_health(name, given)) for name, given in health.items()]
        head = [self._plain(title)] if title and self.height > 1 else []
        room = self.height - len(head)
        if not told:
            return self._lines([*head, "no layers"])
        if len(told) > room:
            worst = sorted(range(len(told)), key=lambda at: (_badness(told[at]), at))[: max(1, room - 1)]
            rest = len(told) - len(worst)
            told = [told[at] for at in sorted(worst)]
            return self._lines([*head, *self._health_bars(told), f"and {rest} layers that are no worse"])
        return self._lines([*head, *self._health_bars(told)])

    # -- parts ---------------------------------------------------------------------------------------------------------

    @property
    def _marks(self) -> text.Marks:
        return text.ASCII if self.ascii_only else text.UNICODE

    def _plain(self, said: object) -> str:
        return text.plain(said, ascii_only=self.ascii_only)

    def _lines(self, lines: Sequence[str]) -> str:
        """As many as there is room for; what has colours was made to fit before."""
        return "\n".join(line if "\x1b" in line else text.fitted(line, self.width) for line in lines[: self.height])

    def _bars(self, found: Counted) -> list[str]:
        names = [figure(float(edge)) for edge in found.edges[:-1]]
        numbers = [f"{count:,}" for count in found.counts.tolist()]
        left, right = max(map(len, names)) + 2, max(map(len, numbers)) + 1
        left = left if self.width >= left + LEAST_BAR else 0
        right = right if self.width >= left + right + LEAST_BAR else 0
        room, most = self.width - left - right, int(found.counts.max())
        drawn = []
        for name, number, count in zip(names, numbers, found.counts.tolist(), strict=True):
            line = text.bar(count / most, room, self._marks)
            start = f"{name:>{left - 2}} {self._marks.wall}" if left else ""
            space = " " * (room - len(line)) if right else ""
            drawn.append(start + self._painted(line, "blue") + space + (f"{number:>{right}}" if right else ""))
        return drawn

    def _shaded(self, table: Any, rows: Sequence[object] | None, room: int) -> list[str]:
        """The lines of a heatmap, and what they go over."""
        named = rows is not None and len(rows) <= room
        names = [self._plain(name) for name in rows or ()] if named else []
        left = min(max(map(text.cells, names), default=0), self.width // 3)
        left = left + 1 if left else 0
        cells = pooled(table, max(1, room), max(1, self.width - left))
        ends = span(cells)
        drawn = []
        for at, row in enumerate(share_of(cells, *(ends or (0.0, 0.0))).tolist()):
            line = "".join(_shade(share, self._marks.shades) for share in row)
            drawn.append((text.padded(names[at], left - 1) + " " if left else "") + line)
        return [*drawn, "no finite values" if ends is None else f"{figure(ends[0])} to {figure(ends[1])}"]

    def _health_bars(self, told: Sequence[tuple[str, float | None, str]]) -> list[str]:
        words = [f"{DASH if score is None else f'{score:.2f}'} {status}" for _, score, status in told]
        right = max(map(len, words)) + 1
        left = min(max(text.cells(name) for name, _, _ in told), max(1, (self.width - right) // 2)) + 1
        room = self.width - left - right
        if room < LEAST_BAR:
            return [text.fitted(f"{word} {name}", self.width) for (name, _, _), word in zip(told, words, strict=True)]
        drawn = []
        for (name, score, status), word in zip(told, words, strict=True):
            line = text.bar(score or 0.0, room, self._marks)
            rest = (self._marks.rest if score is not None else " ") * (room - len(line))
            colour = COLOUR_OF.get(status)
            line, word = (self._painted(each, colour) for each in (line, word))
            drawn.append(f"{text.padded(name, left - 1)} {line}{rest} {word}")
        return drawn

    def _painted(self, said: str, colour: str | None) -> str:
        return said if colour is None else text.painted(said, colour, colours=self.color)


def _shade(share: float, shades: str) -> str:
    if share != share:
        return "!"
    if share in (float("inf"), float("-inf")):
        return "^" if share > 0 else "v"
    return shades[min(len(shades) - 1, int(share * len(shades)))]


def _health(layer: object, given: Any) -> tuple[float | None, str]:
    """Score and status. A status that is not given is that of the score."""
    score, status = given if isinstance(given, tuple) else (None, given) if _is_status(given) else (given, None)
    if score is not None:
        try:
            score = float(score)
        except (TypeError, ValueError):
            raise UsageError(f"the health of {layer!r} is a score from 0 to 1 or a status, not {given!r}") from None
        if not 0 <= score <= 1:
            raise UsageError(f"the health of {layer!r} is {score}; a score goes from 0 to 1")
    if status is None:
        word = "unknown" if score is None else "healthy" if score >= WELL else "warning" if score >= ILL else "critical"
    else:
        word = _word(status)
    if word not in STATUSES:
        raise UsageError(f"no status {word!r} for {layer!r}: {', '.join(STATUSES)}")
    return score, word


def _is_status(given: Any) -> bool:
    return isinstance(given, str) or hasattr(given, "name")


def _word(status: Any) -> str:
    return str(getattr(status, "name", status)).lower()


def _badness(told: tuple[str, float | None, str]) -> tuple[int, float]:
    order = {"critical": 0, "warning": 1, "unknown": 2, "healthy": 3}
    return order[told[2]], 1.0 if told[1] is None else told[1]
