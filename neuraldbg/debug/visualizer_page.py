"""Plots as one page of HTML that loads nothing, dark and light."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from neuraldbg.debug.visualizer_plots import Plot
from neuraldbg.debug.visualizer_svg import svg

POLICY: Final = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
_LIGHT: Final = "--back:#fbfbfd;--card:#fff;--ink:#1c2330;--soft:#667085;--rule:#d8dee8;--bar:#3b74d9;--odd:#c4234a"
_DARK: Final = "--back:#12161d;--card:#1a2029;--ink:#dfe5ee;--soft:#97a3b4;--rule:#343d4a;--bar:#6fa2ff;--odd:#ff7a90"
_LINES: Final = ("#3b74d9", "#d9822b", "#2c9a6b", "#b4509f", "#8a7a1f", "#4aa3b5")
_STYLE: Final = f"""
:root{{color-scheme:light;{_LIGHT}}}
@media(prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{_DARK}}}}}
:root[data-theme=dark]{{color-scheme:dark;{_DARK}}}
body{{font:15px/1.5 system-ui,sans-serif;margin:0;padding:1.5rem;background:var(--back);color:var(--ink)}}
header{{display:flex;gap:1rem;align-items:baseline;flex-wrap:wrap}}h1{{font-size:1.3rem;margin:0}}
main{{display:grid;gap:1rem;grid-template-columns:repeat(auto-fill,minmax(min(100%,30rem),1fr));margin-top:1rem}}
figure{{margin:0;padding:1rem;background:var(--card);border:1px solid var(--rule);border-radius:.5rem;min-width:0}}
h2{{font-size:1rem;margin:0 0 .5rem;overflow-wrap:anywhere}}figcaption{{color:var(--soft);font-size:.85rem}}
svg{{width:100%;height:auto;display:block}}text{{fill:var(--soft)}}
.axis,.grid,.hair{{fill:none;stroke:var(--rule)}}.grid{{opacity:.5}}.hair{{stroke:var(--soft)}}
.bar{{fill:var(--bar)}}.bar:hover{{opacity:.7}}.ridge{{fill:var(--bar);fill-opacity:.45;stroke:var(--bar)}}
.cells{{image-rendering:pixelated}}.odd{{fill:var(--odd);font-weight:bold}}.read{{fill:var(--ink)}}
button{{font:inherit;color:inherit;background:none;border:1px solid var(--rule);border-radius:.3rem;cursor:pointer}}
[class^=line] path{{fill:none;stroke-width:1.6;stroke:currentColor}}[class^=line] circle,[class^=line] text
{{fill:currentColor;stroke:none}}
""" + "".join(f".line{at}{{color:{colour}}}" for at, colour in enumerate(_LINES))  # fmt: skip
_SCRIPT: Final = """
document.querySelector('button').onclick = () => {
  const root = document.documentElement, now = getComputedStyle(root).colorScheme
  root.dataset.theme = now === 'dark' ? 'light' : 'dark'
}
for (const sheet of document.querySelectorAll('svg')) {
  const lines = [...sheet.querySelectorAll('[data-line]')].map(one => JSON.parse(one.dataset.line))
  const hair = sheet.querySelector('.hair'), read = sheet.querySelector('.read')
  if (!hair || !lines.length) continue
  const box = sheet.viewBox.baseVal
  const nearest = (points, x) => points.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a)
  sheet.onpointermove = event => {
    const x = (event.clientX - sheet.getBoundingClientRect().left) / sheet.clientWidth * box.width
    const found = lines.filter(([, points]) => points.length).map(([name, points]) => [name, nearest(points, x)])
    if (!found.length) return
    const at = found[0][1]
    hair.setAttribute('d', `M${at[0]} 0V${box.height}`)
    read.textContent = `${at[2]}: ` + found.map(([name, point]) => `${name} ${point[3]}`).join(', ')
    const right = at[0] > box.width / 2
    read.setAttribute('x', at[0] + (right ? -8 : 8))
    read.setAttribute('y', box.height - 4 * parseFloat(sheet.getAttribute('font-size')))
    read.setAttribute('text-anchor', right ? 'end' : 'start')
  }
  sheet.onpointerleave = () => { hair.removeAttribute('d'); read.textContent = '' }
}
"""


def page(plots: Sequence[Plot], title: str, size: tuple[int, int, int], theme: str) -> str:
    """`size`: width, height and font of each plot; `theme`: auto, dark or light."""
    chosen = "" if theme == "auto" else f' data-theme="{theme}"'
    figures = "\n".join(
        f"<figure><h2>{escape(plot.title)}</h2>{svg(plot, *size)}<figcaption>{escape(plot.note)}</figcaption></figure>"
        for plot in plots
    )
    return (
        f'<!doctype html>\n<html lang="en"{chosen}><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>"
        f'<header><h1>{escape(title)}</h1><button type="button">dark / light</button></header>\n'
        f"<main>{figures}</main>\n<script>{_SCRIPT}</script></body></html>\n"
    )
