"""Many ranks, many runs: what is wrong is named, and every engine says the same."""

from __future__ import annotations

import json
import math
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from large_runs import close, large_run, ranks_of
from made_runs import made_run, train

from neuraldbg.errors import UsageError
from neuraldbg.fleet.analyses import JOBS
from neuraldbg.fleet.engines import answer
from neuraldbg.fleet.sources import open_sources
from neuraldbg.fleet.sweep import findings_over
from neuraldbg.records import Kind, Phase
from neuraldbg.store import parts
from neuraldbg.store.exporting import export_run
from neuraldbg.store.places import open_place

sys.path.append(str(Path(__file__).parents[1] / "surfaces"))
from commands import neural, refused

Row = dict[str, Any]


def asked(name: str, *runs: Path, engine: str = "local") -> list[Row]:
    with ExitStack() as kept:
        return answer(JOBS[name], open_sources(runs, kept), engine)


def test_the_slow_rank_is_named(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        ranks = ranks_of(run, 4)
        for step in range(20):
            for number, rank in enumerate(ranks):
                slow = number == 2 and step >= 5
                rank.scalar("step_time_s", step, 0.5 if slow else 0.1 + 0.001 * ((step + number) % 4))
        close(ranks)
    first, *others = asked("stragglers", run.directory)
    assert (first["rank"], first["steps"]) == (2, 20)
    assert first["slowest_share"] >= 15 / 20
    assert first["median_behind_s"] == pytest.approx(0.4, abs=0.01)
    assert all(one["slowest_share"] < 0.2 for one in others)


def test_a_run_of_one_rank_has_times_and_no_straggler(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        train(run, steps=5)
    (only,) = asked("stragglers", run.directory)
    assert (only["median_step_s"], only["slowest_share"], only["median_behind_s"]) == (0.01, None, None)


def test_ranks_whose_weights_part_are_named_with_step_and_layer(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        ranks = ranks_of(run, 3)
        for number, rank in enumerate(ranks):
            model = rank.model()
            weights = [rank.parameter(f"{name}.weight", (4,), model) for name in ("a", "b")]
            for step in range(6):
                for weight in weights:
                    lost = number == 1 and step >= 4 and weight == weights[1]
                    digest = (step << 40) + weight + (1 if lost else 0) + 2**63
                    rank.stats(weight, Kind.PARAMETER, step, Phase.UPDATE, digest=digest)
                    rank.stats(weight, Kind.GRADIENT, step, Phase.BACKWARD, digest=number + 1)  # differ by nature
        close(ranks)
    found = asked("desync", run.directory)
    assert {(one["step"], one["layer"]) for one in found} == {(4, "b.weight"), (5, "b.weight")}
    assert all(1 in one["ranks"] for one in found)


def test_runs_are_compared_bit_for_bit_and_the_first_difference_is_named(tmp_path: Path) -> None:
    def made(name: str, wrong_from: int | None) -> Path:
        with made_run(tmp_path / name) as run:
            model = run.model()
            sites = [run.module(path, "Linear", model) for path in ("first", "second")]
            for step in range(10):
                for site in sites:
                    other = wrong_from is not None and step >= wrong_from and site == sites[1]
                    value = math.nextafter(2.0, 3.0) if other else 2.0
                    run.stats(site, Kind.ACTIVATION, step, l2=value)
        return run.directory

    same, parted = asked("divergence", made("a", None), made("b", None), made("c", 7))
    assert same == {"run": "b", "against": "a", "compared": 20}
    assert (parted["step"], parted["layer"], parted["kind"]) == (7, "second", "activation")
    assert parted["norm"] != parted["norm_there"]


def test_what_is_not_finite_or_a_thousand_times_too_large_is_found(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        train(run, steps=40, nan_from=33)
        weight = run.parameter("other.weight", (4,), 0)
        for step in range(40):
            run.stats(weight, Kind.GRADIENT, step, Phase.BACKWARD, l2=5_000.0 if step == 21 else 0.9 + step % 3)
    found = asked("anomalies", run.directory)
    assert [(one["layer"], one["what"], one["first_step"], one["rows"]) for one in found] == [
        ("other.weight", "norm a thousand times its median", 21, 1),
        ("fc", "not finite", 33, 7),
    ]
    with made_run(tmp_path / "healthy") as run:
        train(run)
    assert asked("anomalies", run.directory) == []


def test_findings_of_a_sweep_are_counted_by_run(tmp_path: Path) -> None:
    given = {"a": [("nan_loss", "critical", 9)], "b": [("nan_loss", "critical", 5), ("note", "info", None)], "c": []}
    for name, found in given.items():
        with made_run(tmp_path / name) as run:
            train(run, steps=2)
        lines = [{"id": f"{k}{s}", "kind": k, "severity": v, "step": s} for k, v, s in found]
        (run.directory / "findings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    export_run(tmp_path / "b", open_place(tmp_path / "b.parquet"))
    with ExitStack() as kept:
        sources = open_sources([tmp_path / "a", tmp_path / "b.parquet", tmp_path / "c"], kept)
        found = findings_over(sources)
    assert found == [
        {"kind": "nan_loss", "severity": "critical", "runs": ["a", "b"], "first_step": 5, "of": 3},
        {"kind": "note", "severity": "info", "runs": ["b"], "first_step": None, "of": 3},
    ]


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        with made_run(tmp_path / folder / "run") as run:
            train(run, steps=2)
    with ExitStack() as kept:
        sources = open_sources([tmp_path / "x" / "run", tmp_path / "y" / "run"], kept)
        assert [source.name for source in sources] == ["run", "run (2)"]


# -- engines -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_duckdb_says_what_we_say_of_two_million_rows(tmp_path: Path) -> None:
    runs = []
    for odd in (0, 1):
        directory = large_run(tmp_path / f"run-{odd}", 1_000_000, odd=odd)
        export_run(directory, open_place(tmp_path / f"data-{odd}"))
        runs.append(tmp_path / f"data-{odd}")
    for name in JOBS:
        here = asked(name, *runs)
        assert here, name
        assert asked(name, *runs, engine="duckdb") == here, name


@pytest.mark.parametrize("name", JOBS)
def test_how_a_run_is_cut_into_files_changes_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    runs = [large_run(tmp_path / f"run-{odd}", 40_000, odd=odd) for odd in (0, 1)]
    monkeypatch.setattr(parts, "PART_BYTES", 300_000)
    for run in runs:
        export_run(run, open_place(tmp_path / f"{run.name}.parquet"))
    pieces = [tmp_path / f"{run.name}.parquet" for run in runs]
    expected = asked(name, *runs)
    assert asked(name, *pieces) == expected
    assert asked(name, *pieces, engine="duckdb") == expected
    assert asked(name, *runs, engine="duckdb") == expected


def test_the_command_prints_tables_and_json(tmp_path: Path) -> None:
    for name, nan_from in (("good", None), ("broken", 33)):
        with made_run(tmp_path / "neuraldbg_runs" / name) as run:
            train(run, nan_from=nan_from)
            run.end(steps=50)
    told = json.loads(neural("analyze", "good", "broken", "--json", cwd=tmp_path).stdout)
    assert told["runs"] == ["good", "broken"]
    assert told["divergence"][0]["step"] == 33
    assert told["anomalies"][0]["layer"] == "fc"
    again = json.loads(neural("analyze", "good", "broken", "--json", "--engine", "duckdb", cwd=tmp_path).stdout)
    assert {**again, "engine": "local"} == told
    text = neural("analyze", "good", "broken", "--only", "divergence", cwd=tmp_path).stdout
    assert "Where runs part from the first" in text
    assert "33" in text
    assert "did you mean 'duckdb'" in refused(neural("analyze", "good", "--engine", "dukdb", cwd=tmp_path))
    assert "did you mean 'desync'" in refused(neural("analyze", "good", "--only", "desink", cwd=tmp_path))


def test_a_torn_file_is_told_in_one_line_by_every_engine(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        train(run)
    export_run(run.directory, open_place(tmp_path / "data"))
    torn = tmp_path / "data" / "rank-00000" / "stats-000000.parquet"
    torn.write_bytes(torn.read_bytes()[:-100])
    assert "stats-000000.parquet is torn" in refused(neural("analyze", "data", cwd=tmp_path))
    line = refused(neural("analyze", "data", "--engine", "duckdb", cwd=tmp_path))
    assert "duckdb cannot read run" in line
    assert "`--engine local` names a damaged file" in line


@pytest.mark.parametrize(("engine", "package"), [("duckdb", "duckdb"), ("ray", "ray"), ("spark", "pyspark")])
def test_an_engine_that_is_not_installed_is_named_with_its_extra(tmp_path: Path, engine: str, package: str) -> None:
    hidden = tmp_path / "hidden" / package
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text(f"raise ImportError('No module named {package}')\n")
    with made_run(tmp_path / "run") as run:
        train(run, steps=2)
    path = f"{tmp_path / 'hidden'}:{Path(__file__).parents[2]}"
    result = neural("analyze", "run", "--engine", engine, cwd=tmp_path, PYTHONPATH=path)
    assert f"pip install 'neural-debugger[{engine}]'" in refused(result, 4)
    with pytest.raises(UsageError, match="no engine"):
        asked("desync", run.directory, engine="other")
