"""A report in a real browser, from the disk and without a network: it is the page, with the run in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_runs import MadeRun, made_run
from test_page import AXE, VIEWS, look, text, until
from trainings import report, viewing, without

from neuraldbg.trace import TraceWriter

Open = Callable[..., Any]
Reports = dict[str, Path]


def test_it_opens_from_the_disk_with_the_verdict_first(lone: Open, reports: Reports) -> None:
    page = lone(reports["diverging"])
    page.get_by_text("learning rate").first.wait_for()
    assert text(page, "state") == "FINISHED"
    assert page.get_by_test_id("headline").bounding_box()["y"] < 80
    assert page.title() == "diverging · NeuralDbg"
    page.get_by_text(re.compile("^Report of .* UTC, made with NeuralDbg")).wait_for()
    look(page, "report-overview-dark")


def test_why_is_there_with_evidence_and_fix(lone: Open, reports: Reports) -> None:
    page = lone(reports["diverging"])
    page.get_by_role("button", name="Why").click()
    for title in ("How it came about", "How we know", "What to do"):
        page.get_by_role("heading", name=title, exact=True).wait_for()
    assert "view=why" in page.url
    page.reload()  # the address holds the view, from the disk too
    page.get_by_role("heading", name="What to do", exact=True).wait_for()


def test_the_scrubber_moves_every_panel(lone: Open, reports: Reports) -> None:
    page = lone(reports["healthy"], query="?layer=1")
    inspector = page.get_by_role("region", name="Layer inspector")
    inspector.get_by_text("step 39").wait_for()
    page.get_by_role("region", name="Model structure").get_by_text("measured at step 39").wait_for()
    page.get_by_role("region", name="Health").get_by_role("img", name=re.compile("^Gradient norm of")).wait_for()
    page.keyboard.press("{")
    inspector.get_by_text("step 0").wait_for()
    page.get_by_role("region", name="Model structure").get_by_text("measured at step 0").wait_for()
    page.get_by_role("region", name="Performance flame graph").get_by_text("step 0").wait_for()
    page.get_by_label("Step shown").fill("20")
    inspector.get_by_text("step 20").wait_for()
    page.keyboard.press("End")
    until(page, lambda: text(page, "shown-step") == "39")


def test_its_numbers_are_those_of_the_server(lone: Open, page: Any, reports: Reports, recorded: str) -> None:
    sent = lone(reports["healthy"], query="?view=Gradient Analysis&step=20")
    page.goto(f"{recorded}/?view=Gradient Analysis&run=healthy&step=20")
    tables = []
    for each in (sent, page):
        rows = each.get_by_role("region", name="Every layer", exact=True).get_by_role("row")
        rows.nth(1).wait_for()
        each.get_by_role("region", name="Every layer").first.get_by_text("values of step 20", exact=True).wait_for()
        tables.append([rows.nth(at).inner_text() for at in range(rows.count())])
    assert tables[0] == tables[1]


def test_the_heatmap_is_drawn_zoomed_and_read(lone: Open, reports: Reports) -> None:
    page = lone(reports["healthy"], query="?view=heatmap&step=10")
    canvas = page.locator("main canvas").first
    canvas.wait_for()
    drawn = "c => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size"
    until(page, lambda: canvas.evaluate(drawn) > 20)
    page.get_by_role("button", name="Zoom in").click()
    page.get_by_text(re.compile(r"^steps (?!0–39)")).wait_for()
    page.get_by_text("view as table").first.click()
    rows = page.get_by_role("region", name=re.compile("as a table")).get_by_role("row")
    rows.nth(1).wait_for()
    assert re.search(r"≈ [\d.e-]+", rows.nth(1).inner_text())


def test_a_layer_has_its_histograms_and_curves(lone: Open, reports: Reports) -> None:
    page = lone(reports["healthy"], query="?view=layer&layer=1&step=16")
    panel = page.get_by_role("region", name="Distribution over time")
    panel.get_by_text("at step 16").wait_for()
    curves = page.get_by_role("region", name="Over the steps")
    curves.get_by_role("img", name=re.compile("^Gradient norm of 1")).wait_for()
    page.keyboard.press("k")
    until(page, lambda: "layer=1" not in page.url)
    look(page, "report-layer-dark")


def test_what_a_file_cannot_do_is_said(lone: Open, reports: Reports) -> None:
    page = lone(reports["crashed"], query="?view=breakpoints")
    page.get_by_text("This is a report: conditions are tried on the page of").first.wait_for()
    page.keyboard.press("p")
    page.get_by_text("No training process is attached to this run").wait_for()
    assert text(page, "state") == "CRASHED"


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_every_view_opens_fits_a_phone_and_has_no_serious_barrier(lone: Open, reports: Reports, theme: str) -> None:
    if not AXE.is_file():
        without("axe-core (npm install in web/)")
    serious = []
    for view in VIEWS:
        page = lone(reports["diverging"], theme, f"?view={view}")
        page.get_by_role("heading", name="Compare" if view == "compare" else VIEWS[view]).first.wait_for()
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        page.evaluate(AXE.read_text(encoding="utf-8"))
        for one in page.evaluate("axe.run().then(found => found.violations)"):
            if one["impact"] in ("serious", "critical"):
                serious += [(view, one["id"], node["html"][:200]) for node in one["nodes"]]
        page.set_viewport_size({"width": 320, "height": 640})
        until(page, lambda page=page: page.evaluate("document.documentElement.scrollWidth") <= 320)
        page.close()
    assert serious == []


@pytest.fixture(scope="module")
def two_ranks(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes: the second is slower, and has stopped at step 5."""
    folder = tmp_path_factory.mktemp("ranks") / "run"
    with made_run(folder) as first, TraceWriter(folder, rank=1, threaded=False) as writer:
        for rank, (run, steps) in enumerate(((first, 20), (MadeRun(folder, writer), 6))):
            run.module("fc", "Linear", run.model())
            for step in range(steps):
                run.scalar("loss", step, 1.0 + rank)
                run.scalar("step_time_s", step, 0.010 + 0.005 * rank)
            run.end(steps=steps)
    return folder


def test_a_run_of_several_ranks_has_a_strip_of_them(page: Any, lone: Open, two_ranks: Path, tmp_path: Path) -> None:
    with viewing(two_ranks) as address:
        page.goto(address)
        strip = page.get_by_role("group", name="Ranks")
        strip.get_by_text("2 ranks · step 10 ms – 15 ms – 15 ms").wait_for()
        strip.get_by_text("rank 1: step 5, loss 2, 15 ms ▲ behind").wait_for()
        strip.get_by_role("button", name="rank 0: step 19, loss 1, 10 ms").focus()
        strip.get_by_text("rank 0: step 19, loss 1, 10 ms").wait_for()
        page.goto("about:blank")  # before the server goes
    report(two_ranks, tmp_path / "sent.html")
    lone(tmp_path / "sent.html").get_by_role("group", name="Ranks").get_by_text("▲ behind").wait_for()
