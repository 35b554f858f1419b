"""The profile on the page: six views over what the run has, and what to do where it has nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

TITLES = (
    "Layer profiling",
    "Memory profiling",
    "Bottlenecks",
    "GPU utilisation",
    "Backend comparison",
    "Distributed training",
)


def test_a_debugged_run_has_six_profiling_views(page: Any, recorded: str) -> None:
    page.goto(f"{recorded}/?view=performance&run=healthy")
    page.get_by_role("region", name="Layer profiling").get_by_text("Phases of a step").wait_for()
    layers = page.get_by_role("region", name="Layer profiling")
    assert layers.get_by_role("img", name="Forward of one call").count() == 1
    assert layers.get_by_role("row", name="outside layers –").count() == 1  # not measured is not zero
    assert "neural profile" in layers.inner_text()
    for title in TITLES:
        page.get_by_role("button", name=title).click()
        shown = page.get_by_role("region", name=title, exact=True)
        shown.wait_for()
        assert len(shown.inner_text()) > len(" ".join(TITLES)) + 40, title  # a chart, or what to do
        folder = os.environ.get("PAGE_SCREENSHOTS")
        if folder:
            page.wait_for_timeout(500)
            (Path(folder) / f"profile-{title.split()[0].lower()}.png").write_bytes(page.screenshot(full_page=True))
    page.get_by_role("button", name="Backend comparison").click()
    page.get_by_text("--compare-backends").wait_for()


def test_a_report_has_the_same_views(lone: Any, reports: Any, page: Any, recorded: str) -> None:
    sent = lone(reports["healthy"], query="?view=performance")
    page.goto(f"{recorded}/?view=performance&run=healthy")
    told = []
    for each in (sent, page):
        layers = each.get_by_role("region", name="Layer profiling")
        layers.get_by_text("Phases of a step").wait_for()
        rows = layers.get_by_role("row")
        told.append([rows.nth(at).inner_text() for at in range(rows.count())])
    assert told[0] == told[1]
