"""Analyses that look at few steps only say what looking at every row says."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from large_runs import close, large_run, ranks_of
from made_runs import made_run

from neuraldbg.fleet.analyses import JOBS, MOST_ROWS
from neuraldbg.fleet.engines import answer
from neuraldbg.fleet.sources import open_sources
from neuraldbg.records import Kind, Phase

LAYERS = ("a", "b", "c")
Told = dict[tuple[int, int, str], list[int]]  # by rank, step and layer: what was recorded, one row each
numbers = st.lists(st.integers(1, 3), min_size=1, max_size=2)
runs_of_rows = st.lists(
    st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 4), st.sampled_from(LAYERS)), numbers, max_size=20),
    min_size=2,
    max_size=3,
)


def written(folder: Path, told: Told) -> Path:
    with made_run(folder) as run:
        ranks = ranks_of(run, 3)
        for number, rank in enumerate(ranks):
            model = rank.model()
            sites = {layer: rank.parameter(layer, (4,), model) for layer in LAYERS}
            for (owner, step, layer), values in told.items():
                for value in values if owner == number else ():
                    rank.stats(sites[layer], Kind.PARAMETER, step, Phase.UPDATE, l2=float(value), digest=value)
        close(ranks)
    return folder


def asked(name: str, folders: list[Path]) -> list[dict[str, Any]]:
    with ExitStack() as kept:
        return answer(JOBS[name], open_sources(folders, kept), "local")


def parted(first: Told, other: Told) -> tuple[int, int | None]:
    """How many rows can be compared, and the earliest step at which they differ: by looking at all of them."""
    both = first.keys() & other.keys()
    steps = [step for rank, step, layer in both if _rows(first[rank, step, layer]) != _rows(other[rank, step, layer])]
    return sum(len(other[key]) for key in both), min(steps, default=None)


def _rows(values: list[int]) -> tuple[int, ...]:
    return tuple(sorted(values))


def unequal(told: Told) -> set[tuple[int, str]]:
    """Steps and layers at which the smallest or largest digest is not the same on every rank that has one."""
    seen = defaultdict(set)
    for (_, step, layer), values in told.items():
        seen[step, layer].add((min(values), max(values)))
    return {place for place, digests in seen.items() if len(digests) > 1}


@settings(max_examples=20)
@given(runs=runs_of_rows)
def test_what_few_steps_say_is_what_all_rows_say(tmp_path_factory: pytest.TempPathFactory, runs: list[Told]) -> None:
    folder = tmp_path_factory.mktemp("runs")
    folders = [written(folder / f"run-{n}", told) for n, told in enumerate(runs)]
    told = asked("divergence", folders)
    for run, one in zip(runs[1:], told, strict=True) if any(runs) else ():
        assert (one["compared"], one.get("step")) == parted(runs[0], run)
    found = asked("desync", folders)
    for number, run in enumerate(runs):
        mine = {(one["step"], one["layer"]) for one in found if one["run"] == f"run-{number}"}
        assert mine == unequal(run)


def test_every_run_has_its_share_of_a_long_answer(tmp_path: Path) -> None:
    """A run whose ranks never agree does not hide the next one."""
    apart: Told = {(rank, step, "a"): [rank + 1] for rank in range(2) for step in range(MOST_ROWS + 50)}
    once: Told = {(rank, step, "a"): [1 + (rank if step == 7 else 0)] for rank in range(2) for step in range(9)}
    found = asked("desync", [written(tmp_path / "apart", apart), written(tmp_path / "once", once)])
    steps = {name: [one["step"] for one in found if one["run"] == name] for name in ("apart", "once")}
    assert steps == {"apart": list(range(MOST_ROWS)), "once": [7]}


def test_only_files_with_the_steps_that_matter_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from neuraldbg.fleet import sources
    from neuraldbg.store import parts
    from neuraldbg.store.exporting import export_run
    from neuraldbg.store.places import open_place

    monkeypatch.setattr(parts, "PART_BYTES", 1_000_000)
    runs = []
    for odd in (0, 1):
        export_run(large_run(tmp_path / f"run-{odd}", 400_000, odd=odd), open_place(tmp_path / f"data-{odd}"))
        runs.append(tmp_path / f"data-{odd}")
    read: list[str] = []
    real = sources.parquet_table

    def counted(data: bytes, table: str, where: str, columns: Any) -> Any:
        read.append(where)
        return real(data, table, where, columns)

    monkeypatch.setattr(sources, "parquet_table", counted)
    (one,) = asked("divergence", runs)
    assert (one["step"], one["compared"]) == (375, 400_000)
    files = len(set(read))
    assert files == 16
    assert len(read) == files + 4, "the outline reads each file once, the second look those of each rank with the step"
