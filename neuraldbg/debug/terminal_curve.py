"""A curve in characters: braille dots, or stars where there is only ASCII."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from neuraldbg.analysis.series import downsample
from neuraldbg.debug.terminal_text import DOTS, Marks, fitted
from neuraldbg.debug.visualizer_values import Floats, share_of, span, step_text
from neuraldbg.surfaces.terminal.figures import figure

LEAST_CURVE = 8  # columns that numbers beside it must leave
PEN = "*"


@dataclass
class Canvas:
    """Dots on a grid of characters, from the top left. Signs stand over dots."""

    columns: int
    rows: int
    marks: Marks
    _dots: dict[tuple[int, int], int] = field(default_factory=dict)
    _signs: dict[tuple[int, int], str] = field(default_factory=dict)

    @property
    def fine(self) -> tuple[int, int]:
        """How many dots there are room for, across and down."""
        return (self.columns * 2, self.rows * 4) if self.marks.braille else (self.columns, self.rows)

    def dot(self, x: int, y: int) -> None:
        if self.marks.braille:
            place = (x // 2, y // 4)
            self._dots[place] = self._dots.get(place, 0) | DOTS[x % 2][y % 4]
        else:
            self._dots[x, y] = 1

    def sign(self, x: int, row: int, letter: str) -> None:
        self._signs[x // 2 if self.marks.braille else x, row] = letter

    def stroke(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        (x0, y0), (x1, y1) = start, end
        length = max(abs(x1 - x0), abs(y1 - y0), 1)
        for at in range(length + 1):
            self.dot(round(x0 + (x1 - x0) * at / length), round(y0 + (y1 - y0) * at / length))

    def lines(self) -> list[str]:
        return ["".join(self._letter(x, y) for x in range(self.columns)) for y in range(self.rows)]

    def _letter(self, x: int, y: int) -> str:
        if (x, y) in self._signs:
            return self._signs[x, y]
        dots = self._dots.get((x, y), 0)
        if not dots:
            return " "
        return chr(0x2800 + dots) if self.marks.braille else PEN


def curve_lines(x: Floats, y: Floats, title: str, size: tuple[int, int], marks: Marks) -> list[str]:
    """At most `size` cells wide and lines high: `^` and `v` mark infinities, `!` a NaN."""
    width, height = size
    known = np.isfinite(x)
    x, y = x[known], y[known]
    order = np.argsort(x, kind="stable")
    x, y = downsample(x[order], y[order], limit=8 * width)
    ends = span(y)
    if ends is None:
        return [fitted(line, width) for line in (title, "no finite values") if line][-height:]
    names = [figure(ends[1]), figure(ends[0])]
    around = _Frame.of(width, height, bool(title), max(map(len, names)))
    canvas = Canvas(around.columns, around.rows, marks)
    _draw(canvas, x, y, ends)
    drawn = canvas.lines()
    if around.label:
        beside = [names[0], *[""] * (around.rows - 2), *names[1:]][: around.rows]
        drawn = [f"{name:>{around.label}} {marks.wall}{line}" for name, line in zip(beside, drawn, strict=True)]
    lines = [fitted(title, width)] if around.title else []
    lines += [line.rstrip() for line in drawn]
    gutter = " " * (around.label + 1) + marks.corner if around.label else ""
    if around.floor:
        lines.append(gutter + marks.floor * around.columns)
    if around.feet:
        lines.append(" " * len(gutter) + _between(step_text(x[0]), step_text(x[-1]), around.columns))
    return lines


@dataclass(frozen=True, slots=True)
class _Frame:
    """What there is room for around the curve."""

    columns: int
    rows: int
    title: bool
    label: int  # characters of the numbers beside it; 0: none
    floor: bool
    feet: bool

    @classmethod
    def of(cls, width: int, height: int, titled: bool, label: int) -> _Frame:
        label = label if width >= label + 2 + LEAST_CURVE else 0
        floor, feet, title = height >= 5, height >= 6, titled and height >= 2
        columns = width - (label + 2 if label else 0)
        return cls(columns, height - title - floor - feet, title, label, floor, feet)


def _draw(canvas: Canvas, x: Floats, y: Floats, ends: tuple[float, float]) -> None:
    wide, tall = canvas.fine
    across = np.rint(share_of(x, float(x[0]), float(x[-1])) * (wide - 1)).astype(int).tolist()
    up = share_of(y, *ends)
    before: tuple[int, int] | None = None
    for at, share in zip(across, up.tolist(), strict=True):
        if math.isfinite(share):
            here = (at, round((1 - share) * (tall - 1)))
            canvas.stroke(before or here, here)
            before = here
            continue
        before = None
        row, letter = (0, "^") if share > 0 else (canvas.rows - 1, "!" if math.isnan(share) else "v")
        canvas.sign(at, row, letter)


def _between(left: str, right: str, width: int) -> str:
    room = width - len(left) - len(right)
    return f"{left}{' ' * room}{right}" if room > 0 else fitted(left, width)
