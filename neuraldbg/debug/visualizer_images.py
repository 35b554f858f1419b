"""A plot as a picture, by matplotlib: no window, no backend and no state of pyplot is touched."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from neuraldbg.debug.visualizer_plots import Curves, Distribution, Heat, Plot, Ridges
from neuraldbg.debug.visualizer_svg import colours
from neuraldbg.debug.visualizer_values import share_of, span
from neuraldbg.errors import UsageError
from neuraldbg.surfaces.terminal.figures import figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS: Final = ("png", "svg", "pdf")
DPI: Final = 100
DARK: Final = {"face": "#12161d", "ink": "#dfe5ee"}
LIGHT: Final = {"face": "#ffffff", "ink": "#1c2330"}
UNDATED: Final[dict[str, dict[str, Any]]] = {  # the same plot twice is the same file
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def image(plot: Plot, form: str, size: tuple[int, int, int], *, dark: bool) -> bytes:
    """`size`: width and height in pixels, and of letters in points."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            f"pictures are drawn by matplotlib, which cannot be imported ({error}): "
            "pip install 'neural-debugger[plots]'; create_dashboard() and save(name, format='csv') need none"
        ) from None
    width, height, font = size
    look = DARK if dark else LIGHT
    with rc_context({"font.size": font, "svg.hashsalt": plot.name, "text.usetex": False, "text.parse_math": False}):
        drawn = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, layout="constrained", facecolor=look["face"])
        axes = drawn.add_subplot(facecolor=look["face"])
        out = io.BytesIO()
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                _DRAWN_BY[type(plot)](plot, axes)
                axes.set_title(plot.title)
                _ink(axes, look["ink"])
                drawn.savefig(out, format=form, metadata=UNDATED[form])
        except (ValueError, OverflowError) as error:  # a range beyond the largest number
            raise UsageError(
                f"matplotlib cannot draw {plot.name!r} ({error}); create_dashboard() and save(name, format='csv') can"
            ) from None
    return out.getvalue()


def _ink(axes: Axes, colour: str) -> None:
    axes.tick_params(colors=colour)
    for each in (axes.title, axes.xaxis.label, axes.yaxis.label):
        each.set_color(colour)
    for spine in axes.spines.values():
        spine.set_color(colour)


def _distribution(plot: Distribution, axes: Axes) -> None:
    found = plot.counted
    if found.finite:
        wide = np.diff(found.edges)
        axes.bar(found.edges[:-1], found.counts, width=np.where(wide > 0, wide, 1.0), align="edge")
    axes.set_xlabel(plot.note)
    axes.set_ylabel("count")


def _curves(plot: Curves, axes: Axes) -> None:
    for line in plot.lines:
        order = np.argsort(line.x, kind="stable")
        shown = np.where(np.isfinite(line.y), line.y, np.nan)[order]  # a gap
        axes.plot(line.x[order], shown, label=line.label, marker="." if len(shown) <= 60 else None)
    if plot.log:
        axes.set_yscale("log")
    if len(plot.lines) > 1:
        axes.legend()
    axes.set_xlabel(f"{plot.across} ({plot.note})")
    axes.set_ylabel(plot.up)


def _heat(plot: Heat, axes: Axes) -> None:
    if plot.cells.size:
        edges = (-0.5, plot.of[1] - 0.5, len(plot.cells) - 0.5, -0.5)
        axes.imshow(colours(plot.cells), aspect="auto", interpolation="nearest", extent=edges)
    if plot.labels and len(plot.labels) <= 40:
        axes.set_yticks(range(len(plot.labels)), plot.labels)
    ends = span(plot.cells)
    told = "no finite values" if ends is None else f"dark {figure(ends[0])} to light {figure(ends[1])}"
    axes.set_xlabel(f"{told}\n{plot.note}")


def _ridges(plot: Ridges, axes: Axes) -> None:
    names = [label for label, _ in plot.ridges]
    ends = span(np.concatenate([np.empty(0), *(one.edges for _, one in plot.ridges)]))
    for at, (_, one) in enumerate(plot.ridges):
        foot = len(names) - 1 - at
        if one.finite:
            middles = one.edges[:-1] / 2 + one.edges[1:] / 2
            axes.fill_between(middles, foot, foot + 1.5 * one.counts / one.counts.max(), alpha=0.5, zorder=at)
    axes.set_yticks(range(len(names)), names[::-1])
    if ends is not None and np.isfinite(share_of(np.array(ends), *ends)).all() and ends[1] > ends[0]:
        axes.set_xlim(*ends)
    axes.set_xlabel(plot.note)


_DRAWN_BY: Final[dict[type, Callable[[Any, Axes], None]]] = {
    Distribution: _distribution,
    Curves: _curves,
    Heat: _heat,
    Ridges: _ridges,
}
