"""The dashboard of plots in a real browser: it opens from the disk, asks for nothing, and is read in both themes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuraldbg.debug import DebugVisualizer


@pytest.fixture
def dashboard(tmp_path: Path) -> Path:
    values = np.random.default_rng(0)
    made = DebugVisualizer(output_directory=tmp_path)
    made.plot_loss(range(5), [3.0, 2.0, math.nan, 1.5, 1.0], validation=[3.0, 2.5, 2.0, 1.75, 1.25])
    made.plot_tensor_distribution("weights", values.normal(size=500), 20)
    made.plot_gradient_flow("fc1", range(4), [1.0, 0.1, 0.01, 0.001])
    made.plot_heatmap("grid", values.normal(size=(5, 7)))
    made.plot_activation_ridges("relu", [values.normal(size=200) for _ in range(3)])
    return made.create_dashboard().path


Opened = Callable[..., Any]


def test_every_plot_is_drawn_and_nothing_is_asked_for(lone: Opened, dashboard: Path) -> None:
    page = lone(dashboard)
    boxes = [each.bounding_box() for each in page.locator("svg").all()]
    assert len(boxes) == 5
    assert all(box["width"] > 200 and box["height"] > 100 for box in boxes)
    assert page.locator("svg .bar").count() == 20
    assert page.locator("image").evaluate("one => one.getBBox().width") > 0


def test_the_value_under_the_pointer_is_read(lone: Opened, dashboard: Path) -> None:
    page = lone(dashboard)
    loss = page.locator("svg").first
    box = loss.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + box["height"] / 2)
    assert loss.locator(".read").text_content() == "4: loss 1.00, validation 1.25"
    page.mouse.move(0, 0)
    assert loss.locator(".read").text_content() == ""


def test_it_is_dark_and_light(lone: Opened, dashboard: Path) -> None:
    dark, light = _colours(lone(dashboard, "dark")), _colours(page := lone(dashboard, "light"))
    assert _brightness(dark[0]) < 60 < 200 < _brightness(light[0])
    assert _brightness(dark[1]) > _brightness(light[1])
    page.get_by_role("button").click()
    assert _colours(page) == dark


def test_it_fits_a_phone(lone: Opened, dashboard: Path) -> None:
    page = lone(dashboard)
    page.set_viewport_size({"width": 360, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def _colours(page: Any) -> list[list[int]]:
    script = "() => { const s = getComputedStyle(document.body); return [s.backgroundColor, s.color] }"
    return [[int(part) for part in colour[4:-1].split(",")] for colour in page.evaluate(script)]


def _brightness(colour: list[int]) -> float:
    return sum(colour) / 3
