"""The page stays small: what people read of it, and what a browser loads."""

from __future__ import annotations

import gzip

from trainings import ROOT

from neuraldbg.surfaces.web.pages import BUILT

MOST_LINES = 3_000
MOST_BYTES = 250_000


def test_the_source_of_the_page_is_short() -> None:
    files = [path for path in (ROOT / "web" / "src").rglob("*") if path.is_file()]
    assert len(files) > 20
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= MOST_LINES


def test_what_a_browser_loads_is_small(chromium: str) -> None:
    files = [path for path in BUILT.rglob("*") if path.suffix in (".js", ".css", ".html")]
    assert files
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) <= MOST_BYTES
