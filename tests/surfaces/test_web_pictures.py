"""What is drawn is what was measured: infinities, NaN, and steps of which nothing is known are told apart."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import MadeRun, made_run
from servers import asking

from neuraldbg.records import Call, Kind
from neuraldbg.surfaces.web import data
from neuraldbg.trace import TraceWriter, open_trace
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


@pytest.mark.parametrize(("scale", "log", "middle"), [("linear", False, 0), ("log", True, 125)])
def test_the_colours_go_by_the_scale_that_was_asked_for(tmp_path: Path, scale: str, log: bool, middle: int) -> None:
    with made_run(tmp_path / "run") as run:
        site = run.module("fc", "Linear", run.model())
        for step, norm in enumerate((1e-6, 1e-3, 1.0)):
            run.stats(site, Kind.GRADIENT, step, l2=norm)
        run.end(steps=3)
    answer, found = cells(tmp_path / "run", f"scale={scale}")
    assert (answer["log"], found) == (log, [0, middle, 250])


def test_no_scale_by_powers_of_ten_where_there_are_values_below_zero() -> None:
    row = np.array([[-1.0, 0.0, 1.0]])
    none = np.zeros(row.shape, bool)
    found = Heatmap(row, none, infinities(row, row, none), [], ["a"], np.arange(4))
    assert (data.picture(found, log=True).log, data.picture(found, log=True).cells.tolist()) == (False, [[0, 125, 250]])


def test_one_value_alone_has_a_colour_on_every_scale() -> None:
    row = np.array([[2.0, 2.0]])
    none = np.zeros(row.shape, bool)
    found = Heatmap(row, none, infinities(row, row, none), [], ["a"], np.arange(3))
    assert data.picture(found, log=True).cells.tolist() == data.picture(found, log=False).cells.tolist() == [[0, 0]]


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


def test_of_which_step_a_column_is_stands_beside_it() -> None:
    assert shown(1.0, 1.0, np.nan, 1.0, np.nan, np.nan).sources == [0, 1, 1, 3, 3, 3]
    assert shown(1.0, 1.0).sources is None


def test_no_value_stands_for_a_step_after_the_loss_broke(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        site = run.module("fc", "Linear", run.model())
        for step in range(30):
            run.scalar("loss", step, float("nan") if step >= 22 else 1.0)
            if step % 5 == 0:
                run.stats(site, Kind.GRADIENT, step, l2=1.0 + step, nan_count=int(step >= 22))
        run.end(steps=30)
    answer, found = cells(tmp_path / "run", "width=100")
    assert [at for at, cell in enumerate(found) if cell == NO] == [1, 2, 3, 4, 22, 23, 24]
    assert set(found[25:]) == {data.NAN}
    assert (answer["sources"][21], answer["sources"][25], answer["sources"][29]) == (20, 25, 25)


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


@pytest.mark.parametrize("steps", [4, 9000], ids=["rows", "rolled up"])
def test_a_heatmap_of_one_rank_has_its_values_alone(tmp_path: Path, steps: int) -> None:
    with made_run(tmp_path / "run") as first:
        with TraceWriter(first.directory, rank=1, threaded=False, ring_rows=65536) as writer:
            for rank, run in enumerate((first, MadeRun(first.directory, writer))):
                run.writer.fact("process", group_rank=rank, world_size=2)
                site = run.module("fc", "Linear", run.model())
                for step in range(steps):
                    run.stats(site, Kind.GRADIENT, step, l2=1.0 + 9.0 * rank)
                    run.call(Call.STEP, step)
        first.end(steps=steps)
    with asking(tmp_path / "run") as client:

        def values(query: str) -> set[float]:
            told = client.get(f"/api/heatmap?format=json&width=4{query}").json()
            assert told["layers"] == ["fc"]
            return set(told["values"][0])

        assert (values(""), values("&rank=0"), values("&rank=1")) == ({10.0}, {1.0}, {10.0})
        drawn = client.get("/api/heatmap/cells?rank=1").json()
        assert (drawn["min"], drawn["max"]) == (10.0, 10.0)
        assert client.get("/api/run").json()["ranks"] == [0, 1]
        unknown = client.get("/api/heatmap?rank=7")
        assert unknown.status_code == 404
        assert "no rank '7'" in unknown.json()["error"]
