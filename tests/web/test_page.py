"""The page in a real browser: what a person sees, does by mouse and by keyboard, and hears."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from trainings import without

ROOT = Path(__file__).parents[2]
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
VIEWS = {
    "overview": "Model structure",
    "why": "Findings",
    "heatmap": "grad norm of every layer over the steps",
    "layer": "Layer inspector",
    "breakpoints": "Breakpoints",
    "performance": "Flame graph",
    "compare": "Where they part",
    "Execution Trace": "Timeline of a step",
    "Gradient Analysis": "Gradient norm",
    "Activation Statistics": "Zero outputs",
    "Memory Profiling": "Memory over time",
    "Anomaly Detection": "Alarms",
}


def look(page: Any, name: str) -> None:
    """Kept for people, where they ask for it: no test compares pixels."""
    folder = os.environ.get("PAGE_SCREENSHOTS")
    if folder:
        page.wait_for_timeout(700)
        (Path(folder) / f"{name}.png").write_bytes(page.screenshot(full_page=True))


def text(page: Any, name: str) -> str:
    found: str = page.get_by_test_id(name).inner_text()
    return found


def until(page: Any, holds: Callable[[], bool]) -> None:
    for _ in range(600):
        if holds():
            return
        page.wait_for_timeout(50)
    raise AssertionError("it never came to that")


def number(page: Any, name: str) -> int:
    return int(text(page, name).replace(",", "").replace("–", "-1"))


# -- recorded runs -----------------------------------------------------------------------------------------------------


def test_the_verdict_is_the_first_thing_on_the_page(page: Any, recorded: str) -> None:
    page.goto(recorded)
    page.get_by_text("learning rate").first.wait_for()
    assert text(page, "state") == "FINISHED"
    assert page.get_by_test_id("headline").bounding_box()["y"] < 80
    look(page, "overview-dark")
    page.get_by_role("button", name="Why").click()
    assert "view=why" in page.url
    page.get_by_role("heading", name="How it came about").wait_for()


def test_why_shows_evidence_inference_and_fix_of_every_finding(page: Any, recorded: str) -> None:
    page.goto(f"{recorded}/?view=why")
    findings = page.get_by_role("region", name="Findings").get_by_role("button")
    findings.first.wait_for()
    for at in range(findings.count()):
        findings.nth(at).click()
        for title in ("How it came about", "How we know", "What to do"):
            page.get_by_role("heading", name=title, exact=True).wait_for()
        assert page.get_by_text("Measured", exact=True).is_visible()
        assert page.get_by_text("Concluded", exact=True).is_visible()
    look(page, "why-dark")


def test_the_scrubber_moves_every_panel_into_the_past(page: Any, recorded: str) -> None:
    page.goto(f"{recorded}/?run=healthy&layer=1")
    inspector = page.get_by_role("region", name="Layer inspector")
    inspector.get_by_text("step 39").wait_for()
    page.keyboard.press("{")
    assert text(page, "shown-step") == "0"
    inspector.get_by_text("step 0").wait_for()
    page.get_by_role("region", name="Model structure").get_by_text("measured at step 0").wait_for()
    page.get_by_role("region", name="Performance flame graph").get_by_text("step 0").wait_for()
    for _ in range(5):
        page.keyboard.press("]")
    inspector.get_by_text("step 5").wait_for()
    assert "step=5" in page.url
    page.reload()  # the address holds the state
    inspector.get_by_text("step 5").wait_for()
    page.get_by_label("Step shown").fill("20")
    inspector.get_by_text("step 20").wait_for()
    page.keyboard.press("End")
    until(page, lambda: text(page, "shown-step") == "39")


def test_marks_on_the_scrubber_lead_to_the_findings(page: Any, recorded: str) -> None:
    page.goto(recorded)
    page.get_by_text("learning rate").first.wait_for()  # the marks of checkpoints are there before the findings
    mark = page.get_by_role("button", name=re.compile("^Go to step"))
    mark.last.click()
    shown = text(page, "shown-step")
    assert shown != "39"
    page.keyboard.press("f")
    until(page, lambda: text(page, "shown-step") != shown)


def test_a_run_that_crashed_says_why(page: Any, recorded: str) -> None:
    page.goto(f"{recorded}/?run=crashed")
    page.get_by_text("the loader gave up").first.wait_for()
    assert text(page, "state") == "CRASHED"
    assert page.get_by_text("recorded run").is_visible()
    look(page, "crashed-dark")


def test_losses_are_compared_over_steps_time_or_epochs(page: Any, recorded: str) -> None:
    page.goto(f"{recorded}/?view=compare&run=healthy&other=crashed&align=time")
    losses = page.get_by_role("region", name="Losses over the time, s")
    losses.get_by_role("img", name=re.compile("over 400 points from step 0 to")).wait_for()
    page.get_by_role("button", name="epoch", exact=True).click()
    assert "align=epoch" in page.url
    page.get_by_text("Not known: run A used no DataLoader").wait_for()
    page.get_by_role("button", name="step", exact=True).click()
    page.get_by_role("region", name="Losses over the steps").get_by_role("img", name=re.compile("to 39$")).wait_for()
    assert "align" not in page.url


def test_histograms_of_a_layer_lie_over_the_steps(page: Any, recorded: str) -> None:
    page.goto(f"{recorded}/?view=layer&run=healthy&layer=1&step=16")
    panel = page.get_by_role("region", name="Distribution over time")
    for kind in ("Activation", "Gradient", "Weight"):
        panel.get_by_role("button", name=kind).click()
        panel.get_by_text("at step 16").wait_for()
    panel.get_by_text("1.weight").wait_for()
    panel.get_by_text("view as table").click()
    rows = panel.get_by_role("region", name="parameter over the steps as a table").get_by_role("row")
    rows.nth(4).wait_for()
    steps = [int(rows.nth(at).get_by_role("cell").first.inner_text()) for at in range(1, 5)]
    assert steps[0] == 0
    assert steps == sorted(steps)
    assert 16 in steps  # on a busy machine 8 is left out: its steps are long
    assert rows.nth(1).get_by_role("cell").nth(1).inner_text() == "32"  # values that were looked at


def test_saved_checkpoints_are_marked_on_the_scrubber(page: Any, recorded: str) -> None:
    page.goto(f"{recorded}/?run=healthy")
    mark = page.get_by_role("button", name=re.compile(r"checkpoint saved \(model\.pt\), train\.py:\d+$"))
    mark.click()
    assert (mark.inner_text(), text(page, "shown-step")) == ("^", "20")


def test_two_runs_are_compared(page: Any, recorded: str) -> None:
    page.goto(f"{recorded}/?view=compare&other=healthy")
    where = page.get_by_role("region", name="Where they part")
    where.get_by_text("First at step").wait_for()
    page.get_by_role("region", name="Side by side").get_by_text("SGD lr 9").wait_for()
    page.get_by_label("Run compared with").select_option("crashed")
    assert "other=crashed" in page.url
    page.get_by_role("region", name="Side by side").get_by_text("crashed").first.wait_for()
    look(page, "compare-dark")


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_has_its_name_in_the_address_and_a_table_beside_its_drawings(
    page: Any, recorded: str, view: str
) -> None:
    page.goto(f"{recorded}/?view={view}&run=healthy")
    page.get_by_role("heading", name=VIEWS[view], exact=False).first.wait_for()
    page.wait_for_load_state("networkidle")
    drawings = page.locator("main canvas:visible, main .chart:visible").count()
    assert page.get_by_text("view as table").count() >= page.locator("main canvas:visible").count()
    assert drawings or view in ("breakpoints", "why")
    look(page, f"view-{view.lower().replace(' ', '-')}-dark")


def test_the_execution_trace_has_shapes_time_and_memory_of_every_layer(page: Any, recorded: str) -> None:
    page.goto(f"{recorded}/?view=Execution Trace&run=healthy")
    table = page.get_by_role("region", name="Every layer").get_by_role("table")
    table.wait_for()
    heads = [each.strip() for each in table.locator("th").all_inner_texts()]
    assert heads[:6] == ["layer", "type", "in", "out", "time", "memory"]
    cells = [row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()]
    assert cells
    assert all(re.fullmatch(r"\[\d+( × \d+)*\]", cell) for row in cells for cell in row[2:4])


def test_a_table_has_what_the_canvas_shows(page: Any, recorded: str) -> None:
    page.goto(f"{recorded}/?view=heatmap&run=healthy&step=10")
    canvas = page.locator("main canvas").first
    canvas.wait_for()
    drawn = "c => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size"
    until(page, lambda: canvas.evaluate(drawn) > 20)
    page.get_by_text("view as table").first.click()
    rows = page.get_by_role("region", name=re.compile("as a table")).get_by_role("row")
    rows.nth(1).wait_for()
    assert rows.count() > 5  # layers, and the head
    assert re.search(r"≈ [\d.e-]+", rows.nth(1).inner_text())


def test_a_condition_is_tried_on_what_was_recorded(page: Any, recorded: str) -> None:
    page.goto(f"{recorded}/?view=breakpoints&run=healthy")
    page.get_by_label("Layer of the breakpoint").fill("1")
    page.get_by_label("Condition of the breakpoint").fill("step >= 26")
    page.get_by_text("would have hit 14 times").wait_for()
    assert page.get_by_role("button", name="Add").is_disabled()  # nobody trains


# -- a run that goes on ------------------------------------------------------------------------------------------------


LISTED = "fetch('/api/breakpoint').then((answer) => answer.json())"


def sent(page: Any, method: str, rest: str, body: str) -> Any:
    """As somebody else would: by a request of its own."""
    more = f"{{method: '{method}', headers: {{'content-type': 'application/json'}}, body: JSON.stringify({body})}}"
    return page.evaluate(f"fetch('/api/breakpoint{rest}', {more}).then((answer) => answer.json())")


def going(page: Any, address: str) -> None:
    """Open a run that goes on. Where a test that failed left it paused, at a breakpoint maybe, it is let go first."""
    page.goto(address)
    until(page, lambda: text(page, "state") in ("RUNNING", "PAUSED"))
    if text(page, "state") == "PAUSED":
        for name in page.evaluate(LISTED):
            sent(page, "DELETE", "", f"{{layer_name: '{name}'}}")
        page.get_by_role("button", name="Continue").click()
    until(page, lambda: text(page, "state") == "RUNNING" and number(page, "step") >= 0)


@pytest.fixture
def paused(page: Any, live: str) -> Iterator[Any]:
    """The page of the live run, paused by key; it goes on afterwards."""
    going(page, live)
    before = number(page, "step")
    until(page, lambda: number(page, "step") > before)
    page.keyboard.press("p")
    until(page, lambda: text(page, "state") == "PAUSED")
    yield page
    page.get_by_role("button", name="Continue").click()
    until(page, lambda: text(page, "state") == "RUNNING")


def test_a_live_run_is_paused_by_key_and_its_tensors_looked_at(paused: Any) -> None:
    assert text(paused, "announced").startswith("Paused at ")
    place = paused.get_by_role("group", name="Pause")
    paused.keyboard.press("n")
    place.get_by_text("· next layer").wait_for()
    layer = place.get_by_role("button").inner_text()
    place.get_by_role("button").click()
    paused.get_by_role("heading", name=layer, exact=True).wait_for()
    paused.get_by_role("region", name="Layer inspector").get_by_text("values of this pause").wait_for()
    tensor = paused.get_by_role("region", name="Tensor")
    tensor.get_by_text("float32 on cpu").wait_for()
    tensor.get_by_label("Slice").fill("0, :3")
    tensor.get_by_role("button", name="Show", exact=True).click()
    tensor.get_by_text("slice 0, :3 [3]").wait_for()
    look(paused, "paused-layer-dark")


def test_a_condition_is_checked_while_it_is_typed_and_stops_the_run(paused: Any) -> None:
    paused.keyboard.press("g")
    paused.keyboard.press("b")
    layer, condition = (
        paused.get_by_label("Layer of the breakpoint"),
        paused.get_by_label("Condition of the breakpoint"),
    )
    layer.fill("nonsense")
    paused.get_by_text("no layer 'nonsense'").wait_for()
    layer.fill("1")
    condition.fill("step % 1 ==")
    paused.get_by_text("not Python syntax").wait_for()
    condition.fill("step >= 0")
    paused.get_by_text("would have hit").wait_for()
    paused.get_by_label("Group of the breakpoint").fill("mine")
    paused.get_by_role("button", name="Add").click()
    listed = paused.get_by_role("region", name="Breakpoints", exact=True).last
    kept = listed.get_by_label("Condition at 1")
    kept.wait_for()
    assert kept.input_value() == "step >= 0"
    kept.fill("step >= 1")  # and is changed where it stands
    kept.press("Enter")
    paused.get_by_text("Breakpoint changed for 1").wait_for()

    paused.get_by_role("heading", name="Breakpoints", exact=True).click()
    paused.keyboard.press("c")
    paused.get_by_role("region", name="Hits").get_by_text("breakpoint hit at 1").first.wait_for()
    until(paused, lambda: text(paused, "state") == "PAUSED")
    paused.get_by_role("checkbox", name="mine").uncheck()
    until(paused, lambda: not listed.get_by_role("checkbox").first.is_checked())
    look(paused, "breakpoints-hit-dark")
    paused.get_by_role("button", name="Remove the breakpoint at 1").click()
    paused.get_by_text("No breakpoints.").wait_for()


def test_a_pause_tells_the_numbers_of_its_place(paused: Any) -> None:
    known = paused.evaluate("fetch('/api/state').then((answer) => answer.json())")["values"]
    assert known
    place = paused.get_by_role("group", name="Pause")
    place.get_by_text("values").click()
    told = place.inner_text().lower()
    assert all(name.replace("_", " ") in told for name in known)
    step = paused.evaluate("fetch('/api/state').then((answer) => answer.json())")["step"]
    assert f"step {step:,}" in place.locator("p").inner_text()  # to the last digit


def test_the_end_of_a_training_is_asked_for_twice(page: Any, live: str) -> None:
    going(page, live)
    asked: list[str] = []
    page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    page.get_by_role("button", name="End", exact=True).click()
    assert asked == ["End this training now, as Ctrl-C does?"]
    before = number(page, "step")
    until(page, lambda: number(page, "step") > before)


def test_a_live_run_can_be_looked_back_on_while_it_goes_on(page: Any, live: str) -> None:
    going(page, f"{live}/?step=1")
    before = number(page, "step")
    until(page, lambda: number(page, "step") > before)
    assert text(page, "shown-step") == "1"
    page.get_by_role("button", name="LIVE").click()
    until(page, lambda: number(page, "shown-step") == number(page, "step"))


# -- manners -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("width", [320, 1440])
def test_it_fits_every_screen_in_both_themes(page: Any, recorded: str, width: int, theme: str) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(recorded)
    page.get_by_role("region", name="Layer inspector").wait_for()
    if theme == "light":
        page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    for view in ("overview", "why", "heatmap", "layer", "breakpoints", "Execution Trace", "compare"):
        page.goto(f"{recorded}/?view={view}")
        page.get_by_role("heading", name=VIEWS[view]).first.wait_for()
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        look(page, f"{view.lower().replace(' ', '-')}-{width}-{theme}")


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_no_serious_barrier_in_any_view(page: Any, recorded: str, theme: str) -> None:
    if not AXE.is_file():
        without("axe-core (npm install in web/)")
    page.add_init_script(f"localStorage.setItem('neuraldbg.theme', '{theme}')")
    serious = []
    for view in VIEWS:
        page.goto(f"{recorded}/?view={view}")
        page.get_by_role("heading", name=VIEWS[view]).first.wait_for()
        page.wait_for_load_state("networkidle")
        page.evaluate(AXE.read_text(encoding="utf-8"))
        for one in page.evaluate("axe.run().then(found => found.violations)"):
            if one["impact"] in ("serious", "critical"):
                serious += [(view, one["id"], node["html"][:200]) for node in one["nodes"]]
    assert serious == []


def test_the_help_sheet_lists_the_keys(page: Any, recorded: str) -> None:
    page.goto(recorded)
    page.get_by_role("region", name="Layer inspector").wait_for()
    page.keyboard.press("?")
    sheet = page.get_by_role("dialog", name="Keys")
    assert sheet.get_by_text("break on the selected layer").is_visible()
    page.keyboard.press("Escape")
    until(page, lambda: not sheet.is_visible())
    focused = "document.activeElement.matches('[data-search]')"
    until(page, lambda: page.evaluate(focused) or page.keyboard.press("/"))  # the sheet goes a moment after Escape
    page.keyboard.type("p")  # into the search: no key of ours
    page.get_by_text("no layer has").or_(page.get_by_label("Search a layer")).first.wait_for()
    assert page.get_by_label("Search a layer").input_value() == "p"


def test_what_cannot_be_done_is_said(page: Any, recorded: str) -> None:
    page.goto(recorded)
    page.get_by_role("region", name="Layer inspector").wait_for()
    page.keyboard.press("c")
    page.get_by_text("No training process is attached to this run").wait_for()
