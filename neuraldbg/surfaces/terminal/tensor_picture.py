"""A tensor in a few lines of text: what it is, its range, a histogram, and the numbers of a part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

BARS = " ▁▂▃▄▅▆▇█"
WIDEST, TALLEST, CELL = 7, 6, 10  # 80 columns with the dots


def tensor_lines(shown: Mapping[str, Any]) -> Iterator[str]:
    """`shown` is what the training process tells of a tensor."""
    shape = "x".join(map(str, shown["shape"])) or "scalar"
    yield f"{shown['kind']} of {shown['layer'] or '-'}: {shape} {shown['dtype']} on {shown['device']}"
    stats = shown["stats"]
    if stats is None or not stats["count"]:
        yield "no values"
        return
    yield (
        f"mean {_short(stats['mean'])}  std {_short(stats['std'])}  min {_short(stats['min'])}  "
        f"max {_short(stats['max'])}  norm {_short(stats['l2'])}"
    )
    odd = [f"{stats[f'{name}_count']} {word}" for name, word in _ODD.items() if stats[f"{name}_count"]]
    if odd:
        yield f"{', '.join(odd)} of {stats['count']}"
    histogram = shown["histogram"]
    if histogram is not None and len(histogram["counts"]) > 1:
        yield f"{_short(histogram['low'])} {_bars(histogram['counts'])} {_short(histogram['high'])}"
    yield from _numbers(shown)


_ODD = {"zero": "zeros", "nan": "NaN", "inf": "Inf"}


def _numbers(shown: Mapping[str, Any]) -> Iterator[str]:
    shape, values = shown["slice_shape"], shown["values"]
    width = shape[-1] if shape else 1
    if not width:
        return
    rows = [values[at : at + width] for at in range(0, min(len(values), width * TALLEST), width)]
    for row in rows:
        more = " ..." if width > WIDEST else ""
        yield "".join(f"{_in_a_cell(value):>{CELL}}" for value in row[:WIDEST]) + more
    if len(values) > width * TALLEST or shown["cut"]:
        yield "..."


def _bars(counts: list[int]) -> str:
    top = max(counts)
    return "".join(BARS[0 if not count else 1 + round((len(BARS) - 2) * count / top)] for count in counts)


def _in_a_cell(value: Any) -> str:
    """The digits that fit beside the next number."""
    text = _short(value)
    return text if len(text) < CELL else f"{value:.3g}" if len(f"{value:.3g}") < CELL else f"{value:.2e}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
