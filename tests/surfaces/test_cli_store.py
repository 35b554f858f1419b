"""`neural export --format parquet`, `neural import`, and what they say where something is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import ROOT, neural, refused


def test_a_run_goes_out_as_parquet_and_comes_back(place: Path) -> None:
    out = neural("export", "broken", "data", "--format", "parquet", "--json", cwd=place)
    told = json.loads(out.stdout)
    assert told["ranks"] == 1
    assert told["rows"] > 500
    assert (place / "data" / "rank-00000" / "manifest.json").is_file()
    back = neural("import", "data", "-o", "again", cwd=place)
    assert f"{told['rows']:,} rows" in back.stdout
    reports = [json.loads(neural("report", name, "--json", cwd=place).stdout) for name in ("broken", "again")]
    assert reports[0] == reports[1]


def test_without_a_place_it_lies_beside_us_and_comes_back_under_its_name(place: Path) -> None:
    assert "good.parquet: " in neural("export", "good", "--format", "parquet", cwd=place).stdout
    line = refused(neural("export", "good", "--format", "parquet", cwd=place))
    assert "good.parquet already holds a data set" in line or "already holds a data set" in line
    (place / "neuraldbg_runs" / "good").rename(place / "moved")
    assert neural("import", "good.parquet", cwd=place).returncode == 0
    assert (place / "neuraldbg_runs" / "good" / "run.json").is_file()


@pytest.mark.parametrize("words", [("export", "good", "--format", "parquet"), ("import", "data")])
def test_a_missing_package_is_named_with_its_extra(place: Path, words: tuple[str, ...]) -> None:
    hidden = place / "hidden" / "pyarrow"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('No module named pyarrow')\n")
    result = neural(*words, cwd=place, PYTHONPATH=f"{place / 'hidden'}:{ROOT}")
    assert "needs pyarrow, which is not installed: pip install 'neural-debugger[parquet]'" in refused(result, 4)


def test_only_parquet_takes_a_place(place: Path) -> None:
    assert "a URL (x) is for --format otel and parquet" in refused(
        neural("export", "good", "x", "--format", "csv", cwd=place)
    )


def test_a_folder_that_is_no_data_set_is_refused(place: Path) -> None:
    line = refused(neural("import", "neuraldbg_runs/good", cwd=place))
    assert "holds no dataset.json" in line
