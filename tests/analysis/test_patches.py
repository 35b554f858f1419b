"""Where a fault can be mended by an edit that the trace tells, the finding carries a patch, and the patched program
runs, without it where that is quick to see."""

from __future__ import annotations

import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from neuraldbg.analysis.catalogue import catalogue

FAULTS = Path(__file__).parents[2] / "benchmarks" / "faults"
GOOD = ("runs", "cures")  # the quick ones are debugged once more: the finding is gone
AT_ONCE = 2  # each is two processes with one thread, mostly one after the other


def _score() -> ModuleType:
    spec = importlib.util.spec_from_file_location("faults_score", FAULTS / "score.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


SCORE = _score()
PROGRAMS: dict[str, tuple[Path, dict[str, Any]]] = {
    f"{script.parent.name}/{script.stem}": (script, truth)
    for script, truth in SCORE.programs(None, set())
    if truth.get("mechanical") and not truth.get("no_patch")  # the truth says why there is none
}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # the first test waits for all programs


@pytest.fixture(scope="module")
def patched(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The scores of the programs that were asked for: run once each, several at a time."""
    tests = [item for item in request.session.items if item.module is request.module]
    names = [item.callspec.params["name"] for item in tests]
    symptoms = frozenset(one.id for one in catalogue().values() if one.sort == "symptom")

    def score(name: str) -> Any:
        script, truth = PROGRAMS[name]
        for _ in range(2):  # the experiments of a run are limited in time: on a busy machine one may be cut short
            found = SCORE.debug(script, script.read_text(), symptoms=symptoms, truth=truth, patches=True)
            if found.patched in GOOD:
                break
        return found

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(names, pool.map(score, names), strict=True))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_patch_of_a_mechanical_fault_applies_and_runs(name: str, patched: dict[str, Any]) -> None:
    score = patched[name]
    assert score.findings is not None, score.log
    assert score.hit is not None, f"not diagnosed; said {[one['kind'] for one in score.loud]}"
    assert score.patched in GOOD, f"patch: {score.patched}; suggestions: {score.hit['suggestions']}"
