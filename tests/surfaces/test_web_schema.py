"""Whatever is sent, every answer is one that the schema declares, and no refusal is without a reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_runs import made_run, train
from schemathesis import GenerationMode
from servers import Training, serving, training

from neuraldbg.surfaces.web.app import make_app
from neuraldbg.surfaces.web.guard import Policy
from neuraldbg.surfaces.web.runs import ServedRuns

KNOWN = {  # real names, so that not every request ends at the first unknown one
    "run": st.sampled_from(["run", None]),
    "layer": st.sampled_from(["fc", "conv1", "Conv2D_1", "fc.weight", "model"]),
    "layer_name": st.sampled_from(["fc", "conv*", "Conv2D_1"]),
    "metric": st.sampled_from(["loss", "grad_norm", "execution_time", "activation.std", "lr", "memory"]),
    "kind": st.sampled_from(["activation", "gradient", "output", "parameter"]),
    "a": st.just("run"),
    "b": st.just("run"),
    "id": st.sampled_from([1, 2, "nan_activation:fc:0"]),
    "unit": st.sampled_from(["layer", "step"]),
    "condition": st.sampled_from(["grad_norm < 0", "layer_data['memory'] > 1e9", None]),
}
BY_STATE = {  # whether these are done depends on where the run is and on what is there: test_web_control has each
    "DELETE /api/breakpoint", "DELETE /api/breakpoint/{id}", "PATCH /api/breakpoint/{id}",
    "PATCH /api/breakpoint/group",
    "POST /api/continue", "POST /api/pause", "POST /api/step", "GET /api/tensor", "GET /api/findings/{id}",
    "POST /api/replay", "GET /api/jobs/{id}", "POST /api/whatif", "GET /api/whatif/plan", "POST /api/tensor",
}  # fmt: skip
Live = tuple[Any, Training]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with made_run(tmp_path / "run") as run:
        train(run, nan_from=33)
        run.end(steps=50)
    with training(run.directory) as trained, serving(run.directory) as door:
        schema = schemathesis.openapi.from_dict(make_app(ServedRuns([]), Policy()).openapi())
        schema.config.update(base_url=door.address)
        yield schema, trained


@pytest.fixture(scope="module")
def declared() -> dict[str, set[str]]:
    """The statuses of every route."""
    paths = make_app(ServedRuns([]), Policy()).openapi()["paths"]
    return {
        f"{method.upper()} {path}": set(about["responses"]) for path in paths for method, about in paths[path].items()
    }


@pytest.mark.slow
def test_every_route_answers_only_what_its_schema_declares(live: Live) -> None:
    schema, trained = live
    seen: dict[str, set[int]] = {}
    spoiled: dict[str, set[int]] = {}
    operations = [found.ok() for found in schema.get_all_operations()]
    for operation in sorted(operations, key=lambda one: one.path == "/api/abort"):  # last: it ends the training
        seen[operation.label] = _fuzz(operation, GenerationMode.POSITIVE, trained)
        if _can_be_wrong(operation):
            spoiled[operation.label] = _fuzz(operation, GenerationMode.NEGATIVE, trained)
    assert all(seen.values())
    assert {label for label, statuses in seen.items() if 200 not in statuses} <= BY_STATE
    assert all(spoiled.values())
    assert {200, 404, 409, 422} <= set.union(*seen.values(), *spoiled.values())
    with_body = {label for label in spoiled if label.partition(" ")[0] in ("POST", "PATCH", "DELETE")}
    assert {label for label in with_body if not spoiled[label] & {400, 404, 415, 422}} == set()


def _can_be_wrong(operation: Any) -> bool:
    """Whether a request of it has anything that could be spoiled."""
    return bool(operation.definition.raw.get("parameters") or operation.definition.raw.get("requestBody"))


def _fuzz(operation: Any, mode: GenerationMode, trained: Training) -> set[int]:
    """The statuses of its answers. A route for which no such request can be made fails the test (Unsatisfiable)."""
    examples = 4 if operation.path == "/api/compare" else 15  # which analyses both runs
    seen: set[int] = set()

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode), drawn=st.data())
    def check(case: Any, drawn: st.DataObject) -> None:
        if mode is GenerationMode.POSITIVE:
            _with_known_names(case, drawn)
        goes_on = drawn.draw(st.booleans())
        response = case.call()
        seen.add(response.status_code)
        _as_declared(operation, response)
        if goes_on and trained.gate.paused:
            trained.gate.resume()

    check()
    return seen


def _with_known_names(case: Any, drawn: st.DataObject) -> None:
    for part in (case.query, case.path_parameters, case.body):
        for name in list(part) if isinstance(part, dict) else ():
            if name in KNOWN and drawn.draw(st.integers(0, 3)):
                value = drawn.draw(KNOWN[name])
                if value is not None:
                    part[name] = value
                elif part is case.query:
                    del part[name]


def _as_declared(operation: Any, response: Any) -> None:
    declared = operation.definition.raw["responses"]
    assert str(response.status_code) in declared, (response.request.method, response.request.url, response.text)
    kinds = declared[str(response.status_code)].get("content", {})
    assert response.headers["content-type"][0].partition(";")[0] in kinds
    if response.status_code >= 400:
        assert json.loads(response.text)["error"]


def test_every_route_of_the_seeds_and_of_the_page_is_declared(declared: dict[str, set[str]]) -> None:
    assert {
        "GET /api/layer_inspect/{layer}", "POST /api/breakpoint", "GET /api/breakpoint", "DELETE /api/breakpoint",
        "DELETE /api/breakpoint/{id}", "PATCH /api/breakpoint/{id}", "PATCH /api/breakpoint/group",
        "POST /api/continue", "POST /api/pause", "POST /api/step", "GET /api/state", "GET /api/runs", "GET /api/run",
        "GET /api/series", "GET /api/heatmap", "GET /api/histogram", "GET /api/findings", "GET /api/findings/{id}",
        "GET /api/flame", "GET /api/trace.json", "GET /api/summary", "GET /api/resources", "GET /api/compare",
        "POST /api/replay", "GET /api/jobs/{id}", "GET /api/tensor", "GET /health", "GET /health/live",
        "GET /health/ready", "GET /api/debugger/status", "GET /api/debugger/trace", "GET /api/debugger/variables",
        "GET /api/debugger/progress", "POST /api/abort",
    } <= set(declared)  # fmt: skip


def test_what_the_guard_answers_is_declared_everywhere(declared: dict[str, set[str]]) -> None:
    assert all({"401", "403", "411", "413", "415"} <= statuses for statuses in declared.values())


def test_no_framework_is_imported_by_the_server(tmp_path: Path) -> None:
    import subprocess
    import sys

    from commands import environment

    code = (
        "import sys; import neuraldbg.surfaces.web.serving; "
        "print([m for m in ('torch', 'tensorflow', 'jax', 'keras', 'onnx') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
