"""The scrubber moves also what is summed up, and nothing old is shown as if it were new."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from made_runs import MadeRun, made_run
from test_page import until
from trainings import viewing

from neuraldbg.trace import TraceWriter

SLOWEST = "Slowest 10 layers"


def calls(page: Any) -> set[str]:
    rows = page.get_by_role("region", name=SLOWEST).get_by_role("row")
    return {rows.nth(at).get_by_role("cell").nth(2).inner_text() for at in range(1, rows.count())}


def test_the_slowest_layers_are_those_up_to_the_step_shown(page: Any, recorded: str) -> None:
    page.goto(f"{recorded}/?run=healthy&step=9")
    panel = page.get_by_role("region", name=SLOWEST)
    panel.get_by_text("forward, up to step 9").wait_for()
    assert calls(page) == {"10"}
    page.keyboard.press("]")
    panel.get_by_text("forward, up to step 10").wait_for()
    assert calls(page) == {"11"}
    page.keyboard.press("End")
    panel.get_by_text("forward, whole run").wait_for()
    assert calls(page) == {"40"}


def test_the_profile_is_of_the_steps_up_to_the_one_shown(page: Any, recorded: str) -> None:
    page.goto(f"{recorded}/?view=performance&run=healthy&step=5")
    panel = page.get_by_role("region", name="Layer profiling")
    panel.get_by_text(re.compile(r"^up to step 5: 6 of 6 steps were timed")).wait_for()
    page.keyboard.press("End")
    panel.get_by_text(re.compile(r"^whole run: \d+ of 40 steps were timed")).wait_for()


def test_ranks_stand_where_they_stood_then(page: Any, chromium: str, tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    with made_run(folder) as first, TraceWriter(folder, rank=1, threaded=False) as writer:
        for run, steps in ((first, 20), (MadeRun(folder, writer), 6)):
            for step in range(steps):
                run.scalar("loss", step, 1.0 + step)
        first.end(steps=20)
    with viewing(folder, port=8490) as address:
        page.goto(f"{address}/?step=4")
        strip = page.get_by_role("group", name="Ranks")
        strip.get_by_text("2 ranks · up to step 4").wait_for()
        second = strip.get_by_role("button").nth(1)
        assert second.get_attribute("aria-label").startswith("rank 1: step 4, loss 5,")
        page.keyboard.press("End")
        strip.get_by_text("rank 1: step 5, loss 6, – ▲ behind").wait_for()
        page.goto(f"{address}/?view=heatmap")
        with page.expect_request(re.compile(r"/api/heatmap/cells\?.*rank=1")):
            page.get_by_label("Rank", exact=True).select_option("1")
        page.goto("about:blank")


MARKED = """(chart) => {
  const canvas = chart.querySelector("canvas");
  const accent = getComputedStyle(chart).getPropertyValue("--accent").trim();
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(accent.slice(at, at + 2), 16));
  const { width, height } = canvas;
  const pen = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  pen.drawImage(canvas, 0, 0);
  const { data } = pen.getImageData(0, 0, width, height);
  for (let x = 0; x < width; x++) {
    let seen = 0;
    for (let y = 0; y < height; y++) {
      const at = 4 * (y * width + x);
      if (data[at] === red && data[at + 1] === green && data[at + 2] === blue) seen++;
    }
    if (seen > height / 2) return true;
  }
  return false;
}"""


def test_every_curve_marks_the_step_shown(page: Any, recorded: str) -> None:
    for view, step in (("overview", 11), ("layer", 39), ("performance", 0), ("memory-profiling", 20)):
        page.goto(f"{recorded}/?view={view}&run=healthy&step={step}&layer=1")
        page.locator(".chart canvas").first.wait_for()
        page.wait_for_load_state("networkidle")
        charts = page.locator(".chart")
        assert charts.count() >= 1
        for at in range(charts.count()):
            until(page, lambda at=at, charts=charts: charts.nth(at).evaluate(MARKED))


def test_an_answer_about_something_else_is_blurred_until_the_right_one_is_there(page: Any, recorded: str) -> None:
    page.goto(f"{recorded}/?view=heatmap&run=healthy")
    panel = page.get_by_role("region", name="grad norm of every layer over the steps")
    panel.get_by_role("img").first.wait_for()
    held: list[Any] = []
    page.route("**/api/heatmap/cells?*", lambda route: held.append(route))
    page.get_by_label("Metric").select_option("mean_activation")
    panel = page.get_by_role("region", name="mean activation of every layer over the steps")
    panel.get_by_text("reading …").wait_for()
    assert panel.get_attribute("aria-busy") == "true"
    until(page, lambda: "blur" in panel.locator("canvas").evaluate("one => getComputedStyle(one).filter"))
    until(page, lambda: len(held) == 1)
    held.pop().continue_()
    until(page, lambda: panel.get_attribute("aria-busy") == "false")
    assert panel.locator("canvas").evaluate("one => getComputedStyle(one).filter") == "none"
    page.unroute("**/api/heatmap/cells?*")


def test_a_heatmap_has_the_scale_that_was_chosen_and_the_layers_at_one_step(page: Any, recorded: str) -> None:
    page.goto(f"{recorded}/?view=heatmap&run=healthy&step=7")
    panel = page.get_by_role("region", name="grad norm of every layer over the steps")
    panel.get_by_role("img").first.wait_for()
    for scale, says in (("log", True), ("linear", False)):
        page.get_by_label("Scale").select_option(scale)
        until(page, lambda says=says: ("by powers of ten" in panel.locator(".legend").inner_text()) is says)
    column = page.get_by_role("region", name="grad norm of every layer, step 7")
    column.get_by_role("img", name=re.compile("^grad norm of every layer, step 7 of [0-9]+ layers")).wait_for()


def test_memory_has_what_a_profile_knows_of_it(page: Any, chromium: str, tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        site = run.module("fc", "Linear", run.model())
        for step in range(12):
            run.scalar("step_time_s", step, 0.02)
        held = [{"site": site, "saved_bytes": 4_000_000, "allocated_bytes": 1_000}]
        sizes = {"parameter_bytes": 8_000_000, "gradient_bytes": 8_000_000, "optimizer_bytes": 16_000_000}
        run.writer.fact("layer_memory", layers=held, outside_bytes=0, **sizes)
        run.end(steps=12)
    with viewing(tmp_path / "run", port=8490) as address:
        page.goto(f"{address}/?view=memory")
        panel = page.get_by_role("region", name="Memory profiling")
        panel.get_by_role("img", name=re.compile("^Kept for the backward, by layer")).wait_for()
        assert panel.get_by_role("row", name="optimizer 16 MB").count() == 1
        page.goto("about:blank")


# -- by keyboard -------------------------------------------------------------------------------------------------------


def test_a_flame_graph_is_walked_and_zoomed_by_keys(page: Any, recorded: str) -> None:
    page.goto(f"{recorded}/?view=performance&run=healthy&step=20")
    panel = page.get_by_role("region", name="Flame graph", exact=True)
    graph = panel.get_by_role("application", name=re.compile("^Flame graph of"))
    graph.focus()
    graph.press("ArrowRight")  # begins at the first call
    panel.get_by_text("% of the step").wait_for()
    graph.press("ArrowDown")
    inner = panel.locator("p .mono").inner_text()
    graph.press("Enter")
    panel.get_by_role("button", name="whole step").wait_for()
    assert f"layer={inner}" in page.url
    graph.press("Escape")
    until(page, lambda: panel.get_by_role("button", name="whole step").count() == 0)
