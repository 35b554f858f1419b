"""The guides' examples: what a guide says of its script is what `neural debug` says, and its network reads healthy."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from forkserver import ForkServer

ROOT = Path(__file__).parents[2]
EXAMPLES, GUIDES = ROOT / "examples", ROOT / "docs" / "guides"
FAULTS = {
    "cnn": ("--keep-gradients", "missing_zero_grad"),
    "rnn": ("--softmax", "softmax_before_cross_entropy"),
    "gan": ("--attached", "missing_detach"),
    "transformer": ("--no-mask", "missing_causal_mask"),
    "tutorial": ("5.0", "learning_rate_too_high"),
    "optimisation": ("--slow", "slow_dataloader"),
}


def session(server: ForkServer, cwd: Path, *target: str) -> dict[str, Any]:
    done = server.neural("debug", "--headless", "--export", "session.json", *target, cwd=cwd, timeout=250)
    assert done.code == 0, done.stderr
    told: dict[str, Any] = json.loads((cwd / "session.json").read_text())
    return told


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_a_guide_shows_is_the_first_one_found(name: str, torch_server: ForkServer, tmp_path: Path) -> None:
    switch, kind = FAULTS[name]
    guide = (GUIDES / f"{name}.md").read_text()
    assert f"$ neural debug examples/{name}.py {switch}" in guide
    found = session(torch_server, tmp_path, str(EXAMPLES / f"{name}.py"), switch)["findings"]
    assert found[0]["kind"] == kind
    assert found[0]["severity"] in ("warning", "critical")
    assert kind.replace("missing_", "").split("_")[0] in guide


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in ("optimisation", "tutorial")])
def test_without_its_fault_a_script_has_no_finding_above_info(
    name: str, torch_server: ForkServer, tmp_path: Path
) -> None:
    told = session(torch_server, tmp_path, str(EXAMPLES / f"{name}.py"))
    assert [each["kind"] for each in told["findings"] if each["severity"] != "info"] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_the_network_of_a_guide_trains(name: str, torch_server: ForkServer, tmp_path: Path) -> None:
    told = session(torch_server, tmp_path, str(EXAMPLES / f"{name}.neural"))
    loud = [each["kind"] for each in told["findings"] if each["severity"] != "info"]
    if name == "tutorial":
        assert loud[0] == "learning_rate_too_high"
        assert "learning_rate=0.4" in told["findings"][0]["suggestions"][0]["patch"]
    else:
        assert (told["verdict"]["state"], loud) == ("healthy", [])


@pytest.mark.parametrize("page", sorted(GUIDES.glob("*.md")), ids=lambda page: page.stem)
def test_a_guide_names_only_findings_and_examples_that_exist(page: Path) -> None:
    from neuraldbg.analysis.catalogue import catalogue

    text = page.read_text()
    named = set(re.findall(r"`([a-z][a-z0-9]*(?:_[a-z0-9]+)+)`", text))
    assert named - set(catalogue()) - {"compare_backends"} == set()
    assert [each for each in re.findall(r"examples/\w+\.(?:py|neural)", text) if not (ROOT / each).is_file()] == []
