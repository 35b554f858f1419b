"""What is unusual is shown where it was asked for, exported always, and views keep to their focus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import neural, refused
from made_runs import MadeRun, made_run, train

from neuraldbg.records import Kind
from neuraldbg.surfaces.reports.session import schema
from neuraldbg.surfaces.terminal.layer_table import columns_for

FOCUS = ("gradients", "dead_neurons", "anomalies")


def odd_run(out: Path, *, nan_from: int | None = None, focus: tuple[str, ...] = ()) -> Path:
    """A healthy training with one odd activation and one odd number of the user's, unless `nan_from` breaks it."""
    with made_run(out, settings={"focus": list(focus)} if focus else {}) as run:
        train(run, nan_from=nan_from)
        _odd(run)
        run.end(steps=50)
    return run.directory


def _odd(run: MadeRun) -> None:
    site = run.module("head", "Linear", run.model())
    for step in range(50):
        run.stats(site, Kind.ACTIVATION, step, mean=70.0 if step == 40 else 0.3 + 0.01 * (step % 7), zero_count=25)
        run.scalar("user.accuracy", step, 0.0001 if step == 45 else 0.8 + 0.01 * (step % 5))


def section(text: str, label: str) -> str:
    """A label of the report with the lines under it, as one line."""
    lines = text.splitlines()
    start = next((at for at, line in enumerate(lines) if line.startswith(label)), None)
    if start is None:
        return ""
    rest = lines[start + 1 :]
    until = next((at for at, line in enumerate(rest) if not line.startswith(" ")), len(rest))
    return " ".join(" ".join([lines[start], *rest[:until]]).split())


def test_a_healthy_report_says_nothing_of_them_unless_asked(tmp_path: Path) -> None:
    odd_run(tmp_path / "run")
    plain = neural("report", "run", cwd=tmp_path).stdout
    assert "Verdict    healthy" in plain
    assert section(plain, "Anomalies") == ""
    asked = neural("report", "run", "--anomalies", cwd=tmp_path).stdout
    assert "Verdict    healthy" in asked
    told = section(asked, "Anomalies")
    assert "samples are unlike those before them" in told
    assert "step 40, head: mean_activation 70.0 (z " in told
    assert "step 45: user.accuracy 1.0e-4 (z " in told
    assert section(asked, "Focus") == "Focus anomalies: nothing else was looked for"


def test_the_report_of_a_broken_run_names_the_strongest(tmp_path: Path) -> None:
    odd_run(tmp_path / "run", nan_from=33)
    told = section(neural("report", "run", cwd=tmp_path).stdout, "Anomalies")
    assert "; the strongest: step 33" in told
    assert "NaN" in told


def test_the_session_holds_them_as_its_schema_says(tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    odd_run(tmp_path / "run", nan_from=48)
    session = json.loads(neural("report", "run", "--json", cwd=tmp_path).stdout)
    jsonschema.Draft202012Validator(schema()).validate(session)
    told = session["anomalies"]
    assert (told["sensitivity"], told["history"], told["unseen_steps"]) == (0.95, 1000, 0)
    assert len(told["found"]) < told["total"] < told["samples"]  # of two NaN in a row the first is listed
    by_place = {(each["step"], each["layer"]): each for each in told["found"]}
    assert by_place[40, "head"]["metrics"] == ["mean_activation"]
    assert by_place[45, None]["values"] == {"user.accuracy": 0.0001}
    assert by_place[48, None]["values"] == {"loss": "nan"}
    assert told["found"] == sorted(told["found"], key=lambda each: each["step"])
    exported = neural("export", "run", "-o", "-", cwd=tmp_path).stdout
    assert json.loads(exported)["anomalies"] == told


@pytest.mark.parametrize(
    ("words", "shown", "hidden"),
    [
        ((), ("mean", "norm", "Fwd"), ("zeros", "malies")),
        (("--gradients",), ("norm", "/weight"), ("mean", "zeros", "Fwd", "malies")),
        (("--dead-neurons",), ("mean", "std", "zeros"), ("norm", "/weight", "Fwd", "malies")),
        (("--anomalies",), ("mean", "norm", "malies"), ("zeros", "Bwd")),
        (("--gradients", "--dead-neurons"), ("zeros", "norm", "/weight"), ("Fwd", "malies")),
    ],
)
def test_the_table_of_layers_keeps_to_the_focus(
    tmp_path: Path, words: tuple[str, ...], shown: tuple[str, ...], hidden: tuple[str, ...]
) -> None:
    odd_run(tmp_path / "run")
    text = neural("report", "run", *words, cwd=tmp_path).stdout
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("Layer ") and "Type" in line)
    header = f"{lines[at - 1]} {lines[at]}".split()
    assert [word for word in shown if word not in header] == []
    assert [word for word in hidden if word in header] == []


def test_the_focus_of_a_run_is_kept_with_it_and_its_checks_are_fewer(tmp_path: Path) -> None:
    odd_run(tmp_path / "all")
    odd_run(tmp_path / "some", focus=("dead_neurons",))

    def checks(*words: str) -> int:
        headline = json.loads(neural("report", *words, "--json", cwd=tmp_path).stdout)["verdict"]["headline"]
        return int(headline.split(" checks found nothing")[0].rpartition(" ")[2])

    assert checks("some") == checks("all", "--dead-neurons") < checks("all")
    assert "dead neurons: nothing else" in section(neural("report", "some", cwd=tmp_path).stdout, "Focus")


def test_a_verdict_keeps_to_the_focus_and_says_so(tmp_path: Path) -> None:
    odd_run(tmp_path / "run", nan_from=33)

    def verdict(*words: str) -> str:
        return section(neural("report", "run", *words, cwd=tmp_path).stdout, "Verdict")

    assert verdict().startswith("Verdict critical")
    assert verdict("--anomalies").startswith("Verdict critical")
    assert verdict("--dead-neurons").startswith("Verdict healthy: as far as dead neurons go: 50 updates")


def test_zeros_and_anomalies_of_a_layer_stand_in_its_line(tmp_path: Path) -> None:
    odd_run(tmp_path / "run")
    lines = neural("report", "run", "--dead-neurons", "--anomalies", cwd=tmp_path).stdout.splitlines()
    (line,) = [each.split() for each in lines if each.startswith("head ")]
    assert line[-1] != "0"
    assert any(word.startswith("25") for word in line)


def test_every_group_has_its_columns() -> None:
    assert all(columns_for([group]) for group in FOCUS)
    assert len(columns_for([])) == 7


# -- the graph of causes ----------------------------------------------------------------------------------------------


def test_the_causal_graph_is_a_file_or_goes_to_stdout(place: Path) -> None:
    written = neural("export", "broken", "--format", "mermaid", cwd=place)
    assert (written.returncode, written.stderr) == (0, "")
    graph = (place / "broken.mmd").read_text()
    assert graph.startswith("graph TD\n")
    assert "nan_loss" in graph
    assert neural("export", "broken", "--format", "mermaid", "-o", "-", cwd=place).stdout == graph
    named = neural("export", "good", "--format", "mermaid", "-o", "why.mmd", "--json", cwd=place)
    about: dict[str, Any] = json.loads(named.stdout)
    assert about == {"file": "why.mmd", "format": "mermaid", "bytes": (place / "why.mmd").stat().st_size}
    assert "nothing above info was found" in (place / "why.mmd").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("good", "--format", "mermaid", "-o", "missing/x.mmd"),
            "cannot write missing/x.mmd: No such file or directory",
        ),
        (("good", "--format", "mermaid", "-o", "neuraldbg_runs"), "cannot write neuraldbg_runs: Is a directory"),
        (("good", "--format", "mermiad"), "no format 'mermiad'; did you mean 'mermaid'?"),
        (
            ("goood", "--format", "mermaid"),
            "no run 'goood': no such path, and no such name in PLACE/neuraldbg_runs; did you mean neuraldbg_runs/good?",
        ),
    ],
)
def test_a_graph_that_cannot_be_written_is_one_line(place: Path, words: tuple[str, ...], said: str) -> None:
    assert refused(neural("export", *words, cwd=place)) == said.replace("PLACE", str(place.resolve()))
    assert list(place.glob("*.mmd")) == []
