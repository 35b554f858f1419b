"""The page keeps up: one question a step, what was configured, hits of before, and a server that goes and comes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from trainings import PATIENCE_S, going_on, started, viewing

INSPECTOR = "Layer inspector"


def until(page: Any, holds: Callable[[], bool]) -> None:
    for _ in range(400):
        if holds():
            return
        page.wait_for_timeout(50)
    raise AssertionError("it never came to that")


def number(page: Any) -> int:
    shown = page.get_by_test_id("step").inner_text().replace(",", "")
    return int(shown) if shown.isdigit() else -1


@contextmanager
def another_page(browser: Any) -> Iterator[Any]:
    """One that may complain: where its server is gone, a browser says so in its console."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(30_000)
    try:
        yield context.new_page()
    finally:
        context.close()


# -- moving through a run ----------------------------------------------------------------------------------------------


def test_a_move_of_the_scrubber_is_two_questions(page: Any, recorded: str) -> None:
    page.goto(f"{recorded}/?run=healthy&layer=1&step=20")
    inspector = page.get_by_role("region", name=INSPECTOR)
    inspector.get_by_text("step 20").wait_for()
    page.wait_for_load_state("networkidle")
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url) if "/api/" in one.url else None)
    page.keyboard.press("]")
    inspector.get_by_text("step 21").wait_for()
    page.get_by_role("region", name="Model structure").get_by_text("measured at step 21").wait_for()
    page.get_by_role("region", name="Performance flame graph").get_by_text("step 21").wait_for()
    page.get_by_role("region", name="Slowest 10 layers").get_by_text("up to step 21").wait_for()
    page.wait_for_load_state("networkidle")
    assert sorted(one.split("/api/")[1].split("&")[0] for one in asked) == ["moment?step=21", "summary?limit=10"]


def test_while_it_is_dragged_only_the_newest_step_is_asked_for(page: Any, recorded: str) -> None:
    page.goto(f"{recorded}/?run=healthy&layer=1&step=5")
    inspector = page.get_by_role("region", name=INSPECTOR)
    inspector.get_by_text("step 5").wait_for()
    page.wait_for_load_state("networkidle")
    held: list[Any] = []
    page.route("**/api/moment?*", lambda route: held.append(route))
    page.get_by_label("Step shown").evaluate(
        """async (slider) => {
          for (let step = 10; step < 30; step++) {
            slider.value = step;
            slider.dispatchEvent(new Event("input", { bubbles: true }));
            await new Promise((done) => setTimeout(done));
          }
        }"""
    )
    until(page, lambda: page.get_by_test_id("shown-step").inner_text() == "29")
    assert len(held) == 1
    held.pop().continue_()
    until(page, lambda: len(held) == 1)
    assert "step=29" in held[0].request.url
    held.pop().continue_()
    inspector.get_by_text("step 29").wait_for()
    page.unroute("**/api/moment?*")


# -- what was configured -----------------------------------------------------------------------------------------------


def test_what_was_configured_is_obeyed(page: Any, runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("websocket_interval: 100\n")
    (tmp_path / "neural_config.yaml").write_text(
        "dashboard:\n  theme: light\n  max_history: 10\n  charts: [memory_profile, execution_trace]\n"
    )
    with viewing(runs["healthy"], cwd=tmp_path) as address:
        page.goto(address)
        flame = page.get_by_role("region", name="Performance flame graph")
        flame.get_by_text("step 39").wait_for()
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        resources = page.get_by_role("region", name="Resource monitoring")
        assert resources.bounding_box()["y"] < flame.bounding_box()["y"]  # in the order given
        assert page.get_by_role("region", name="Health").count() == 0  # gradient_flow was not named
        loss = page.get_by_role("img", name=re.compile("^Loss: loss over 10 points from step 0 "))
        loss.wait_for()
        assert page.evaluate("fetch('/api/settings').then(told => told.json())")["refresh_s"] == 0.1


def test_a_live_chart_never_holds_more_than_its_history(
    browser: Any, chromium: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURALDBG_DASHBOARD__MAX_HISTORY", "12")
    monkeypatch.setenv("NEURALDBG_WEBSOCKET_INTERVAL", "50")
    with another_page(browser) as page, going_on(tmp_path) as address:
        page.goto(address)
        until(page, lambda: number(page) > 40)
        chart = page.get_by_role("img", name=re.compile("^Loss: loss over"))
        for _ in range(20):
            found = re.search(r"over (\d+) points", chart.get_attribute("aria-label"))
            assert found is not None
            assert int(found[1]) <= 12
            page.wait_for_timeout(50)


# -- before the page was opened, and while nobody served it ------------------------------------------------------------


def test_hits_of_before_the_page_was_opened_are_shown(page: Any, tmp_path: Path) -> None:
    words, where = ["0.01", "40", "-1", "0"], "1 if step % 10 == 3"
    training = started(
        tmp_path, "hit", words, "--headless", "--breakpoint", where, NEURALDBG_BREAKPOINTS__PAUSE_ON_CONDITION="false"
    )
    _, said = training.communicate(timeout=PATIENCE_S)
    assert training.returncode == 0, said
    with viewing(tmp_path / "hit") as address:
        page.goto(f"{address}/?view=breakpoints")
        hits = page.get_by_role("region", name="Hits", exact=True).get_by_role("button")
        until(page, lambda: hits.count() == 4)
        assert hits.first.inner_text() == "step 33: breakpoint hit at 1"
        page.get_by_role("button", name="Go to step 13: breakpoint hit at 1").click()
        assert page.get_by_test_id("shown-step").inner_text() == "13"
        page.goto("about:blank")  # before its server is gone


def test_the_page_goes_on_when_its_server_was_killed_and_another_came(browser: Any, tmp_path: Path) -> None:
    with another_page(browser) as page, going_on(tmp_path) as address:
        page.goto(address)
        until(page, lambda: page.get_by_test_id("state").inner_text() == "RUNNING" and number(page) > 0)
        port = int(address.rpartition(":")[2])  # others train beside us and have viewers of their own
        children = psutil.Process().children(recursive=True)
        viewer = next(one for one in children if port in {each.laddr.port for each in one.net_connections("inet")})
        viewer.kill()
        until(page, lambda: page.get_by_test_id("state").inner_text() in ("CONNECTING", "SERVER GONE"))
        before = number(page)
        with viewing(tmp_path / "live", port=port) as again:
            assert again == address
            until(page, lambda: page.get_by_test_id("state").inner_text() == "RUNNING")
            until(page, lambda: number(page) > before)


def test_a_page_whose_server_now_has_another_run_shows_that(browser: Any, runs: dict[str, Path]) -> None:
    with another_page(browser) as page:
        with viewing(runs["healthy"], port=8550) as address:
            page.goto(f"{address}/?step=20")
            page.get_by_role("region", name=INSPECTOR).get_by_text("step 20").wait_for()
        page.get_by_label("Step shown").fill("21")  # nobody answers
        page.get_by_text("the server does not answer").first.wait_for()
        with viewing(runs["crashed"], port=int(address.rpartition(":")[2])) as again:
            assert again == address
            page.get_by_text("the loader gave up").first.wait_for()
            until(page, lambda: page.get_by_test_id("state").inner_text() == "CRASHED")
            page.get_by_role("region", name=INSPECTOR).get_by_text("step 25").wait_for()
