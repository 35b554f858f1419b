"""An exported session keeps its schema, is strict JSON, and is written whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from commands import neural
from made_runs import made_run

from neuraldbg.analysis.findings import strict as jsonable
from neuraldbg.errors import UsageError
from neuraldbg.records import Call
from neuraldbg.surfaces.reports.session import export, schema, session_object, write_atomic
from neuraldbg.trace import open_trace


def strict(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def valid(session: Any) -> Any:
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(session, schema(), cls=jsonschema.Draft202012Validator)
    return session


def test_a_session_has_exactly_the_documented_parts(place: Path) -> None:
    with open_trace(place / "neuraldbg_runs" / "good") as trace:
        session = valid(session_object(trace))
    assert set(session) == {"schema", "run", "verdict", "findings", "layers", "series", "overhead", "anomalies"}
    assert set(session["run"]) == {
        "id", "command", "backend", "versions", "world_size", "started", "duration_s", "steps", "exit_code", "models",
        "optimizers", "loss", "accumulation",
    }  # fmt: skip
    assert session["run"]["models"] == [{"name": "model", "class": "Net", "parameters": 54_400}]
    assert session["run"]["optimizers"] == [{"name": "optimizer", "class": "Adam", "lr": 0.001, "updates": 50}]
    assert set(session["layers"][0]) == {
        "path", "aliases", "type", "params", "stats", "first_bad_step", "time_ms", "memory_bytes", "flops", "grad_l2",
        "update_ratio",
    }  # fmt: skip
    assert set(session["series"]) == {"loss", "lr", "grad_norm", "step_time_s"}
    assert session["overhead"] == {"ratio": 0.0093, "sampled_steps": 20, "dropped_rows": 0}
    assert all(finding["severity"] == "info" for finding in session["findings"])
    assert session["verdict"]["state"] == "healthy"


def test_nan_is_a_word_in_the_file(place: Path) -> None:
    assert neural("export", "broken", "-o", "s.json", cwd=place).returncode == 0
    session = valid(strict((place / "s.json").read_text()))
    assert session["series"]["loss"][-1] == [49, "nan"]
    assert session["layers"][2]["first_bad_step"] == 33
    assert session["layers"][2]["stats"]["activation"]["mean"] is None


@pytest.mark.parametrize("ended", [True, False])
def test_even_an_empty_or_killed_run_exports(tmp_path: Path, ended: bool) -> None:
    with made_run(tmp_path / "run") as run:
        if ended:
            run.end()
    with open_trace(run.directory) as trace:
        session = valid(session_object(trace))
    assert session["run"]["exit_code"] == (0 if ended else None)
    assert session["series"]["loss"] == []


def test_a_long_run_is_downsampled(tmp_path: Path) -> None:
    with made_run(tmp_path / "run") as run:
        run.model()
        for step in range(5000):
            run.scalar("loss", step, 100.0 if step == 1234 else 1.0)
        run.call(Call.STEP, 0)
        run.end(steps=5000)
    with open_trace(run.directory) as trace:
        loss = valid(session_object(trace))["series"]["loss"]
    assert len(loss) <= 2000
    assert [1234, 100.0] in loss


def test_every_float_has_a_word() -> None:
    assert jsonable({"a": [math.nan, math.inf, (-math.inf, 1.5)]}) == {"a": ["nan", "inf", ["-inf", 1.5]]}


def test_export_replaces_a_file_whole(place: Path) -> None:
    target = place / "s.json"
    target.write_text("old")
    with open_trace(place / "neuraldbg_runs" / "good") as trace:
        export(trace, target)
    assert strict(target.read_text())["schema"] == "neuraldbg.session/1"
    assert [path.name for path in place.iterdir() if path.name.startswith(".")] == []


def test_a_failed_export_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "s.json"
    target.write_text("old")

    def broken() -> Any:
        yield b"half"
        raise OSError(28, os.strerror(28))

    with pytest.raises(UsageError, match=r"cannot write .*s.json: No space left on device"):
        write_atomic(target, broken())
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("s.json", "old")]


def test_csv_has_a_line_for_every_number(place: Path) -> None:
    text = neural("export", "broken", "--format", "csv", "-o", "-", cwd=place).stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 50 * (3 + 2 * 3) + 50 * 4
    losses = [row for row in rows if row["site"] == "loss"]
    assert (losses[0]["kind"], float(losses[0]["value"]), losses[-1]["value"]) == ("scalar", 2.3, "nan")
    assert rows[0]["kind"] == "activation"
    assert rows[0]["phase"] == "forward"


def test_a_zip_is_the_run(place: Path) -> None:
    result = neural("export", "good", "--format", "zip", "--json", cwd=place)
    written = json.loads(result.stdout)
    assert written["file"] == "good.zip"
    with zipfile.ZipFile(place / "good.zip") as archive:
        assert archive.testzip() is None
        assert "good/run.json" in archive.namelist()
    from_zip = json.loads(neural("report", "good.zip", "--json", cwd=place).stdout)
    assert from_zip == json.loads(neural("report", "good", "--json", cwd=place).stdout)
