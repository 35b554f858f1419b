"""What is drawn is what was measured: infinities, NaN, and steps of which nothing is known are told apart."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import made_run
from servers import asking

from neuraldbg.records import Kind
from neuraldbg.surfaces.web import data
from neuraldbg.trace import open_trace
from neuraldbg.trace.heatmap import Heatmap, infinities

NO = data.NOT_MEASURED


def shown(*values: float) -> data.Picture:
    row = np.array([values])
    none = np.zeros(row.shape, bool)
    return data.picture(Heatmap(row, none, infinities(row, row, none), [], ["a"], np.arange(len(values) + 1)))


def test_the_bytes_of_a_heatmap_are_shares_of_its_range() -> None:
    assert shown(0.0, 1.0, 0.5, 0.25).cells.tolist() == [[0, 250, 125, 62]]
    powers = shown(1e-6, 1e-3, 1.0, 0.0)
    assert (powers.log, powers.cells.tolist()) == (True, [[0, 125, 250, 0]])
    assert (shown(np.nan).low, shown(np.nan).cells.tolist()) == (None, [[NO]])


def test_an_infinity_is_neither_the_largest_value_nor_nothing() -> None:
    assert shown(1.0, 2.0, np.inf, -np.inf).cells.tolist() == [[0, 250, data.PLUS_INF, data.MINUS_INF]]
    only = shown(np.inf, -np.inf)
    assert (only.low, only.high, only.cells.tolist()) == (None, None, [[data.PLUS_INF, data.MINUS_INF]])


def test_a_sampled_value_stands_until_the_next_but_not_for_ever() -> None:
    every_second = shown(1.0, 1.0, np.nan, 1.0, np.nan, 1.0, np.nan)
    assert (every_second.held, NO in every_second.cells) == (True, False)
    stopped = shown(1.0, 1.0, *[np.nan] * 4, 2.0, *[np.nan] * 12)
    assert stopped.held
    assert [at for at, cell in enumerate(stopped.cells[0]) if cell == NO] == [3, 4, 5, 16, 17, 18]
    assert shown(np.nan, 1.0, np.nan).cells.tolist() == [[NO, 0, NO]]  # how often it is measured is not known


def sampled(folder: Path, steps: int, every: int, **odd: Any) -> Path:
    """A run whose layer was measured in its first 20 steps and then now and then, and whose loss is always known."""
    with made_run(folder) as run:
        site = run.module("fc", "Linear", run.model())
        for step in range(steps):
            run.scalar("loss", step, 1.0 + step)
            if step < 20 or step % every == 0:
                run.stats(site, Kind.GRADIENT, step, **{"l2": 1.0 + step, **odd})
        run.end(steps=steps)
    return folder


def cells(folder: Path, query: str) -> tuple[dict[str, Any], list[int]]:
    with asking(folder) as client:
        answer = client.get(f"/api/heatmap/cells?metric=grad_norm&{query}").json()
    return answer, list(base64.b64decode(answer["cells"]))


def test_a_heatmap_goes_from_the_first_to_the_last_step_of_the_run(tmp_path: Path) -> None:
    answer, found = cells(sampled(tmp_path / "run", 990, 100), "width=2000")
    assert (answer["edges"][0], answer["edges"][-1], len(found)) == (0, 990, 990)
    assert [found[at] == NO for at in (19, 21, 99, 100, 399, 989)] == [False, True, True, False, False, False]
    assert (answer["measured"], answer["of"]) == (29, 990)


def test_a_stretch_of_a_heatmap_has_the_steps_that_were_asked_for(tmp_path: Path) -> None:
    answer, found = cells(sampled(tmp_path / "run", 990, 100), "from=150&to=5000&width=20")
    assert (answer["edges"][0], answer["edges"][-1], len(found)) == (150, 990, 20)
    whole, _ = cells(tmp_path / "run", "width=10")
    assert (whole["measured"], whole["of"]) == (None, 990)  # in every column something was measured


def test_infinities_in_a_tensor_are_seen_in_its_cell(tmp_path: Path) -> None:
    _, found = cells(sampled(tmp_path / "run", 10, 1, inf_count=3), "")
    assert set(found) == {data.PLUS_INF}
    with open_trace(tmp_path / "run") as trace:  # a count of them is a number
        assert data.drawn(trace, "grad_inf_count", (None, None), 10)["max"] == 3


@pytest.mark.parametrize("points", [50, 400])
def test_few_measured_steps_are_points_at_those_steps(tmp_path: Path, points: int) -> None:
    with asking(sampled(tmp_path / "run", 990, 100)) as client:
        found = client.get(f"/api/series?metric=grad_norm&layer=fc&points={points}").json()
        loss = client.get("/api/series?metric=loss&points=100").json()
    assert found["steps"] == [*range(20), *range(100, 990, 100)]
    assert found["min"] == found["max"] == [1.0 + step for step in found["steps"]]
    assert (found["measured"], found["of"]) == (29, 990)
    assert (len(loss["steps"]), loss["measured"], loss["of"]) == (100, None, 990)


def test_counts_of_what_is_no_number_are_numbers(tmp_path: Path) -> None:
    with asking(sampled(tmp_path / "run", 10, 1, nan_count=2)) as client:
        counted = client.get("/api/series?metric=grad_nan_count&layer=fc").json()
        norm = client.get("/api/series?metric=grad_norm&layer=fc").json()
    assert (counted["max"], counted["nan_steps"]) == ([2.0] * 10, [])
    assert (norm["max"], norm["min"][0]) == (["nan"] * 10, 1.0)


def test_a_moment_has_the_exact_loss_of_its_step(tmp_path: Path) -> None:
    with asking(sampled(tmp_path / "run", 990, 100)) as client:
        past, last = client.get("/api/moment?step=777").json(), client.get("/api/moment").json()
    assert (past["step"], past["scalars"]["loss"]) == (700, 778.0)
    assert (last["step"], last["scalars"]["loss"]) == (900, 990.0)


def test_a_moment_of_a_run_that_goes_on_has_the_loss_of_its_last_whole_step(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        run.scalar("loss", 0, 5.0)
        run.scalar("loss", 1, float("nan"))
        run.scalar("lr", 2, 0.1)
        run.writer.flush()
        with asking(tmp_path / "run") as client:
            assert client.get("/api/moment").json()["scalars"] == {"loss": "nan"}
            assert client.get("/api/moment?step=0").json()["scalars"] == {"loss": 5.0}
