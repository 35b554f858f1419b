"""A network drawn: as a tree for the terminal, as a graph for a browser or Graphviz."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from neuraldbg.dsl.graph import Graph, Step, written
from neuraldbg.dsl.model import Block, Branch, Node

FORMATS = ("text", "svg", "png", "dot", "html")
BOX, HIGH, GAP = 360, 46, 26


class Row(NamedTuple):
    tree: str
    shape: str
    parameters: str
    flops: str
    line: str


def draw(graph: Graph, form: str) -> str:
    """Every form but png, which needs more than text (`picture.py`)."""
    return {"text": as_text, "svg": as_svg, "dot": as_dot, "html": as_html}[form](graph)


def short(number: int) -> str:
    """1,234,567 as 1.23M."""
    for limit, letter in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{letter}"
    return str(number)


# -- text --------------------------------------------------------------------------------------------------------------


def as_text(graph: Graph) -> str:
    """The layers as they nest, with what each makes and what it costs."""
    shapes = ", ".join(written(each.shape) for each in graph.inputs)
    totals = f"{graph.parameters:,} parameters, {short(graph.flops)} FLOPs a sample"
    rows = [Row("layer", "output", "parameters", "FLOPs", "line"), *_rows(graph.network.layers, _steps(graph), "")]
    widths = [max(len(row[n]) for row in rows) for n in range(5)]
    lines = [f"{graph.network.name}: {shapes} -> {written(graph.shape)}; {totals}"]
    for row in rows:
        cells = [row.tree.ljust(widths[0]), row.shape.ljust(widths[1])]
        cells += [row[n].rjust(widths[n]) for n in (2, 3, 4)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _steps(graph: Graph) -> dict[str, list[Step]]:
    found: dict[str, list[Step]] = {}
    for step in graph.steps:
        found.setdefault(step.layer.name, []).append(step)
    return found


def _rows(nodes: Sequence[Node], steps: dict[str, list[Step]], lead: str) -> Iterator[Row]:
    for number, node in enumerate(nodes):
        last = number == len(nodes) - 1
        branch, onward = ("`- ", "   ") if last else ("|- ", "|  ")
        if isinstance(node, Block | Branch):
            name = f"{node.macro}()" if isinstance(node, Block) else f"{node.name}:"
            yield Row(f"{lead}{branch}{name}", "", "", "", str(node.line))
            yield from _rows(node.layers, steps, lead + onward)
            continue
        made = steps.get(node.name, [])
        activation = next((step.activation for step in made if step.activation), None)
        title = f"{lead}{branch}{node.name}" + (f" ({activation})" if activation else "")
        parameters, flops = sum(step.parameters for step in made), sum(step.flops for step in made)
        shape = written(made[-1].shape) if made else "-"
        yield Row(title, shape, f"{parameters:,}" if parameters else "", short(flops) if flops else "", str(node.line))
        yield from _rows(node.sublayers, steps, lead + onward)


# -- graphs ------------------------------------------------------------------------------------------------------------


def _title(step: Step) -> str:
    return step.name + (f" ({step.activation})" if step.activation else "")


def _detail(step: Step) -> str:
    parts = [written(step.shape)] + ([f"{step.parameters:,} parameters"] if step.parameters else [])
    return ", ".join(parts)


def as_dot(graph: Graph) -> str:
    lines = [f"digraph {graph.network.name} {{", "  rankdir=TB;", "  node [shape=box, fontname=Helvetica];"]
    for each in graph.inputs:
        label = f"{graph.values[each.value].input}\\n{written(each.shape)}"
        lines.append(f'  v{each.value} [label="{label}", style=rounded];')
    for step in graph.steps:
        lines.append(f'  v{step.output} [label="{_title(step)}\\n{_detail(step)}"];')
        lines += [f"  v{value} -> v{step.output};" for value in step.inputs]
    return "\n".join([*lines, "}"])


def boxes(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """Title, detail and colour from top to bottom: inputs, then steps in the order they run."""
    for each in graph.inputs:
        yield str(graph.values[each.value].input), written(each.shape), "#eeeeff"
    for step in graph.steps:
        yield _title(step), _detail(step), "#ffffdd" if step.implied else "#ffffff"


def edges(graph: Graph) -> Iterator[tuple[int, int]]:
    """From box to box, by their rows."""
    rows = {each.value: row for row, each in enumerate(graph.inputs)}
    for row, step in enumerate(graph.steps, len(graph.inputs)):
        rows[step.output] = row
        yield from ((rows[value], row) for value in step.inputs)


def top(row: int) -> int:
    return GAP + row * (HIGH + GAP)


def as_svg(graph: Graph) -> str:
    """Lines that skip boxes go around them on the right."""
    found = list(boxes(graph))
    high = len(found) * (HIGH + GAP) + GAP
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{BOX + 160}" height="{high}" font-family="sans-serif">']
    parts += [_edge(start, end) for start, end in edges(graph)]
    parts += [_box(row, *each) for row, each in enumerate(found)]
    return "\n".join([*parts, "</svg>"])


def _box(row: int, title: str, detail: str, colour: str) -> str:
    y = top(row)
    return (
        f'<rect x="20" y="{y}" width="{BOX}" height="{HIGH}" rx="6" fill="{colour}" stroke="#446"/>'
        f'<text x="32" y="{y + 19}" font-size="14">{escape(title)}</text>'
        f'<text x="32" y="{y + 37}" font-size="12" fill="#556">{escape(detail)}</text>'
    )


def _edge(start: int, end: int) -> str:
    middle, right = 20 + BOX // 2, 20 + BOX
    begin, stop = top(start) + HIGH, top(end)
    if end == start + 1:
        return f'<path d="M{middle} {begin} V{stop}" stroke="#446" fill="none"/>'
    out = right + 20 + 12 * min(end - start, 8)
    first, last = begin - HIGH // 2, stop + HIGH // 2
    return f'<path d="M{right} {first} C{out} {first} {out} {last} {right} {last}" stroke="#a64" fill="none"/>'


def as_html(graph: Graph) -> str:
    name = escape(graph.network.name)
    totals = f"{graph.parameters:,} parameters, {short(graph.flops)} FLOPs a sample"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title></head>\n'
        f'<body style="font-family: sans-serif">\n<h1>{name}</h1>\n<p>{totals}</p>\n{as_svg(graph)}\n</body></html>'
    )
