"""The table of layers: one line each, as wide as the terminal and no wider."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neuraldbg.surfaces.terminal.figures import DASH, figure, percent, quantity, shortened

if TYPE_CHECKING:
    from rich.text import Text

    from neuraldbg.analysis.layers import LayerSummary

Counts = Mapping[str, int]  # anomalies by path of a layer
MARK = "! "
NARROWEST_PATH, NARROWEST_TYPE = 12, 6


@dataclass(frozen=True, slots=True)
class Column:
    """A number of a layer: its two header lines, how to write it, and the groups of a focus that ask for it."""

    header: tuple[str, str]
    text: Callable[[LayerSummary, Counts], str]
    groups: frozenset[str]
    usual: bool = True  # shown without a focus


def columns_for(focus: Collection[str]) -> list[Column]:
    return [one for one in COLUMNS if (one.groups & set(focus) if focus else one.usual)]


def table_lines(
    layers: Sequence[LayerSummary], width: int, *, focus: Collection[str] = (), anomalies: Counts | None = None
) -> list[Text]:
    """Two header lines and one line per layer, marked where a NaN or an Inf was seen."""
    from rich.text import Text

    marked = any(layer.first_bad_step is not None for layer in layers)
    columns = columns_for(focus)
    headers = [["", "", *(one.header[0] for one in columns)], ["Layer", "Type", *(one.header[1] for one in columns)]]
    cells = [_cells(layer, columns, anomalies or {}, marked=marked) for layer in layers]
    widths = _widths([*headers, *cells], width)
    lines = [Text(_line(header, widths), style="bold") for header in headers]
    for layer, row in zip(layers, cells, strict=True):
        line = Text(_line(row, widths))
        if layer.first_bad_step is not None:
            line.stylize("bold red", 0, widths[0])
        lines.append(line)
    return lines


def _cells(layer: LayerSummary, columns: Sequence[Column], anomalies: Counts, *, marked: bool) -> list[str]:
    bad = (MARK if layer.first_bad_step is not None else "  ") if marked else ""
    return [f"{bad}{layer.path}", layer.type or DASH, *(one.text(layer, anomalies) for one in columns)]


def _activation_mean(layer: LayerSummary) -> str:
    activation = layer.stats.get("activation")
    return (_word(activation) or figure(activation.mean)) if activation else DASH


def _activation_std(layer: LayerSummary) -> str:
    activation = layer.stats.get("activation")
    return figure(activation.std) if activation else DASH


def _zeros(layer: LayerSummary) -> str:
    activation = layer.stats.get("activation")
    return percent(activation.zero_ratio) if activation and activation.zero_ratio is not None else DASH


def _gradient(layer: LayerSummary) -> str:
    """Of the layer's parameters; of its output where it has none."""
    stats = layer.stats.get("parameter_gradient") or layer.stats.get("gradient")
    if stats is None:
        return DASH
    return _word(stats) or figure(layer.grad_l2 if layer.grad_l2 is not None else stats.l2)


def _word(stats: object) -> str | None:
    return "NaN" if getattr(stats, "nan_count", 0) else "Inf" if getattr(stats, "inf_count", 0) else None


COLUMNS = (
    Column(("", "Params"), lambda layer, _: quantity(layer.params) if layer.params else DASH, frozenset({"gradients"})),
    Column(("Activ.", "mean"), lambda layer, _: _activation_mean(layer), frozenset({"dead_neurons", "anomalies"})),
    Column(("Activ.", "std"), lambda layer, _: _activation_std(layer), frozenset({"dead_neurons", "anomalies"})),
    Column(("Activ.", "zeros"), lambda layer, _: _zeros(layer), frozenset({"dead_neurons"}), usual=False),
    Column(("Grad.", "norm"), lambda layer, _: _gradient(layer), frozenset({"gradients", "anomalies"})),
    Column(("Update", "/weight"), lambda layer, _: figure(layer.update_ratio), frozenset({"gradients", "anomalies"})),
    Column(("Fwd", "ms"), lambda layer, _: figure(layer.forward_ms), frozenset({"anomalies"})),
    Column(("Bwd", "ms"), lambda layer, _: figure(layer.backward_ms), frozenset()),
    Column(
        ("Ano-", "malies"),
        lambda layer, anomalies: f"{anomalies.get(layer.path, 0):,}",
        frozenset({"anomalies"}),
        usual=False,
    ),
)


def _widths(cells: list[list[str]], width: int) -> list[int]:
    """Natural widths; where they do not fit, the type gives way first, then the path."""
    widths = [max(len(text) for text in column) for column in zip(*cells, strict=True)]
    excess = sum(widths) + len(widths) - 1 - width
    for column, least in ((1, 10), (0, 22), (1, NARROWEST_TYPE), (0, NARROWEST_PATH)):
        given = max(0, min(excess, widths[column] - least))
        widths[column] -= given
        excess -= given
    return widths


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    path, kind, *numbers = cells
    parts = [_path(path, widths[0]).ljust(widths[0]), shortened(kind, widths[1]).ljust(widths[1])]
    parts += [text.rjust(width) for text, width in zip(numbers, widths[2:], strict=True)]
    return " ".join(parts).rstrip()


def _path(text: str, width: int) -> str:
    """A path loses its beginning: layers differ at their end. A mark in front stays."""
    if len(text) <= width:
        return text
    mark = text[: len(MARK)] if text.startswith((MARK, "  ")) else ""
    return f"{mark}..{text[len(text) - width + 2 + len(mark) :]}"


def telling(layers: Sequence[LayerSummary], limit: int) -> list[LayerSummary]:
    """The layers worth a line when there are too many: those that went bad, earliest first, then the largest."""
    if len(layers) <= limit:
        return list(layers)
    bad = [layer for layer in layers if layer.first_bad_step is not None]
    rest = [layer for layer in layers if layer.first_bad_step is None]
    return [*sorted(bad, key=went_bad), *sorted(rest, key=lambda layer: -(layer.params or 0))][:limit]


def went_bad(layer: LayerSummary) -> tuple[int, int]:
    return layer.first_bad_step or 0, layer.first_bad_seq or 0


def _kind(layer: LayerSummary) -> str:
    return (layer.bad_kind or "").replace("_", " ")


def bad_lines(layers: Sequence[LayerSummary], most: int = 3) -> list[str]:
    """The first layers with a NaN or an Inf, in words."""
    bad = sorted((layer for layer in layers if layer.first_bad_step is not None), key=went_bad)
    named = [f"{x.path}: {x.bad_word} in its {_kind(x)} from step {x.first_bad_step}" for x in bad[:most]]
    more = len(bad) - len(named)
    return [*named, f"and {more} more layer{'' if more == 1 else 's'}, marked ! above"] if more else named
