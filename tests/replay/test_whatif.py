"""`neural whatif`: the script is run again with one change at a time, and only a proved cause is called verified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from forkserver import ForkServer
from texts import FORGETFUL
from whatif_command import neural

from neuraldbg.replay.candidates import CURES, candidates, pairs
from neuraldbg.replay.changes import parse
from neuraldbg.replay.scratch import differences, look

WRITING = (
    "import os"
    + FORGETFUL
    + """
    with open("log.txt", "a") as log:
        print(step, float(loss), os.environ.get("WANDB_MODE"), file=log)
torch.save(model.state_dict(), os.path.join(os.path.dirname(os.path.abspath(__file__)), "model.pt"))
"""
)
HEALTHY = WRITING.replace("    loss.backward()", "    optimizer.zero_grad()\n    loss.backward()").replace(
    "0.5)\n", "0.2)\n"
)


@pytest.fixture
def debugged(tmp_path: Path, torch_server: ForkServer, request: pytest.FixtureRequest) -> Path:
    (tmp_path / "train.py").write_text(request.param)
    assert torch_server.neural("debug", "--headless", "train.py", cwd=tmp_path).code == 0
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("debugged", [WRITING], indirect=True)
def test_the_cure_is_proved_and_the_working_directory_is_left_alone(debugged: Path) -> None:
    before, content = look(debugged), (debugged / "log.txt").read_bytes()
    done = neural(debugged, "whatif", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    verified = {arm["cause"] for arm in found["arms"] if arm["verdict"] == "verified"}
    assert verified == {"missing_zero_grad"}
    assert {"zero_after", "patch"} <= {arm["intervention"] for arm in found["arms"]}
    assert found["control"]["seeded"] is False
    assert differences(before, look(debugged)) == []
    assert (debugged / "log.txt").read_bytes() == content
    assert list(Path("/tmp").glob("neuraldbg-whatif-*/" + debugged.name)) == []
    report = json.loads(neural(debugged, "report", "--json").stdout)
    first = report["findings"][0]
    assert first["kind"] == "missing_zero_grad"
    assert next(each["verified"] for each in first["suggestions"]) is True
    told = neural(debugged, "report").stdout
    assert "verified: loss" in told
    assert "Tried      the suggested patch for missing_zero_grad: cures it" in told
    file = next(debugged.glob("neuraldbg_runs/*/findings.jsonl"))  # what the page shows
    kept = {one["kind"]: one for one in map(json.loads, file.read_text().splitlines()) if "kind" in one}
    assert kept["missing_zero_grad"]["suggestions"][0]["verified"] is True


@pytest.mark.slow
@pytest.mark.parametrize("debugged", [HEALTHY], indirect=True)
def test_a_healthy_run_has_nothing_to_try_but_a_change_can_be_asked_for(debugged: Path) -> None:
    assert "Nothing to try" in neural(debugged, "whatif").stdout
    done = neural(debugged, "whatif", "--change", "lr x1e-6", "--steps", "20", "--json")
    arms = json.loads(done.stdout)["arms"]
    assert [(arm["verdict"], arm["cause"], arm["updates"]) for arm in arms] == [("harm", None, 20)]
    shown = neural(debugged, "whatif", "--change", "lr x1e-6", "--steps", "20").stdout
    assert "does harm" in shown
    assert "Not proved" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["whatif"], "no run in"),
        (["whatif", "nosuchrun"], "no run 'nosuchrun'"),
        (["whatif", "--change", "lrr x0.1"], "did you mean 'lr'"),
        (["whatif", "--steps", "0"], "--steps"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    done = neural(tmp_path, *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_changes_are_listed(tmp_path: Path) -> None:
    done = neural(tmp_path, "whatif", "--list")
    assert done.returncode == 0
    assert "lr x0.1" in done.stdout


def test_every_cure_that_is_tried_is_a_change_there_is() -> None:
    for texts in CURES.values():
        for text in texts:
            parse(text)


def finding(kind: str, patch: str | None = None, **evidence: Any) -> dict[str, Any]:
    return {"kind": kind, "evidence": evidence, "suggestions": [{"title": "", "patch": patch}]}


def test_the_likeliest_cause_is_tried_first_and_its_own_patch_before_anything_else() -> None:
    groups = candidates([finding("missing_zero_grad", "a patch"), finding("nan_loss"), finding("bad_init")])
    assert [group[0].causes for group in groups] == [("missing_zero_grad",), ("bad_init",)]
    assert groups[0][0].patch == "a patch"
    assert groups[0][1].changes == ("zero_after",)


def test_where_no_single_change_helps_pairs_are_made_of_two_causes() -> None:
    made = pairs(candidates([finding("bad_init"), finding("unnormalised_input")]))
    assert ("reinit", "standardise") in {each.changes for each in made}
    assert ("reinit", "relu") in {each.changes for each in made}
