"""The drawing of a network as a PNG: the same boxes as its SVG, by Pillow."""

from __future__ import annotations

import io

from neuraldbg.dsl.drawing import BOX, GAP, HIGH, boxes, edges, top
from neuraldbg.dsl.graph import Graph
from neuraldbg.errors import BackendMissing

TALLEST = 60_000  # pixels; viewers give up beyond


def as_png(graph: Graph) -> bytes:
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        extra = "pip install 'neural-debugger[images]'"
        raise BackendMissing(f"-f png needs Pillow, which is not installed: {extra} (svg needs nothing)") from None
    found = list(boxes(graph))
    high = len(found) * (HIGH + GAP) + GAP
    if high > TALLEST:
        raise BackendMissing(
            f"{graph.network.name} has {len(found):,} boxes: too many for a PNG; -f svg takes them all"
        )
    image = Image.new("RGB", (BOX + 160, high), "white")
    draw = ImageDraw.Draw(image)
    middle, right = 20 + BOX // 2, 20 + BOX
    for start, end in edges(graph):
        if end == start + 1:
            draw.line([(middle, top(start) + HIGH), (middle, top(end))], fill="#444466")
            continue
        out, first, last = right + 10 + 12 * min(end - start, 8), top(start) + HIGH // 2, top(end) + HIGH // 2
        draw.line([(right, first), (out, first), (out, last), (right, last)], fill="#aa6644")
    title_font, detail_font = ImageFont.load_default(14), ImageFont.load_default(12)
    for row, (title, detail, colour) in enumerate(found):
        corners = (20, top(row), right, top(row) + HIGH)
        draw.rounded_rectangle(corners, 6, fill=colour, outline="#444466")
        draw.text((32, top(row) + 5), title, "black", title_font)
        draw.text((32, top(row) + 25), detail, "#555566", detail_font)
    into = io.BytesIO()
    image.save(into, "PNG")
    return into.getvalue()
