"""What the page draws is what was measured: in its table and its legend there is a word for everything else."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from made_runs import made_run
from test_page import look, until
from trainings import report, viewing

from neuraldbg.records import Kind, Phase

DRAWN = "c => new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size"


@pytest.fixture(scope="module")
def odd(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Measured in its first 20 steps and then now and then; infinities in one layer, NaN in another, and a hole."""
    folder = tmp_path_factory.mktemp("odd") / "odd"
    with made_run(folder) as run:
        model = run.model()
        sites = [run.module(f"layers.{at}", "Linear", model, parameters=10) for at in range(4)]
        for step in range(1000):
            run.scalar("loss", step, math.nan if step > 950 else 3.0 - step / 1000)
            if step < 20 or (step % 40 == 0 and not 400 < step < 700):
                for at, site in enumerate(sites):
                    norm = math.inf if at == 1 and step > 800 else math.nan if at == 2 and step > 800 else 1.0 + at
                    run.stats(site, Kind.ACTIVATION, step, mean=-math.inf if at == 3 and step > 800 else norm)
                    run.stats(site, Kind.GRADIENT, step, Phase.BACKWARD, l2=norm)
        run.end(steps=1000)
    return folder


@pytest.fixture(scope="module")
def shown(odd: Path) -> Iterator[str]:
    with viewing(odd, port=8470) as address:
        yield address


def rows_of(place: Any) -> list[list[str]]:
    place.get_by_text("view as table").first.click()
    rows = place.get_by_role("region", name=re.compile("as a table")).first.get_by_role("row")
    rows.nth(1).wait_for()
    return [rows.nth(at).get_by_role("cell").all_inner_texts() for at in range(1, rows.count())]


def test_a_heatmap_has_words_and_signs_for_what_is_no_number(page: Any, shown: str) -> None:
    page.goto(f"{shown}/?view=heatmap&step=960")
    panel = page.get_by_role("region", name="grad norm of every layer over the steps")
    panel.get_by_role("img", name=re.compile("4 layers over steps 0 to 999;")).wait_for()
    legend = panel.locator(".legend").inner_text()
    assert {"NaN", "inf", "not measured"} <= {line.strip() for line in legend.splitlines()}
    assert "measured at 37 of 1,000 steps" in legend
    assert rows_of(panel) == [
        ["layers.0", "≈ 1", "≈ 1"], ["layers.1", "inf", "inf"], ["layers.2", "NaN", "NaN"], ["layers.3", "≈ 4", "≈ 4"]
    ]  # fmt: skip
    look(page, "heatmap-odd-dark")
    page.get_by_label("Metric").select_option("mean_activation")
    panel = page.get_by_role("region", name="mean activation of every layer over the steps")
    panel.get_by_text("−inf", exact=True).first.wait_for()


def test_a_hole_in_the_measurements_is_shown_as_one(page: Any, shown: str) -> None:
    page.goto(f"{shown}/?view=heatmap&step=600")
    panel = page.get_by_role("region", name=re.compile("of every layer"))
    assert [row[1] for row in rows_of(panel)] == ["not measured"] * 4


def test_panels_say_of_which_step_their_values_are(page: Any, shown: str) -> None:
    def panel(name: str) -> Any:
        return page.get_by_role("region", name=name, exact=True)

    page.goto(f"{shown}/?step=930&layer=layers.0")
    for name in ("Model structure", "Health", "Layer inspector"):
        panel(name).get_by_text("values of step 920, not of step 930").wait_for()
    page.goto(f"{shown}/?step=955&layer=layers.0")
    for name in ("Model structure", "Health", "Layer inspector"):
        panel(name).get_by_text("values of step 920, before the loss was NaN").wait_for()
        assert panel(name).evaluate("one => getComputedStyle(one).borderStyle") == "dashed"
    assert panel("Model structure").locator(".health.ok").count() == 0  # who was well before may not be now
    page.keyboard.press("}")
    panel("Model structure").get_by_text("values of step 960").wait_for()  # the last one measured, and the run is over
    page.goto(f"{shown}/?step=960&layer=layers.0")
    panel("Model structure").get_by_text("measured at step 960").wait_for()
    assert page.get_by_text("▲ values of step").count() == 0
    assert panel("Model structure").locator(".health.ok").count() >= 1
    page.goto(f"{shown}/?view=heatmap&step=930")
    panel("grad norm of every layer, step 930").get_by_text("values of step 920, not of step 930").wait_for()
    page.goto(f"{shown}/?view=heatmap&step=955")
    picture = panel("grad norm of every layer over the steps")
    picture.get_by_role("img").first.wait_for()
    assert [row[1] for row in rows_of(picture)] == ["not measured"] * 4


def test_an_address_beyond_the_end_is_brought_back_to_it(page: Any, shown: str) -> None:
    page.goto(f"{shown}/?step=99999")
    until(page, lambda: page.get_by_test_id("shown-step").inner_text() == "999")
    assert "step=999" in page.url


def test_a_layer_is_found_by_its_type(page: Any, shown: str) -> None:
    page.goto(shown)
    tree = page.get_by_role("region", name="Model structure")
    tree.get_by_label("Search a layer").fill("LIN")
    until(page, lambda: tree.get_by_text("Linear").count() == 4)
    tree.get_by_label("Search a layer").fill("conv")
    tree.get_by_text("No layer has “conv” in its name or type.").wait_for()


def test_menus_offer_nothing_twice_and_by_names_that_people_use(page: Any, recorded: str) -> None:
    page.goto(f"{recorded}/?run=healthy")
    series = page.get_by_label("Series").locator("option")
    until(page, lambda: series.count() > 2)
    assert {"loss", "learning rate", "time of a step"} <= set(series.all_inner_texts())
    assert "loss.0" not in series.all_inner_texts()  # one line calls backward: its loss is the loss


@pytest.mark.parametrize("width", [390, 1440])
def test_curves_of_few_steps_say_so_and_name_the_value_and_the_largest(page: Any, shown: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{shown}/?view=heatmap&layer=layers.1&step=500")
    panel = page.get_by_role("region", name="grad norm of layers.1", exact=True)
    panel.get_by_text("measured at 37 of 1,000 steps; --budget full measures every step").wait_for()
    panel.get_by_text("at step 400").wait_for()  # the last one that was measured until then
    panel.get_by_text("largest shown inf, first at step 840").wait_for()
    table = {row[0]: row[1:] for row in rows_of(panel)}
    assert (len(table), table["400"], table["840"]) == (37, ["2", "2"], ["inf", "inf"])
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_every_drawing_of_health_has_its_table(page: Any, shown: str) -> None:
    page.goto(shown)
    health = page.get_by_role("region", name="Health")
    health.get_by_role("img", name=re.compile("^Gradient norm over the steps")).wait_for()
    assert health.get_by_text("view as table").count() == health.locator("canvas").count() == 2
    until(page, lambda: health.locator("canvas").last.evaluate(DRAWN) > 5)


def test_a_report_has_the_same_curves(lone: Callable[..., Any], odd: Path, tmp_path: Path) -> None:
    report(odd, tmp_path / "sent.html")
    sent = lone(tmp_path / "sent.html", query="?view=heatmap&layer=layers.2&step=900")
    panel = sent.get_by_role("region", name="grad norm of layers.2", exact=True)
    panel.get_by_text("at step 880").wait_for()
    panel.get_by_text("largest shown NaN, first at step 840").wait_for()
    table = {row[0]: row[1:] for row in rows_of(panel)}
    assert (len(table), table["40"], table["880"]) == (37, ["3", "3"], ["NaN", "NaN"])
    offered = sent.get_by_label("Metric").locator("option").all_inner_texts()
    assert "grad norm" in offered
    assert "weight norm" not in offered  # nothing of it was measured
