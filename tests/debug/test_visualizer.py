"""Plots by name: the numbers in them are those that were given, and a page of them needs nothing else."""

from __future__ import annotations

import csv
import json
import math
import re
import struct
import sys
import tracemalloc
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from neuraldbg.debug import DebugVisualizer, VisualizationConfig, visualizer_values
from neuraldbg.debug.visualizer_plots import ticks
from neuraldbg.debug.visualizer_svg import colours, png, svg
from neuraldbg.debug.visualizer_values import counted, pooled
from neuraldbg.errors import UsageError

ANY = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=40)


@pytest.fixture
def visualizer(tmp_path: Path) -> DebugVisualizer:
    return DebugVisualizer(VisualizationConfig(output_directory=tmp_path / "plots"))


@pytest.fixture
def filled(visualizer: DebugVisualizer) -> DebugVisualizer:
    values = np.random.default_rng(0)
    visualizer.plot_tensor_distribution("weights", [1.0, 2.0, 1.5, 3.0, 2.5, 1.8, 2.2], 10)
    visualizer.plot_gradient_flow("layer1", [0, 1, 2, 3, 4], [0.1, 0.08, 0.06, 0.04, 0.03])
    visualizer.plot_loss(range(6), [3.0, 2.0, math.nan, 1.5, math.inf, 1.0], validation=[3, 2.5, 2, 2, 2, 2])
    visualizer.plot_heatmap("attention <b>", values.normal(size=(4, 9)), rows=["a", "b", "c", "<script>"])
    visualizer.plot_activation_ridges("relu", {"encoder.0": values.normal(size=99), "encoder.1": [0.0] * 7})
    return visualizer


def test_plots_are_kept_by_name_in_their_order(filled: DebugVisualizer) -> None:
    assert filled.get_plot_names() == [
        "weights_distribution",
        "layer1_gradient_flow",
        "loss",
        "attention <b>_heatmap",
        "relu_activations",
    ]
    filled.plot_loss([0, 1], [2.0, 1.0])
    assert len(filled.get_plot_names()) == 5
    assert list(filled.get_plot("loss").rows()) == [("loss", 0.0, 2.0), ("loss", 1.0, 1.0)]
    filled.clear()
    assert filled.get_plot_names() == []


def test_the_defaults_are_those_of_the_original() -> None:
    config = VisualizationConfig()
    assert (config.output_directory, config.image_format) == ("./debug_plots", "png")
    assert (config.plot_width, config.plot_height, config.font_size) == (800, 600, 12)
    assert VisualizationConfig(image_format="PNG").image_format == "png"
    assert DebugVisualizer(config, plot_width=400).config.plot_width == 400


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"image_format": "pgn"}, "did you mean 'png'"),
        ({"color_scheme": "blue"}, "auto, dark, light"),
        ({"plot_width": 0}, "plot_width is 0"),
    ],
)
def test_a_setting_that_cannot_be_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        VisualizationConfig(**changes)


def test_an_unknown_plot_answers_with_the_nearest(filled: DebugVisualizer) -> None:
    with pytest.raises(UsageError, match="did you mean 'loss'"):
        filled.create_dashboard(["los"])
    with pytest.raises(UsageError, match="needs a plot"):
        DebugVisualizer().create_dashboard([])


def test_nothing_is_written_before_it_is_asked_for(filled: DebugVisualizer, tmp_path: Path) -> None:
    assert list(tmp_path.iterdir()) == []
    filled.create_dashboard()
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["dashboard.html"]


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.asked, self.tags = [], []
        self.policy = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self.asked += [value for name, value in given.items() if name in ("src", "href", "srcset", "data", "poster")]
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""


def test_a_dashboard_is_one_file_that_asks_for_nothing(filled: DebugVisualizer) -> None:
    names = filled.get_plot_names()
    dashboard = filled.create_dashboard(names)
    text = dashboard.path.read_text()
    assert dashboard.names == tuple(names)
    assert text == dashboard.html
    page = Page()
    page.feed(text)
    assert page.tags.count("svg") == page.tags.count("figure") == 5
    assert "script" not in page.policy.replace("script-src", "")
    assert page.policy.startswith("default-src 'none'")
    assert all(asked.startswith("data:image/png;base64,") for asked in page.asked)
    assert not re.search(r"(?:url\(|@import|https?://)", text)
    assert "attention &lt;b&gt;" in text
    assert page.tags.count("script") == 1  # a name of a row is no script


def test_it_has_both_themes(filled: DebugVisualizer, tmp_path: Path) -> None:
    text = filled.create_dashboard().html
    assert "prefers-color-scheme:dark" in text
    assert "data-theme=dark" in text
    assert '<html lang="en">' in text
    dark = DebugVisualizer(VisualizationConfig(output_directory=tmp_path, color_scheme="dark"))
    dark.plot_loss([0], [1.0])
    assert '<html lang="en" data-theme="dark">' in dark.create_dashboard().html


def test_values_that_are_not_finite_are_shown_where_they_are(filled: DebugVisualizer) -> None:
    drawn = svg(filled.get_plot("loss"), 800, 600, 12)
    assert "step 2: NaN" in drawn
    assert "step 4: Inf" in drawn
    assert filled.get_plot("loss").note == "loss: 6 values; validation: 6 values; loss: 2 not finite"


@given(ANY, ANY)
@example([1.0, sys.float_info.max], [])
def test_anything_can_be_drawn(values: list[float], others: list[float]) -> None:
    made = DebugVisualizer()
    made.plot_tensor_distribution("any", values, 7)
    made.plot_loss(values, values[::-1])
    made.plot_heatmap("any", [values, values])
    made.plot_activation_ridges("any", [values, others])
    for name in made.get_plot_names():
        drawn = svg(made.get_plot(name), 300, 200, 10)
        assert "nan" not in drawn.replace("dominant", "")
        assert not re.search(r'(?:x|y|width|height|cx|cy)="-?inf', drawn)
        assert "Linf" not in drawn


@given(st.floats(-1e308, 1e308), st.floats(0, 1e308), st.integers(2, 9))
def test_ticks_are_few_round_and_inside(low: float, wide: float, most: int) -> None:
    high = min(low + wide, 1.7e308)
    found = ticks(low, high, most)
    slack = 1e-6 * max(abs(low), abs(high), 1e-300)
    assert 1 <= len(found) <= 2 * most + 1
    assert all(low - slack <= each <= high + slack for each in found)
    assert found == sorted(found)


def test_ticks_of_a_common_range_are_what_a_person_would_write() -> None:
    np.testing.assert_allclose(ticks(0.0, 1.0), [0, 0.2, 0.4, 0.6, 0.8, 1.0])
    np.testing.assert_allclose(ticks(-3.2, 3.1), [-2, 0, 2])


def test_a_gradient_that_falls_by_powers_of_ten_is_drawn_by_them(visualizer: DebugVisualizer) -> None:
    falling = visualizer.plot_gradient_flow("fc", range(4), [1.0, 0.1, 0.01, 1e-3])
    assert falling.log
    heights = [float(y) for y in re.findall(r'cy="([\d.]+)"', svg(falling, 800, 600, 12))]
    np.testing.assert_allclose(np.diff(heights), np.diff(heights)[0], rtol=0.01)
    assert not visualizer.plot_gradient_flow("fc", range(4), [1.0, 0.0, 0.01, 1e-9]).log


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 9), st.integers(1, 9))
def test_pooling_loses_no_extreme(rows: int, columns: int, most_rows: int, most_columns: int) -> None:
    cells = np.zeros((rows, columns))
    cells[rows // 2, columns // 3] = -7.0
    small = pooled(cells, most_rows, most_columns)
    assert small.shape == (min(rows, most_rows), min(columns, most_columns))
    assert (small == -7.0).sum() == 1
    cells[0, 0] = math.nan
    assert np.isnan(pooled(cells, most_rows, most_columns)).sum() == 1


@given(st.integers(1, 40), st.integers(1, 5), st.booleans())
def test_a_histogram_of_pieces_is_that_of_the_whole(size: int, piece: int, turned: bool) -> None:
    values = np.random.default_rng(size).normal(size=(size, 3)).astype(np.float32)
    values[0, 0] = math.nan
    whole = counted(np.ascontiguousarray(values), 7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(visualizer_values, "PIECE", piece)
        parts = counted(np.asfortranarray(values) if turned else values, 7)
    np.testing.assert_array_equal(parts.counts, whole.counts)
    assert (parts.total, parts.nan, parts.told) == (whole.total, 1, whole.told)


def test_a_large_tensor_is_never_copied_as_a_whole(visualizer: DebugVisualizer) -> None:
    large = np.broadcast_to(np.float32(1.5), (4_000, 4_000))  # 64 MB if it were written out, 128 as doubles
    tracemalloc.start()
    try:
        visualizer.plot_tensor_distribution("large", large)
        visualizer.plot_heatmap("large", large)
        assert tracemalloc.get_traced_memory()[1] < 60e6
    finally:
        tracemalloc.stop()
    assert visualizer.get_plot("large_distribution").note == "16,000,000 values"


def test_a_png_of_ours_is_one_that_others_read() -> None:
    pixels = colours(np.array([[0.0, 1.0, math.nan], [math.inf, -math.inf, 0.5]]))
    data = png(pixels)
    assert struct.unpack(">II", data[16:24]) == (3, 2)
    body = data[data.index(b"IDAT") + 4 : data.index(b"IEND") - 8]
    rows = np.frombuffer(zlib.decompress(body), np.uint8).reshape(2, 10)
    np.testing.assert_array_equal(rows[:, 1:].reshape(2, 3, 3), pixels)
    assert len({tuple(pixel) for row in pixels.tolist() for pixel in row}) == 6


# -- data --------------------------------------------------------------------------------------------------------------


def test_csv_has_the_numbers_that_were_given(filled: DebugVisualizer) -> None:
    path = filled.save("loss", format="csv")
    rows = list(csv.reader(path.read_text().splitlines()))
    assert rows[0] == ["line", "step", "loss"]
    found = [float(value) for label, _, value in rows[1:] if label == "loss"]
    np.testing.assert_array_equal(found, [3.0, 2.0, math.nan, 1.5, math.inf, 1.0])


def test_json_is_strict_and_counts_what_is_in_no_bin(visualizer: DebugVisualizer, tmp_path: Path) -> None:
    visualizer.plot_tensor_distribution("w", [0.0, 1.0, math.nan, math.inf, math.inf], 2)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    told = json.loads(visualizer.save("w_distribution", tmp_path / "w.json").read_text(), parse_constant=refuse)
    assert told["columns"] == ["from", "to", "count"]
    assert told["rows"] == [[0.0, 0.5, 1], [0.5, 1.0, 1], ["nan", "nan", 1], ["inf", "inf", 2]]
    assert told["kind"] == "distribution"


def test_names_that_file_systems_refuse_become_files_apart(visualizer: DebugVisualizer) -> None:
    for name in ("a/b", "a b", "../up"):
        visualizer.plot_tensor_distribution(name, [1, 2])
    paths = visualizer.save_all(format="csv")
    assert len(set(paths)) == 3
    assert {path.parent for path in paths} == {Path(visualizer.config.output_directory)}


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made = DebugVisualizer(output_directory=tmp_path / "file")
    made.plot_loss([0], [1.0])
    with pytest.raises(UsageError, match="choose another output_directory"):
        made.create_dashboard()


def test_steps_without_values_are_refused(visualizer: DebugVisualizer) -> None:
    with pytest.raises(UsageError, match="3 steps and 2 values"):
        visualizer.plot_gradient_flow("fc", [0, 1, 2], [0.1, 0.2])
    with pytest.raises(UsageError, match="2 rows and 1 names"):
        visualizer.plot_heatmap("w", [[1], [2]], rows=["a"])


# -- pictures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_pictures_are_drawn_by_matplotlib(filled: DebugVisualizer, form: str, begins: bytes) -> None:
    paths = filled.save_all(format=form)
    assert len(paths) == 5
    for path in paths:
        data = path.read_bytes()
        assert data.startswith(begins)
        assert path.suffix == f".{form}"
    assert filled.save("loss", format=form).read_bytes() == filled.save("loss", format=form).read_bytes()
    assert "matplotlib.pyplot" not in sys.modules  # whose state is the user's


def test_a_picture_has_the_size_that_was_asked_for(tmp_path: Path) -> None:
    made = DebugVisualizer(output_directory=tmp_path, plot_width=640, plot_height=360, color_scheme="dark")
    made.plot_loss([0, 1], [2.0, 1.0])
    assert struct.unpack(">II", made.save("loss").read_bytes()[16:24]) == (640, 360)


def test_a_range_that_matplotlib_cannot_draw_is_said(visualizer: DebugVisualizer) -> None:
    visualizer.plot_loss([0, 1], [1e308, -1e308])
    for form in ("png", "svg", "pdf"):
        with pytest.raises(UsageError, match="matplotlib cannot draw 'loss'"):
            visualizer.save("loss", format=form)
    assert visualizer.create_dashboard("loss").names == ("loss",)


def test_without_matplotlib_the_extra_is_named(filled: DebugVisualizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=re.escape("pip install 'neural-debugger[plots]'")):
        filled.save("loss")
    assert filled.save("loss", format="json").is_file()
