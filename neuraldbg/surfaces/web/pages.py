"""The page as it was built, and the pages that need no build: what the API offers, with a curl line for each route."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse, HTMLResponse, Response

ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="3" fill="#1f4e79"/>'
    '<path d="M3 12 6 5l3 5 2-3 2 5" fill="none" stroke="#fff" stroke-width="1.6"/></svg>'
)
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "pre{overflow-x:auto;padding:.6rem;border:1px solid #8888;border-radius:.3rem;flex:1;margin:.3rem 0}"
    "code,pre{font-family:ui-monospace,monospace;font-size:.9rem}.line{display:flex;gap:.5rem;align-items:start}"
    "h2{font-size:1.1rem;margin:2rem 0 .2rem}button{margin:.3rem 0;padding:.6rem}"
)
SCRIPT = """for (const button of document.querySelectorAll("button")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    button.textContent = "Copied";
  });
}
"""
SAMPLES = {"layer": "Conv2D_1", "id": "1", "metric": "grad_norm", "a": "RUN_A", "b": "RUN_B"}
BUILT = Path(__file__).parent / "static"  # by `npm run build` in web/, at installation
NOT_BUILT = "not_built.txt"  # in it: why the build at installation failed
router = APIRouter(include_in_schema=False)


def _page(title: str, body: str) -> HTMLResponse:
    head = f'<meta charset="utf-8"><title>{title}</title><link rel="icon" href="/favicon.svg"><style>{STYLE}</style>'
    return HTMLResponse(f'<!doctype html><html lang="en"><head>{head}</head><body><main>{body}</main></body></html>')


@router.get("/")
def home() -> Response:
    if (BUILT / "index.html").is_file():
        return FileResponse(BUILT / "index.html", headers={"cache-control": "no-cache"})
    return _page(
        "NeuralDbg",
        f"<h1>NeuralDbg</h1><p>The page was not built: {escape(why_not_built())}. In a clone, "
        "<code>cd web &amp;&amp; npm install &amp;&amp; npm run build</code> builds it.</p>"
        "<p>Everything else is here. This server answers over its API: "
        '<a href="/docs">the routes, with a curl line each</a>, <a href="/openapi.json">OpenAPI</a>, '
        '<a href="/api/run">this run</a>.</p>',
    )


def why_not_built() -> str:
    try:
        return (BUILT / NOT_BUILT).read_text(encoding="utf-8").strip().rstrip(".")
    except OSError:
        return "this installation was made without it"


@router.get("/assets/{name}")
def asset(name: str) -> Response:
    """The names carry a hash of the content: a browser may keep them for good."""
    known = {each.name: each for each in (BUILT / "assets").glob("*")}
    if name not in known:
        raise HTTPException(404, f"no asset {name!r}: the page was built anew, load it again")
    return FileResponse(known[name], headers={"cache-control": "public, max-age=31536000, immutable"})


@router.get("/favicon.svg")
@router.get("/favicon.ico")
def favicon() -> Response:
    """Kept: a browser asks for it again whenever the address line changes, which the scrubber does."""
    return Response(ICON, media_type="image/svg+xml", headers={"cache-control": "public, max-age=86400"})


@router.get("/docs.js")
def script() -> Response:
    return Response(SCRIPT, media_type="text/javascript")


@router.get("/docs")
def docs(request: Request) -> HTMLResponse:
    schema = request.app.openapi()
    address = str(request.base_url).rstrip("/")
    parts = ["<h1>NeuralDbg API</h1><p>Every refusal is JSON with an <code>error</code> that says why.</p>"]
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            parts.append(_route(method.upper(), path, about, curl(address, method, path, about, schema)))
    stream = f"{address.replace('http', 'ws', 1)}/api/events"
    parts.append(f"<h2>WebSocket /api/events</h2><p>What changes, as it changes.</p><pre>{escape(stream)}</pre>")
    return _page("NeuralDbg API", "".join(parts) + '<script src="/docs.js"></script>')


def _route(method: str, path: str, about: Mapping[str, Any], line: str) -> str:
    statuses = ", ".join(sorted(str(status) for status in about.get("responses", {})))
    return (
        f"<h2>{method} {escape(path)}</h2><p>{escape(about.get('summary', ''))} (answers {statuses})</p>"
        f'<div class="line"><pre>{escape(line)}</pre><button type="button">Copy</button></div>'
    )


def curl(address: str, method: str, path: str, about: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """A line that can be pasted into a shell as it stands."""
    query = []
    for parameter in about.get("parameters", ()):
        name = parameter["name"]
        if parameter["in"] == "path":
            path = path.replace(f"{{{name}}}", SAMPLES.get(name, name)).replace(f"{{{name}:path}}", SAMPLES[name])
        elif parameter.get("required"):
            query.append(f"{name}={SAMPLES.get(name, name)}")
    url = address + path + ("?" + "&".join(query) if query else "")
    words = ["curl"] + ([] if method == "get" else ["-X", method.upper()]) + [_quoted(url)]
    body = _sample(about, schema)
    if body:
        words += ["-H", "'Content-Type: application/json'", "-d", _quoted(json.dumps(body))]
    return " ".join(words) + (" -o heatmap.bin" if path == "/api/heatmap" else "")


def _sample(about: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    content = about.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    reference = content.get("$ref") or next((one["$ref"] for one in content.get("anyOf", ()) if "$ref" in one), "")
    model = schema.get("components", {}).get("schemas", {}).get(reference.rpartition("/")[2], {})
    found = {}
    for name, field in model.get("properties", {}).items():
        if "examples" in field:
            found[name] = field["examples"][0]
        elif name == "enabled":
            found[name] = False
    return found if model.get("required") else {name: found[name] for name in found if name in ("enabled",)}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'" if any(c in text for c in " &'\"?*$\\") else text
