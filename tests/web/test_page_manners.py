"""How the page behaves: what it follows, what it says, what it survives, and for whom it can be used."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from made_runs import MadeRun, made_run
from test_page import AXE, going, look, number, text, until
from trainings import NEURAL, environment, going_on, started, viewing, without

from neuraldbg.surfaces.browser import redirection
from neuraldbg.trace.writer import TraceWriter

INSPECTOR = "Layer inspector"
SERIOUS = ("serious", "critical")


@pytest.fixture
def running(page: Any, live: str) -> Iterator[Any]:
    """The page of a training that goes on, and goes on afterwards."""
    going(page, live)
    yield page
    if text(page, "state") == "PAUSED":
        page.get_by_role("button", name="Continue").click()
        until(page, lambda: text(page, "state") == "RUNNING")


def pause(page: Any) -> Any:
    page.keyboard.press("p")
    until(page, lambda: text(page, "state") == "PAUSED")
    return page.get_by_role("group", name="Pause")


# -- the header --------------------------------------------------------------------------------------------------------


def test_the_loss_is_that_of_the_very_step_also_in_a_long_run(page: Any, runs: dict[str, Path]) -> None:
    with viewing(runs["healthy"], runs["diverging"], NEURALDBG_DASHBOARD__MAX_HISTORY="10") as address:
        for step in (21, 6):
            page.goto(f"{address}/?run=healthy&step={step}")
            asked = f"fetch('/api/series?run=healthy&metric=loss&from={step}&to={step}').then((told) => told.json())"
            [loss] = page.evaluate(asked)["max"]
            until(page, lambda loss=loss: text(page, "loss") == f"{loss:.4g}")
        page.goto(f"{address}/?run=diverging")
        until(page, lambda: text(page, "loss") == "NaN")
        shown = page.get_by_test_id("loss")
        assert "bad" in shown.get_attribute("class")
        assert shown.evaluate("one => getComputedStyle(one).color") != page.get_by_test_id("step").evaluate(
            "one => getComputedStyle(one).color"
        )
        page.goto("about:blank")


@pytest.mark.parametrize("width", [390, 1440])
def test_a_pause_takes_one_line(running: Any, width: int) -> None:
    running.set_viewport_size({"width": width, "height": 900})
    place = pause(running)
    place.wait_for()
    assert place.bounding_box()["height"] <= (60 if width < 700 else 30)  # on a narrow screen its values wrap below
    look(running, f"paused-{width}-dark")
    assert running.evaluate("document.documentElement.scrollWidth") <= width


def test_a_pause_that_stands_is_no_success(running: Any) -> None:
    pause(running)
    running.keyboard.press("p")
    toast = running.get_by_text("Already paused")
    toast.wait_for()
    assert "✔" not in toast.inner_text()


# -- following ---------------------------------------------------------------------------------------------------------


def test_the_layer_view_follows_the_pause_until_somebody_chooses(running: Any) -> None:
    running.keyboard.press("g")
    running.keyboard.press("l")
    place = pause(running)
    kind = running.get_by_label("Which tensor")
    seen: list[str] = []
    for _ in range(24):
        where = place.locator("p").inner_text()
        running.keyboard.press("n")
        until(running, lambda where=where: place.locator("p").inner_text() != where)
        now = place.locator("p").inner_text()
        layer = place.get_by_role("button").inner_text()
        if running.get_by_role("heading", name=layer, exact=True).count():
            until(running, lambda now=now: kind.input_value() == ("gradient" if "backward" in now else "output"))
            seen.append("backward" if "backward" in now else "forward")
    assert {"forward", "backward"} <= set(seen)
    running.keyboard.press("k")
    chosen = running.locator("h1").inner_text()
    for _ in range(3):
        where = place.locator("p").inner_text()
        running.keyboard.press("n")
        until(running, lambda where=where: place.locator("p").inner_text() != where)
        assert running.locator("h1").inner_text() == chosen


def test_a_layer_without_numbers_says_so(page: Any, chromium: str, tmp_path: Path) -> None:
    with made_run(tmp_path / "idle") as run:
        run.module("never.runs", "Linear", run.model())
        run.scalar("loss", 0, 1.0)
        run.end(steps=1)
    with viewing(tmp_path / "idle") as address:
        page.goto(f"{address}/?view=layer")
        page.get_by_role("region", name="Over the steps").get_by_text("No data available").wait_for()
        page.goto("about:blank")


# -- keys and marks ----------------------------------------------------------------------------------------------------


def test_a_key_that_is_held_asks_once(running: Any) -> None:
    pause(running)
    asked: list[str] = []
    running.on("request", lambda one: asked.append(one.url) if one.method == "POST" else None)
    where = text(running, "announced")
    for _ in range(30):
        running.keyboard.down("n")  # the second and later ones are repeats
    running.keyboard.up("n")
    until(running, lambda: text(running, "announced") != where)
    assert len([one for one in asked if one.endswith("/api/step")]) == 1


def test_help_opens_from_the_scrubber_too(page: Any, recorded: str) -> None:
    page.goto(recorded)
    slider = page.get_by_label("Step shown")
    page.get_by_role("region", name=INSPECTOR).wait_for()
    slider.focus()
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").wait_for()


def test_marks_can_be_hit_at_both_ends_and_say_how_many_they_are(page: Any, tmp_path: Path) -> None:
    words, where = ["0.01", "60", "-1", "0"], "1 if step == 0 or step == 1 or step == 59"
    training = started(
        tmp_path, "hit", words, "--headless", "--breakpoint", where, NEURALDBG_BREAKPOINTS__PAUSE_ON_CONDITION="false"
    )
    _, said = training.communicate(timeout=120)
    assert training.returncode == 0, said
    with viewing(tmp_path / "hit") as address:
        for width in (390, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            page.goto(address)
            marks = page.get_by_role("button", name=re.compile("^Go to step"))
            until(page, lambda marks=marks: marks.count() >= 3)
            boxes = [marks.nth(at).bounding_box() for at in range(marks.count())]
            assert all(box["width"] >= 24 and box["height"] >= 24 for box in boxes)
            track = page.locator(".track").bounding_box()
            assert min(box["x"] for box in boxes) >= track["x"] - 0.5
            assert max(box["x"] + box["width"] for box in boxes) <= track["x"] + track["width"] + 0.5
            ends = sorted(boxes, key=lambda box: box["x"])
            assert all(one["x"] + one["width"] <= other["x"] + 0.5 for one, other in pairwise(ends))
        together = page.get_by_role("button", name=re.compile("^Go to step 0, 2 marks: step 0: .*; step 1: "))
        assert together.inner_text().startswith("*")
        assert "2" in together.inner_text()
        page.goto("about:blank")


def test_a_view_opens_in_a_tab_of_its_own_with_the_same_run_and_step(page: Any, recorded: str) -> None:
    page.goto(f"{recorded}/?run=healthy&layer=1&step=20")
    page.get_by_role("region", name=INSPECTOR).get_by_text("step 20").wait_for()
    for button, keys in (("left", ["ControlOrMeta"]), ("middle", [])):
        with page.context.expect_page() as opened:
            page.get_by_role("link", name="Layer", exact=True).click(button=button, modifiers=keys)
        other = opened.value
        other.get_by_role("region", name=INSPECTOR).get_by_text("step 20").wait_for()
        assert "view=layer" in other.url
        assert "view=layer" not in page.url
        other.close()


# -- what may go wrong -------------------------------------------------------------------------------------------------

REFUSING = """
const refuse = () => { throw new DOMException("no", "SecurityError"); };
for (const name of ["getItem", "setItem"]) Storage.prototype[name] = refuse;
for (const name of ["pushState", "replaceState"]) history[name] = refuse;
"""


def test_a_browser_that_keeps_nothing_shows_the_page_all_the_same(page: Any, recorded: str) -> None:
    page.add_init_script(REFUSING)
    page.goto(f"{recorded}/?run=healthy")
    inspector = page.get_by_role("region", name=INSPECTOR)
    inspector.get_by_text("step 39").wait_for()
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.keyboard.press("[")
    inspector.get_by_text("step 38").wait_for()
    page.keyboard.press("g")
    page.keyboard.press("w")
    page.get_by_role("region", name="Findings").first.wait_for()


def test_what_failed_is_said_until_it_was_read(page: Any, recorded: str) -> None:
    page.clock.install()
    page.goto(recorded)
    page.get_by_role("region", name=INSPECTOR).wait_for()
    page.keyboard.press("c")
    failed = page.get_by_text("No training process is attached to this run")
    failed.wait_for()
    page.clock.run_for(60_000)
    assert failed.is_visible()
    page.get_by_role("button", name="Dismiss").click()
    until(page, lambda: failed.count() == 0)


def test_the_end_says_that_the_server_is_gone_and_how_to_look_again(browser: Any, tmp_path: Path) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    try:
        with going_on(tmp_path) as address:
            page.goto(address)
            until(page, lambda: text(page, "state") == "RUNNING" and number(page, "step") > 3)
            page.once("dialog", lambda dialog: dialog.accept())
            page.get_by_role("button", name="End", exact=True).click()
            gone = page.get_by_role("alert").filter(has_text="server is gone")
            gone.wait_for(timeout=60_000)
            assert f"neural view {tmp_path / 'live'}" in gone.inner_text()
            assert "The run was ended here" in gone.inner_text()
            assert page.get_by_role("button", name="Pause").count() == 0  # nothing is offered that nobody would do
            assert text(page, "state") in ("INTERRUPTED", "SERVER GONE")
            look(page, "gone-dark")
        with viewing(tmp_path / "live", port=int(address.rpartition(":")[2])):
            until(page, lambda: gone.count() == 0 and text(page, "state") == "INTERRUPTED")
    finally:
        context.close()


def test_a_mistake_in_a_condition_is_marked_where_it_is(page: Any, recorded: str) -> None:
    page.goto(f"{recorded}/?view=breakpoints&run=healthy")
    page.get_by_label("Condition of the breakpoint").fill("  step > 3 and memroy > 1")
    page.get_by_text("did you mean memory").wait_for()
    assert page.locator("mark").inner_text() == "memroy > 1"


def test_a_token_reaches_the_page_through_a_file(browser: Any, runs: dict[str, Path], tmp_path: Path) -> None:
    server = subprocess.Popen(
        [*NEURAL, "view", "--host", "0.0.0.0", "--port", "8650", str(runs["healthy"])],
        cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    context = browser.new_context()
    try:
        assert server.stderr is not None
        found = re.search(r":(\d+)/\?token=([\w-]+)", server.stderr.readline())
        assert found is not None
        page = context.new_page()
        assert page.goto(f"http://127.0.0.1:{found[1]}/").status == 401
        page.goto(redirection(f"http://127.0.0.1:{found[1]}/?token={found[2]}", tmp_path).as_uri())
        page.get_by_role("region", name=INSPECTOR).get_by_text("step 39").wait_for()
        assert found[2] not in page.url
    finally:
        context.close()
        server.terminate()
        server.wait(30)
        server.stderr.close()


# -- what was tried ----------------------------------------------------------------------------------------------------


def test_what_was_tried_stands_beside_the_findings(page: Any, runs: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "tried"
    subprocess.run(["cp", "-r", str(runs["diverging"]), str(run)], check=True)
    with viewing(run) as address:
        page.goto(f"{address}/?view=why")
        page.get_by_text(f"neural whatif {run}").wait_for()
        page.goto("about:blank")
    arms = [
        _arm("lr x0.1", "verified", 0.25),
        _arm("momentum 0", "helps", 1.5),
        _arm("clip 1", "no_effect", "inf"),
        _arm("lr x10", "harm", "inf", note="ran out of time"),
    ]
    told = {"control": {"loss": "inf", "updates": 40}, "arms": arms, "notes": []}
    (run / "whatif.json").write_text(json.dumps(told))
    with viewing(run) as address:
        page.goto(f"{address}/?view=why")
        rows = page.get_by_role("region", name="What was tried").get_by_role("row")
        until(page, lambda: rows.count() == 5)
        assert [cell.inner_text() for cell in rows.nth(1).get_by_role("cell").all()] == [
            "lr x0.1", "learning rate too high", "inf", "0.25", "✔ verified"
        ]  # fmt: skip
        for at, outcome in ((2, "also helps"), (3, "no effect"), (4, "does harm ran out of time")):
            assert outcome in rows.nth(at).inner_text()
        look(page, "why-tried-dark")
        page.goto("about:blank")


def _arm(change: str, verdict: str, loss: float | str, note: str | None = None) -> dict[str, Any]:
    metric = {"name": "loss", "control": "inf", "arm": loss}
    causes = ["learning_rate_too_high"]
    return {"intervention": change, "causes": causes, "verdict": verdict, "metric": metric, "patch": None, "note": note}


# -- many ranks --------------------------------------------------------------------------------------------------------

RANKS = 300


@pytest.fixture(scope="module")
def many_ranks(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many") / "run"
    with made_run(folder) as first:
        _steps(first, 0, 4)
        for rank in range(1, RANKS):
            with TraceWriter(folder, rank=rank, threaded=False) as writer:
                _steps(MadeRun(folder, writer), rank, 4 if rank != 217 else 1)
        first.end(steps=4)
    return folder


def _steps(run: MadeRun, rank: int, steps: int) -> None:
    for step in range(steps):
        run.scalar("loss", step, 1.0 + rank)
        run.scalar("step_time_s", step, 0.010 + 0.0001 * rank)


def test_hundreds_of_ranks_stay_readable(page: Any, many_ranks: Path) -> None:
    with viewing(many_ranks) as address:
        page.goto(address)
        strip = page.get_by_role("group", name="Ranks")
        strip.get_by_text(f"{RANKS} ranks").wait_for()
        until(page, lambda: "rank 217: step 0" in strip.inner_text())  # the one that is behind, before anybody looks
        assert strip.bounding_box()["height"] <= 120
        cells = strip.get_by_role("button")
        assert cells.count() == RANKS
        cells.nth(42).focus()
        until(page, lambda: "rank 42: step 3, loss 43" in strip.inner_text())
        cells.nth(7).hover()
        until(page, lambda: "rank 7: step 3, loss 8" in strip.inner_text())
        look(page, "ranks-dark")
        page.goto("about:blank")


# -- for everybody -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_no_serious_barrier_while_a_run_goes_on_and_while_it_is_held(running: Any, theme: str) -> None:
    if not AXE.is_file():
        without("axe-core (npm install in web/)")
    if theme == "light":
        running.keyboard.press("t")
    running.evaluate(AXE.read_text(encoding="utf-8"))
    serious = _barriers(running, "live")
    place = pause(running)
    running.keyboard.press("n")
    place.get_by_text("· next layer").wait_for()
    place.get_by_text("values").click()
    look(running, f"paused-{theme}")
    serious += _barriers(running, "paused")
    place.get_by_role("button").click()
    running.get_by_role("region", name="Tensor").get_by_text("float32 on cpu").wait_for()
    look(running, f"paused-layer-{theme}")
    serious += _barriers(running, "paused layer")
    running.keyboard.press("b")
    running.get_by_role("button", name="A breakpoint stands here").wait_for()
    running.keyboard.press("g")
    running.keyboard.press("b")
    running.get_by_role("checkbox", name=re.compile("^Breakpoint at")).first.wait_for()
    serious += _barriers(running, "breakpoints")
    running.get_by_role("button", name=re.compile("^Remove the breakpoint")).first.click()
    running.get_by_text("No breakpoints.").wait_for()
    assert serious == []


def _barriers(page: Any, where: str) -> list[tuple[str, str, str]]:
    found = page.evaluate("axe.run().then((found) => found.violations)")
    return [
        (where, one["id"], node["html"][:200]) for one in found if one["impact"] in SERIOUS for node in one["nodes"]
    ]
