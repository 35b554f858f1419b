"""The table of layers: one line each, as wide as the terminal and no wider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from neuraldbg.surfaces.terminal.figures import DASH, figure, quantity, shortened

if TYPE_CHECKING:
    from rich.text import Text

    from neuraldbg.analysis.layers import LayerSummary

HEADERS = (
    ("", "Layer"),
    ("", "Type"),
    ("", "Params"),
    ("Activ.", "mean"),
    ("Activ.", "std"),
    ("Grad.", "norm"),
    ("Update", "/weight"),
    ("Fwd", "ms"),
    ("Bwd", "ms"),
)
MARK = "! "
NARROWEST_PATH, NARROWEST_TYPE = 12, 6


def table_lines(layers: Sequence[LayerSummary], width: int) -> list[Text]:
    """Two header lines and one line per layer, marked where a NaN or an Inf was seen."""
    from rich.text import Text

    marked = any(layer.first_bad_step is not None for layer in layers)
    cells = [_cells(layer, marked=marked) for layer in layers]
    widths = _widths(cells, width)
    lines = [Text(_line([header[part] for header in HEADERS], widths), style="bold") for part in (0, 1)]
    for layer, row in zip(layers, cells, strict=True):
        line = Text(_line(row, widths))
        if layer.first_bad_step is not None:
            line.stylize("bold red", 0, widths[0])
        lines.append(line)
    return lines


def _cells(layer: LayerSummary, *, marked: bool) -> list[str]:
    activation = layer.stats.get("activation")
    bad = (MARK if layer.first_bad_step is not None else "  ") if marked else ""
    return [
        f"{bad}{layer.path}",
        layer.type or DASH,
        quantity(layer.params) if layer.params else DASH,
        (_word(activation) or figure(activation.mean)) if activation else DASH,
        figure(activation.std) if activation else DASH,
        _gradient(layer),
        figure(layer.update_ratio),
        figure(layer.forward_ms),
        figure(layer.backward_ms),
    ]


def _gradient(layer: LayerSummary) -> str:
    """Of the layer's parameters; of its output where it has none."""
    stats = layer.stats.get("parameter_gradient") or layer.stats.get("gradient")
    if stats is None:
        return DASH
    return _word(stats) or figure(layer.grad_l2 if layer.grad_l2 is not None else stats.l2)


def _word(stats: object) -> str | None:
    return "NaN" if getattr(stats, "nan_count", 0) else "Inf" if getattr(stats, "inf_count", 0) else None


def _widths(cells: list[list[str]], width: int) -> list[int]:
    """Natural widths; where they do not fit, the type gives way first, then the path."""
    widths = [max(len(text) for text in column) for column in zip(*cells, *zip(*HEADERS, strict=True), strict=True)]
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
