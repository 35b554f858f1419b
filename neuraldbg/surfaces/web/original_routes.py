"""Routes under the names of the original server: health, and the debugger's state as its own page reads it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fastapi import APIRouter

from neuraldbg.config.installation import own_version
from neuraldbg.errors import NeuralDbgError
from neuraldbg.surfaces.web import inspector
from neuraldbg.surfaces.web.answers import StrictJSON, problems
from neuraldbg.surfaces.web.asking import Run
from neuraldbg.surfaces.web.runs import ServedRun

router = APIRouter(tags=["original"], default_response_class=StrictJSON)
OF_A_RUN = problems(404, 422, 503)


@router.get("/health", summary="Whether the server answers")
async def health() -> StrictJSON:
    """Without a thread: it answers even where all of them wait for a training process."""
    return StrictJSON({"status": "healthy", "service": "neuraldbg", "version": own_version()})


@router.get("/health/live", summary="Whether the process lives")
async def live() -> StrictJSON:
    return StrictJSON({"status": "alive"})


@router.get("/health/ready", responses=OF_A_RUN, summary="Whether the run can be read")
def ready(run: Run) -> StrictJSON:
    with run.reading():
        return StrictJSON({"status": "ready"})


@router.get("/api/debugger/status", responses=OF_A_RUN, summary="Running or paused, and where")
def status(run: Run) -> StrictJSON:
    return StrictJSON(status_of(run))


def status_of(run: ServedRun, state: dict[str, Any] | None = None) -> dict[str, Any]:
    now = state or run.state()
    breakpoints: list[str] = []
    if now["state"] != "unresponsive":
        with suppress(NeuralDbgError):
            breakpoints = [one["layer_name"] for one in run.call("breakpoints")]
    step = now.get("step")
    if step is None:
        with run.reading() as trace:
            step = trace.last_step
    return {
        "isRunning": now["state"] in ("running", "paused"),
        "isPaused": now["state"] == "paused",
        "currentLayer": now.get("layer"),
        "currentStep": step,
        "breakpoints": breakpoints,
    }


@router.get("/api/debugger/trace", responses=OF_A_RUN, summary="The newest entry of every layer")
def trace_entries(run: Run) -> StrictJSON:
    with run.reading() as trace:
        return StrictJSON({"trace": inspector.newest_entries(trace)})


@router.get("/api/debugger/variables", responses=OF_A_RUN, summary="The values at the place of the pause")
def variables(run: Run) -> StrictJSON:
    return StrictJSON({"variables": run.state().get("values", {})})


@router.get("/api/debugger/progress", responses=OF_A_RUN, summary="The phase that the pause lies in")
def progress(run: Run) -> StrictJSON:
    return StrictJSON({"progress": progress_of(run.state())})


def progress_of(state: dict[str, Any]) -> dict[str, Any]:
    phase = state.get("phase")
    return {"forwardPass": phase == "forward", "backwardPass": phase == "backward", "currentPhase": phase}
