"""A profile as one page of HTML: the six views, drawn without scripts or anything fetched from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from neuraldbg.analysis.profile_views import views_of
from neuraldbg.surfaces.terminal.figures import DASH, figure, percent, quantity, size

Profile = Mapping[str, Any]
_STYLE: Final = """body{font:14px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:80rem;padding:0 1rem}
body{color:#1c2330}
@media(prefers-color-scheme:dark){body{background:#12161d;color:#dfe5ee}}table{border-collapse:collapse;width:100%}
th,td{text-align:right;padding:.2rem .5rem;border-bottom:1px solid #8884;white-space:nowrap}
.text{text-align:left;white-space:normal}.wide{overflow-x:auto}
.bar{display:inline-block;height:.7em;background:#4c8dff}h2{margin-top:2rem}
svg{width:100%;height:8rem;display:block}
polyline{fill:none;stroke:#4c8dff;stroke-width:1.5;vector-effect:non-scaling-stroke}"""
_UNITS: Final[dict[str, Callable[[Any], str]]] = {
    "text": str,
    "ms": lambda value: f"{figure(value)} ms",
    "s": lambda value: f"{figure(value)} s",
    "bytes": lambda value: size(int(value)) if value >= 0 else f"-{size(-int(value))}",
    "share": percent,
    "count": lambda value: quantity(int(value)),
}


def html_of(told: Profile, resources: Mapping[str, Any] | None = None) -> str:
    name = html.escape(str(told["run"]))
    head = f"<title>Profile of {name}</title>"
    top = f'<!doctype html>\n<html lang="en"><meta charset="utf-8">{head}<style>{_STYLE}</style>'
    views = "".join(map(_view, views_of(told, resources or {})))
    return f"{top}<body><h1>Profile of {name}</h1>{views}</body></html>\n"


def _view(view: Profile) -> str:
    said = f"<p>{html.escape(view['text'])}</p>" if view["text"] else ""
    drawing = {"bars": _bars, "lines": _lines, "table": _rows}
    charts = [f"<h3>{html.escape(one['title'])}</h3>{drawing[one['kind']](one)}" for one in view["charts"]]
    return f"<h2>{html.escape(view['title'])}</h2>{said}{''.join(charts)}"


def _in(unit: str, value: Any) -> str:
    if value is None:
        return DASH
    return html.escape(_UNITS[unit](value) if unit in _UNITS else f"{figure(value)} {unit}")


def _bars(chart: Profile) -> str:
    most = max((value for value in chart["values"] if value is not None), default=0) or 1
    spread = chart["spread"] or [None] * len(chart["values"])
    rows = []
    for label, value, std in zip(chart["labels"], chart["values"], spread, strict=True):
        share = max(value or 0, 0) / most
        bar = f'<span class="bar" style="width:{share * 30:.1f}rem"></span>'
        around = "" if std is None else f" ± {_in(chart['unit'], std)}"
        rows.append([html.escape(str(label)), bar, _in(chart["unit"], value) + around])
    return _table([], rows, text=2)


def _rows(chart: Profile) -> str:
    units = [unit for _, unit in chart["columns"]]
    rows = [[_in(unit, cell) for unit, cell in zip(units, row, strict=True)] for row in chart["rows"]]
    return _table([html.escape(name) for name, _ in chart["columns"]], rows, text=units.count("text"))


def _lines(chart: Profile) -> str:
    """From the smallest value to the largest."""
    known = [value for line in chart["lines"] for value in line["values"] if value is not None]
    if not known:
        return "<p>-</p>"
    low, high = min(known), max(known)
    drawn = "".join(_line(chart["x"], line["values"], low, high) for line in chart["lines"])
    caption = f"<figcaption>{_in(chart['unit'], low)} to {_in(chart['unit'], high)}</figcaption>"
    return f'<figure>{caption}<svg viewBox="0 0 100 30" preserveAspectRatio="none">{drawn}</svg></figure>'


def _line(x: Sequence[float], y: Sequence[float | None], low: float, high: float) -> str:
    wide, tall = (x[-1] - x[0]) or 1, (high - low) or 1
    known = [(a, b) for a, b in zip(x, y, strict=True) if b is not None]
    points = " ".join(f"{(a - x[0]) / wide * 100:.2f},{28 - (b - low) / tall * 26:.2f}" for a, b in known)
    return f'<polyline points="{points}"/>'


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], text: int) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        kinds = [' class="text"' if at < text else "" for at in range(len(cells))]
        return f"<tr>{''.join(f'<{tag}{kind}>{cell}</{tag}>' for kind, cell in zip(kinds, cells, strict=True))}</tr>"

    body = f"{line(heads, 'th') if heads else ''}{''.join(line(row, 'td') for row in rows)}"
    return f'<div class="wide"><table>{body}</table></div>'
