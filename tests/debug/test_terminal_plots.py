"""Plots as text: right at any size, whatever the data, and without a colour where nobody can see one."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from neuraldbg.debug import TerminalVisualizer
from neuraldbg.errors import UsageError

ANSI = re.compile(r"\x1b\[\d*m")
NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, 1.0, -1.0, 5e-324, 1.7e308, -1.7e308])
)
VALUES = st.one_of(
    st.lists(NUMBERS, max_size=60),
    st.tuples(NUMBERS, st.integers(1, 50)).map(lambda pair: [pair[0]] * pair[1]),
)
TEXT = st.one_of(st.sampled_from(["", "Training Loss", "層の名前", "a\nb\x1b[31m", "e\u0301🙂"]), st.text(max_size=30))
SIZES = st.tuples(st.integers(1, 130), st.integers(1, 40))
Draw = Callable[[TerminalVisualizer, list[float], str], str]
PLOTS: dict[str, Draw] = {
    "histogram": lambda v, values, title: v.histogram(values, 10, title),
    "line": lambda v, values, title: v.line_plot(range(len(values)), values, title),
    "line over any x": lambda v, values, title: v.line_plot(values, values[::-1], title),
    "sparkline": lambda v, values, title: v.sparkline(values),
    "heatmap": lambda v, values, title: v.heatmap([values, values], [title, "second"], title),
    "health": lambda v, values, title: v.layer_health({title + str(at): (at % 11) / 10 for at in range(len(values))}),
}


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("plot", PLOTS)
@given(values=VALUES, title=TEXT, size=SIZES, ascii_only=st.booleans(), color=st.booleans())
def test_no_plot_is_wider_or_taller_than_asked(
    plot: str, values: list[float], title: str, size: tuple[int, int], ascii_only: bool, color: bool
) -> None:
    drawn = PLOTS[plot](TerminalVisualizer(*size, ascii_only=ascii_only, color=color), values, title)
    seen = ANSI.sub("", drawn)
    lines = seen.split("\n")
    assert max(map(cell_len, lines)) <= size[0]
    assert len(lines) <= size[1]
    assert "\x1b" not in seen
    assert "\r" not in drawn
    assert color or seen == drawn
    assert not ascii_only or seen.isascii()


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=200))
def test_a_histogram_counts_every_finite_value_once(values: list[float]) -> None:
    text = TerminalVisualizer(100, 24, ascii_only=True).histogram([*values, math.nan, math.inf, -math.inf], 10)
    *bars, told = text.split("\n")
    assert sum(int(line.rsplit(" ", 1)[1].replace(",", "")) for line in bars) == len(values)
    assert told == f"{len(values) + 3} values, 1 NaN, 1 +Inf, 1 -Inf"


@given(
    st.lists(st.integers(-(2**20), 2**20), min_size=2, max_size=300).filter(lambda v: len(set(v)) > 1),
    st.integers(1, 20),
)
def test_its_bins_are_those_of_numpy(values: list[int], bins: int) -> None:
    from neuraldbg.debug.visualizer_values import counted

    counts, edges = np.histogram(np.array(values, float), bins)
    found = counted(np.array(values, float), bins)
    np.testing.assert_allclose(found.edges, edges)
    inside = np.min(np.abs(np.array(values)[:, None] - edges[None, :]), axis=1) > 1e-6
    if inside[1:-1].all():
        np.testing.assert_array_equal(found.counts, counts)
    assert found.counts.sum() == len(values)


def test_the_original_calls_give_ascii_strings() -> None:
    terminal = TerminalVisualizer(80, 24)
    values = [1.0, 2.0, 1.5, 3.0, 2.5, 1.8, 2.2]
    histogram = terminal.ascii_histogram(values, 10)
    assert histogram.isascii()
    assert len(histogram.split("\n")) == 11  # ten bins, and how many values
    plot = terminal.ascii_line_plot([0, 1, 2, 3], [1.0, 0.5, 0.25, 0.125], "Training Loss")
    assert plot.isascii()
    assert plot.startswith("Training Loss\n")
    assert "*" in plot


def test_a_falling_curve_falls() -> None:
    rows = TerminalVisualizer(40, 12, ascii_only=True).line_plot(range(30), range(30, 0, -1)).split("\n")
    stars = [(line.index("*"), line.rindex("*")) for line in rows if "*" in line]
    assert stars == sorted(stars)
    assert stars[0][0] < stars[-1][0]
    assert rows[0].split("|")[0].strip() == "30.0"
    assert rows[len(stars) - 1].split("|")[0].strip() == "1.00"


def test_what_is_not_finite_is_marked_where_it_is() -> None:
    curve = TerminalVisualizer(60, 12, ascii_only=True).line_plot(
        range(5), [1.0, math.nan, 2.0, math.inf, -math.inf], "loss"
    )
    assert curve.count("!") == curve.count("^") == curve.count("v") == 1
    heat = TerminalVisualizer(60, 12, ascii_only=True).heatmap([[0.0, 1.0, math.nan], [math.inf, 0.0, -math.inf]])
    assert heat.split("\n")[:2] == [" @!", "^ v"]
    assert TerminalVisualizer(20, 5, ascii_only=False).sparkline([0, math.nan, 1]) == "▁!█"


def test_a_heatmap_shows_a_lone_peak_however_large_the_table() -> None:
    table = np.zeros((300, 5000))
    table[123, 4567] = 9.0
    drawn = TerminalVisualizer(60, 12, ascii_only=True).heatmap(table)
    assert drawn.count("@") == 1


def test_of_many_layers_the_worst_are_shown() -> None:
    health: dict[str, Any] = {f"layer{at}": 0.9 for at in range(100)}
    health["layer40"], health["layer70"] = 0.1, "Critical"
    drawn = TerminalVisualizer(60, 5, ascii_only=True).layer_health(health)
    assert "layer40" in drawn
    assert "layer70" in drawn
    assert drawn.endswith("and 96 layers that are no worse")


def test_a_score_that_is_none_is_a_dash_and_no_bar() -> None:
    line = TerminalVisualizer(40, 3, ascii_only=True).layer_health({"fc": None})
    assert "#" not in line
    assert line.split() == ["fc", "-", "unknown"]


@pytest.mark.parametrize(
    ("given_health", "said"), [(1.5, "0 to 1"), ("fine", "no status"), ([1], "score from 0 to 1 or a status")]
)
def test_health_that_means_nothing_is_refused(given_health: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        TerminalVisualizer().layer_health({"fc": given_health})


def test_colours_are_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    on_terminal = TerminalVisualizer(stream=Terminal())
    assert ANSI.search(on_terminal.layer_health({"fc": 0.3}))
    assert not on_terminal.ascii_only
    assert not ANSI.search(on_terminal.ascii_histogram([1, 2, 3]))
    assert not TerminalVisualizer(stream=io.StringIO()).color
    monkeypatch.setenv("NO_COLOR", "1")
    assert not TerminalVisualizer(stream=Terminal()).color


@pytest.mark.parametrize("size", [(0, 5), (5, 0)])
def test_a_plot_without_room_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        TerminalVisualizer(*size)


def test_steps_and_values_must_be_as_many() -> None:
    with pytest.raises(UsageError, match="2 steps and 1 values"):
        TerminalVisualizer().line_plot([0, 1], [1.0])


def test_tensors_are_drawn_as_arrays_are() -> None:
    torch = pytest.importorskip("torch")
    terminal = TerminalVisualizer(60, 12, ascii_only=True)
    values = np.linspace(-2, 2, 65)
    tensor = torch.tensor(values, dtype=torch.bfloat16, requires_grad=True)
    assert terminal.histogram(tensor) == terminal.histogram(tensor.detach().float().numpy())
    assert terminal.histogram(torch.eye(3).to_sparse()) == terminal.histogram(np.eye(3))
    with pytest.raises(UsageError, match=r"draw abs\(values\)"):
        terminal.histogram(torch.zeros(3, dtype=torch.complex64))
    with pytest.raises(UsageError, match="real numbers, not str"):
        terminal.histogram("weights")
