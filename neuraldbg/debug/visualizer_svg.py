"""A plot as SVG for a page: colours come from the page's theme, pictures of tables lie inside as PNG."""

from __future__ import annotations

import base64
import json
import math
import struct
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import numpy as np

from neuraldbg.analysis.series import downsample
from neuraldbg.debug.visualizer_plots import Curves, Distribution, Heat, Line, Plot, Ridges, ticks
from neuraldbg.debug.visualizer_values import Counted, Floats, share_of, span, step_text
from neuraldbg.surfaces.terminal.figures import figure

MOST_POINTS: Final = 2_000  # of a line
MOST_NAMED: Final = 40  # rows of a table whose names are written
MOST_DOTS: Final = 60  # points that are marked each
MOST_POWER: Final = math.log10(sys.float_info.max)
SERIES: Final = 6  # colours of lines; then they begin again
STOPS: Final = ((0.05, 0.1, 0.35), (0.1, 0.45, 0.6), (0.35, 0.7, 0.5), (0.95, 0.9, 0.35))  # smallest to largest value
NAN, PLUS_INF, MINUS_INF = (0.9, 0.15, 0.3), (1.0, 0.45, 0.75), (0.5, 0.35, 0.85)


@dataclass(frozen=True, slots=True)
class Paper:
    """Where the plot is on its sheet."""

    width: int
    height: int
    font: int

    @property
    def left(self) -> float:
        return self.font * 6.5

    @property
    def right(self) -> float:
        return self.width - self.font * 1.5

    @property
    def top(self) -> float:
        return self.font * 1.0

    @property
    def bottom(self) -> float:
        return self.height - self.font * 3.0

    def x(self, share: float) -> float:
        return self.left + share * (self.right - self.left)

    def y(self, share: float) -> float:
        return self.bottom - share * (self.bottom - self.top)


def svg(plot: Plot, width: int, height: int, font: int) -> str:
    paper = Paper(width, height, font)
    drawn: dict[type, Callable[..., str]] = {Distribution: _bars, Curves: _curves, Heat: _heat, Ridges: _ridges}
    body = drawn[type(plot)](plot, paper)
    title = escape(f"{plot.title}: {plot.note}")
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{title}" font-size="{font}">'
        f"{body or _nothing(paper)}</svg>"
    )


def _nothing(paper: Paper) -> str:
    return _text(paper.x(0.5), paper.y(0.5), "no finite values", "middle")


def _text(x: float, y: float, said: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'


def _axes(paper: Paper, across: tuple[float, float], up: tuple[float, float] | None, *, log: bool = False) -> str:
    """The frame with round numbers; `up` in powers of ten where `log`."""
    parts = [f'<path class="axis" d="M{paper.left:.1f} {paper.top:.1f}V{paper.bottom:.1f}H{paper.right:.1f}"/>']
    for value in ticks(*across):
        x = paper.x(_share(value, *across))
        parts.append(_text(x, paper.bottom + paper.font * 1.4, step_text(value), "middle"))
    for value in _heights(up, log=log) if up is not None else ():
        assert up is not None
        y = paper.y(_share(value, *up))
        said = figure(_power_of_ten(value)) if log else figure(value)
        parts.append(f'<path class="grid" d="M{paper.left:.1f} {y:.1f}H{paper.right:.1f}"/>')
        parts.append(_text(paper.left - paper.font * 0.4, y + paper.font * 0.35, said, "end"))
    return "".join(parts)


def _power_of_ten(value: float) -> float:
    """Of the logarithm of a finite number, which rounding may have put above the largest."""
    return float(10.0**value) if value < MOST_POWER else sys.float_info.max


def _heights(up: tuple[float, float], *, log: bool) -> list[float]:
    """Round numbers; of powers of ten whole ones, where there are two."""
    found = ticks(*up)
    whole = [float(power) for power in range(math.ceil(up[0]), math.floor(up[1]) + 1)] if log else []
    return whole if 2 <= len(whole) <= len(found) + 3 else found


def _share(value: float, low: float, high: float) -> float:
    return float(share_of(np.array([value]), low, high)[0])


# -- distributions -----------------------------------------------------------------------------------------------------


def _bars(plot: Distribution, paper: Paper) -> str:
    found = plot.counted
    if not found.finite:
        return ""
    ends, most = (float(found.edges[0]), float(found.edges[-1])), int(found.counts.max())
    parts = [_axes(paper, ends, (0.0, float(most)))]
    count = len(found.counts)
    for at, number in enumerate(found.counts.tolist()):
        x, y = paper.x(at / count), paper.y(number / most)
        wide = (paper.right - paper.left) / count
        tip = f"{figure(float(found.edges[at]))} to {figure(float(found.edges[at + 1]))}: {number:,}"
        parts.append(
            f'<rect class="bar" x="{x + 0.5:.2f}" y="{y:.2f}" width="{max(0.5, wide - 1):.2f}" '
            f'height="{paper.bottom - y:.2f}"><title>{tip}</title></rect>'
        )
    return "".join(parts)


def _ridges(plot: Ridges, paper: Paper) -> str:
    ends = span(np.concatenate([one.edges for _, one in plot.ridges]))
    if ends is None:
        return ""
    parts = [_axes(paper, ends, None)]
    each = (paper.bottom - paper.top) / len(plot.ridges)
    for at, (label, one) in enumerate(plot.ridges):
        foot = paper.top + each * (at + 1)
        parts.append(_text(paper.left - paper.font * 0.4, foot - 2, _short(label), "end"))
        if one.finite:
            tip = f"<title>{escape(label)}: {escape(one.told)}</title>"
            path = _ridge(one, ends, foot, min(each * 1.6, foot - paper.top), paper)
            parts.append(f'<path class="ridge" d="{path}">{tip}</path>')
    return "".join(parts)


def _ridge(one: Counted, ends: tuple[float, float], foot: float, tall: float, paper: Paper) -> str:
    """Every ridge has its own height: shapes are compared, not counts."""
    middles = one.edges[:-1] / 2 + one.edges[1:] / 2
    xs = share_of(np.concatenate([one.edges[:1], middles, one.edges[-1:]]), *ends)
    ys = np.concatenate([[0.0], one.counts / one.counts.max(), [0.0]])
    points = " ".join(f"L{paper.x(x):.2f} {foot - y * tall:.2f}" for x, y in zip(xs.tolist(), ys.tolist(), strict=True))
    return f"M{points[1:]}Z"


def _short(label: str) -> str:
    return label if len(label) <= 12 else f"..{label[-10:]}"


# -- curves ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scale:
    """What the sheet goes over."""

    across: tuple[float, float]
    up: tuple[float, float]  # powers of ten where `log`
    log: bool


def _curves(plot: Curves, paper: Paper) -> str:
    across = span(np.concatenate([line.x for line in plot.lines]))
    up = span(np.concatenate([plot.heights(line) for line in plot.lines]))
    if across is None or up is None:
        return ""
    scale = _Scale(across, up, plot.log)
    parts = [_axes(paper, across, up, log=scale.log)]
    for at, line in enumerate(plot.lines):
        parts.append(_line(line, plot.heights(line), at % SERIES, scale, paper))
        if len(plot.lines) > 1:
            y = paper.top + paper.font * (1 + 1.3 * at)
            parts.append(f'<g class="line{at % SERIES}">{_text(paper.right, y, line.label, "end")}</g>')
    return "".join([*parts, '<path class="hair"/>', '<text class="read"></text>'])


def _line(line: Line, heights: Floats, colour: int, scale: _Scale, paper: Paper) -> str:
    known = np.isfinite(line.x)
    order = np.argsort(line.x[known], kind="stable")
    x, y = line.x[known][order], heights[known][order]
    steps, shown = downsample(x, y, limit=MOST_POINTS)
    across, up = share_of(steps, *scale.across).tolist(), share_of(shown, *scale.up).tolist()
    path, marks, points, joined = [], [], [], False
    for at, (a, b) in enumerate(zip(across, up, strict=True)):
        px, step = paper.x(a), step_text(float(steps[at]))
        if math.isfinite(b):
            path.append(f"{'L' if joined else 'M'}{px:.2f} {paper.y(b):.2f}")
            value = _power_of_ten(float(shown[at])) if scale.log else float(shown[at])
            points.append([round(px, 2), round(paper.y(b), 2), step, figure(value)])
            joined = True
        else:
            marks.append(_odd(px, b, step, paper))
            joined = False
    held = escape(json.dumps([line.label, points], separators=(",", ":")))
    dots = _dots(points, paper.font / 5) if len(points) <= MOST_DOTS else ""
    return f'<g class="line{colour}" data-line="{held}"><path d="{"".join(path)}"/>{dots}</g>{"".join(marks)}'


def _dots(points: Sequence[Sequence[object]], radius: float) -> str:
    return "".join(f'<circle cx="{x}" cy="{y}" r="{radius:.1f}"/>' for x, y, *_ in points)


def _odd(x: float, value: float, step: str, paper: Paper) -> str:
    """A value that is not finite: where it is, and which."""
    if math.isnan(value):
        word, y, sign = "NaN", paper.bottom, "!"
    else:
        word, y, sign = ("Inf", paper.top, "\u25b2") if value > 0 else ("-Inf", paper.bottom, "\u25bc")
    tip = f"<title>step {step}: {word}</title>"
    return f'<text class="odd" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{sign}{tip}</text>'


# -- tables ------------------------------------------------------------------------------------------------------------


def _heat(plot: Heat, paper: Paper) -> str:
    ends = span(plot.cells)
    if not plot.cells.size or (ends is None and np.isnan(plot.cells).all()):
        return ""
    rows = len(plot.cells)
    picture = base64.b64encode(png(colours(plot.cells))).decode()
    parts = [
        f'<image x="{paper.left}" y="{paper.top}" width="{paper.right - paper.left}" '
        f'height="{paper.bottom - paper.top}" preserveAspectRatio="none" class="cells" '
        f'href="data:image/png;base64,{picture}"/>'
    ]
    for at in range(0, rows, -(-rows // MOST_NAMED)):
        name = _short(plot.labels[at]) if plot.labels else f"{at * plot.of[0] // rows}"
        y = paper.y(1 - (at + 0.5) / rows) + paper.font * 0.35
        parts.append(_text(paper.left - paper.font * 0.4, y, name, "end"))
    foot = paper.bottom + paper.font * 1.4
    parts += [_text(paper.left, foot, "0"), _text(paper.right, foot, f"{plot.of[1] - 1}", "end")]
    told = "no finite values" if ends is None else f"dark {figure(ends[0])} to light {figure(ends[1])}"
    parts.append(_text(paper.x(0.5), foot + paper.font * 1.2, f"{told}; red NaN, pink Inf, violet -Inf", "middle"))
    return "".join(parts)


def colours(cells: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Rows x columns x RGB. What is not finite has colours of its own."""
    ends = span(cells) or (0.0, 0.0)
    share = np.where(np.isfinite(cells), share_of(cells, *ends), 0.0)
    at = np.linspace(0, 1, len(STOPS))
    found = np.stack([np.interp(share, at, [stop[part] for stop in STOPS]) for part in range(3)], axis=-1)
    for mask, colour in ((np.isnan(cells), NAN), (np.isposinf(cells), PLUS_INF), (np.isneginf(cells), MINUS_INF)):
        found[mask] = colour
    return np.rint(found * 255).astype(np.uint8)


def png(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    """Rows x columns x RGB as a PNG file."""
    height, width, _ = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(rows.tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
