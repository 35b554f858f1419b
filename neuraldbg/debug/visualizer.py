"""Plots of a debugging session: kept by name, drawn as a page, as pictures, as data or for TensorBoard."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from neuraldbg.debug.visualizer_plots import Curves, Distribution, Heat, Line, Plot, Ridges
from neuraldbg.debug.visualizer_values import as_numbers, counted, grid, points, pooled
from neuraldbg.errors import UsageError, nearest
from neuraldbg.surfaces.reports.session import write_atomic

MOST_CELLS: Final = 256  # rows and columns of a heatmap that are kept
PICTURES: Final = ("png", "svg", "pdf")
DATA: Final = ("csv", "json")
SCHEMES: Final = ("auto", "dark", "light")
Kept = TypeVar("Kept", Distribution, Curves, Heat, Ridges)


@dataclass(frozen=True, slots=True)
class VisualizationConfig:
    """Where plots go, and how they look. Sizes are in pixels, of letters in points."""

    output_directory: str | os.PathLike[str] = "./debug_plots"
    image_format: str = "png"
    plot_width: int = 800
    plot_height: int = 600
    font_size: int = 12
    color_scheme: str = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_format", _format(self.image_format, PICTURES))
        if self.color_scheme not in SCHEMES:
            raise UsageError(f"no color_scheme {self.color_scheme!r}: {', '.join(SCHEMES)}")
        for name in ("plot_width", "plot_height", "font_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be at least 1")


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Some plots as one file of HTML, already written."""

    path: Path
    names: tuple[str, ...]
    html: str

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)


class DebugVisualizer:
    """`plot_*` keep a plot under a name and give it back; nothing is written before `save` or `create_dashboard`."""

    def __init__(self, config: VisualizationConfig | None = None, **changes: Any) -> None:
        self.config = replace(config or VisualizationConfig(), **changes)
        self._plots: dict[str, Plot] = {}

    # -- plots ---------------------------------------------------------------------------------------------------------

    def plot_tensor_distribution(self, name: str, values: Any, bins: int = 50) -> Distribution:
        """How often which values occur, as `<name>_distribution`."""
        found = counted(as_numbers(values, f"the values of {name!r}"), bins)
        return self._kept(Distribution(f"{name}_distribution", f"Distribution of {name}", found))

    def plot_gradient_flow(self, layer: str, steps: Any, gradients: Any) -> Curves:
        """The gradient norms of a layer over the steps, as `<layer>_gradient_flow`."""
        line = Line(layer, *points(steps, gradients, f"the gradient flow of {layer!r}"))
        return self._kept(Curves(f"{layer}_gradient_flow", f"Gradient flow of {layer}", (line,), up="gradient norm"))

    def plot_loss(self, steps: Any, losses: Any, *, name: str = "loss", **others: Any) -> Curves:
        """The loss over the steps; `others` are curves beside it, such as `validation=`."""
        given = {name: losses, **others}
        lines = [Line(label, *points(steps, values, f"the curve {label!r}")) for label, values in given.items()]
        return self._kept(Curves(name, " and ".join(given), tuple(lines), up=name))

    def plot_heatmap(self, name: str, values: Any, rows: Sequence[object] | None = None) -> Heat:
        """A table as colours, as `<name>_heatmap`; `rows` names its rows."""
        table = grid(values, f"the values of {name!r}")
        if rows is not None and len(rows) != len(table):
            raise UsageError(f"the heatmap of {name!r} has {len(table)} rows and {len(rows)} names for them")
        cells = pooled(table, MOST_CELLS, MOST_CELLS)
        labels = tuple(map(str, rows)) if rows is not None and len(rows) == len(cells) else ()
        return self._kept(Heat(f"{name}_heatmap", f"Heatmap of {name}", cells, labels, (len(table), table.shape[1])))

    def plot_activation_ridges(
        self, name: str, activations: Mapping[str, Any] | Sequence[Any], bins: int = 50
    ) -> Ridges:
        """Distributions one below the other, as `<name>_activations`: of layers by name, or of steps in order."""
        given = activations.items() if isinstance(activations, Mapping) else enumerate(activations)
        found = [
            (str(label), counted(as_numbers(values, f"the activations {label!r}"), bins)) for label, values in given
        ]
        if not found:
            raise UsageError(f"the ridges of {name!r} need at least one distribution")
        return self._kept(Ridges(f"{name}_activations", f"Activations of {name}", tuple(found)))

    # -- what there is -------------------------------------------------------------------------------------------------

    def get_plot_names(self) -> list[str]:
        """In the order in which they were first made."""
        return list(self._plots)

    def get_plot(self, name: str) -> Plot:
        """UnknownPlot names the nearest."""
        if name not in self._plots:
            raise UnknownPlot(name, self._plots)
        return self._plots[name]

    def clear(self) -> None:
        """Forgets every plot; files stay."""
        self._plots.clear()

    # -- files ---------------------------------------------------------------------------------------------------------

    def create_dashboard(
        self, names: Sequence[str] | None = None, path: str | os.PathLike[str] | None = None
    ) -> Dashboard:
        """These plots (all of them) as one HTML file that loads nothing; `dashboard.html` in the output directory."""
        from neuraldbg.debug.visualizer_page import page

        wanted = self.get_plot_names() if names is None else [names] if isinstance(names, str) else list(names)
        if not wanted:
            raise UsageError("a dashboard needs a plot: plot_loss(), plot_tensor_distribution(), ... make one")
        text = page([self.get_plot(name) for name in wanted], "NeuralDbg plots", self._size, self.config.color_scheme)
        target = self._directory() / "dashboard.html" if path is None else Path(path)
        write_atomic(target, [text.encode()])
        return Dashboard(target, tuple(wanted), text)

    def save(self, name: str, path: str | os.PathLike[str] | None = None, *, format: str | None = None) -> Path:
        """One plot as a picture (png, svg, pdf; extra `plots`) or as data (csv, json). The ending of `path` decides
        where no format is given; without either it is `image_format`."""
        plot = self.get_plot(name)
        ending = Path(path).suffix[1:] if path is not None else ""
        form = _format(format or ending or self.config.image_format, (*PICTURES, *DATA))
        target = self._directory() / f"{_file_name(name)}.{form}" if path is None else Path(path)
        if form in PICTURES:
            from neuraldbg.debug.visualizer_images import image

            data = image(plot, form, self._size, dark=self.config.color_scheme == "dark")
        else:
            data = (_csv(plot) if form == "csv" else _json(plot)).encode()
        write_atomic(target, [data])
        return target

    def save_all(self, *, format: str | None = None) -> list[Path]:
        """Every plot as a file of its own in the output directory."""
        return [self.save(name, format=format) for name in self._plots]

    def export_tensorboard(self, directory: str | os.PathLike[str] | None = None) -> Path:
        """All plots as an event file that `tensorboard --logdir` reads."""
        from neuraldbg.debug.tensorboard import write_plots

        folder = self._directory() if directory is None else Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        return write_plots(list(self._plots.values()), folder)

    # -- parts ---------------------------------------------------------------------------------------------------------

    @property
    def _size(self) -> tuple[int, int, int]:
        return self.config.plot_width, self.config.plot_height, self.config.font_size

    def _directory(self) -> Path:
        folder = Path(self.config.output_directory)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"cannot write plots to {folder}: {error.strerror}; choose another output_directory"
            ) from error
        return folder

    def _kept(self, plot: Kept) -> Kept:
        self._plots[plot.name] = plot
        return plot


class UnknownPlot(UsageError):
    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.nearest = nearest(name, known)
        hint = (
            f"did you mean {' or '.join(map(repr, self.nearest))}?" if self.nearest else "get_plot_names() lists them"
        )
        super().__init__(f"no plot {name!r}; {hint}")


def _format(form: str, available: Sequence[str]) -> str:
    chosen = str(getattr(form, "value", form)).lower()
    if chosen not in available:
        near = nearest(chosen, available, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"available: {', '.join(available)}"
        raise UsageError(f"no format {form!r}; {hint}")
    return chosen


def _file_name(name: str) -> str:
    """Without what file systems refuse; names that would become the same keep apart."""
    safe = re.sub(r"[^\w.-]+", "_", name)[:120].lstrip(".") or "plot"
    return safe if safe == name else f"{safe}-{zlib.crc32(name.encode('utf-8', 'replace')):08x}"


def _csv(plot: Plot) -> str:
    page = io.StringIO()
    out = csv.writer(page, lineterminator="\n")
    out.writerow(plot.columns())
    out.writerows(plot.rows())
    return page.getvalue()


def _json(plot: Plot) -> str:
    """Strict JSON: NaN and infinities are the strings "nan", "inf", "-inf"."""
    from neuraldbg.analysis.findings import strict

    told = {"name": plot.name, "kind": type(plot).__name__.lower(), "title": plot.title, "note": plot.note}
    rows = [list(row) for row in plot.rows()]
    return json.dumps(strict({**told, "columns": list(plot.columns()), "rows": rows}), allow_nan=False) + "\n"
