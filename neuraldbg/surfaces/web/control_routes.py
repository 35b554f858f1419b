"""Routes that reach the training process: breakpoints, continue, pause, step, abort, tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from neuraldbg.surfaces.web.answers import StrictJSON, problems
from neuraldbg.surfaces.web.asking import (
    FURTHEST,
    ChangedBreakpoint,
    ConditionText,
    GroupSwitch,
    Layer,
    NewBreakpoint,
    Run,
    Step,
    StepBy,
    WhichBreakpoint,
)

router = APIRouter(tags=["control"], responses=problems(404, 422, 503), default_response_class=StrictJSON)
Number = Annotated[int, Path(ge=0, le=FURTHEST, alias="id", description="the id of a breakpoint")]


def by_layer(breakpoints: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The original's answer: what stands at every layer. Several breakpoints of one layer are counted together."""
    found: dict[str, dict[str, Any]] = {}
    for one in breakpoints:
        entry = found.get(one["layer_name"])
        if entry is None:
            found[one["layer_name"]] = {**one, "breakpoints": [one]}
            continue
        entry["breakpoints"].append(one)
        entry["enabled"] = entry["enabled"] or one["enabled"]
        for count in ("hit_count", "trigger_count"):
            entry[count] += one[count]
    return found


@router.post("/api/breakpoint", responses=problems(400), summary="Add a breakpoint")
def add(body: NewBreakpoint, run: Run) -> StrictJSON:
    one = run.call("add", **body.model_dump())
    message = f"Breakpoint added for {body.layer_name}"
    return StrictJSON({"status": "success", "message": message, "id": one["id"], "breakpoint": one})


@router.get("/api/breakpoint", summary="List the breakpoints by layer")
def listed(run: Run) -> StrictJSON:
    return StrictJSON(by_layer(run.call("breakpoints")))


@router.delete("/api/breakpoint", responses=problems(400), summary="Remove the breakpoints of a layer")
def remove(body: WhichBreakpoint, run: Run) -> StrictJSON:
    gone = run.call("remove", layer_name=body.layer_name)
    return _removed(gone)


@router.patch("/api/breakpoint/group", responses=problems(400), summary="Switch a group of breakpoints on or off")
def switch(body: GroupSwitch, run: Run) -> StrictJSON:
    changed = run.call("group", group=body.group, enabled=body.enabled)
    message = f"{len(changed)} breakpoints of {body.group} {'enabled' if body.enabled else 'disabled'}"
    return StrictJSON({"status": "success", "message": message, "breakpoints": changed})


@router.post("/api/breakpoint/check", responses=problems(400), summary="Say whether a condition is one")
def check(body: ConditionText, run: Run) -> StrictJSON:
    return StrictJSON(run.call("check", condition=body.condition))


@router.delete("/api/breakpoint/{id}", summary="Remove one breakpoint")
def remove_one(number: Number, run: Run) -> StrictJSON:
    return _removed(run.call("remove", id=number))


@router.patch("/api/breakpoint/{id}", responses=problems(400), summary="Enable, disable or edit a breakpoint")
def change(number: Number, body: ChangedBreakpoint, run: Run) -> StrictJSON:
    one = run.call("change", id=number, **body.given())
    message = f"Breakpoint changed for {one['layer_name']}"
    return StrictJSON({"status": "success", "message": message, "breakpoint": one})


def _removed(gone: Sequence[dict[str, Any]]) -> StrictJSON:
    names = ", ".join(dict.fromkeys(one["layer_name"] for one in gone))
    return StrictJSON({"status": "success", "message": f"Breakpoint removed for {names}", "removed": gone})


@router.post("/api/continue", responses=problems(400, 409), summary="Resume after a hit")
def resume(run: Run) -> StrictJSON:
    return StrictJSON({"status": "success", "message": "Execution continued", **_state(run.call("continue"))})


@router.post("/api/pause", responses=problems(400, 409), summary="Pause at the next layer")
def pause(run: Run) -> StrictJSON:
    return StrictJSON(
        {"status": "success", "message": "Execution pauses at the next layer", **_state(run.call("pause"))}
    )


@router.post("/api/step", responses=problems(400, 409), summary="Run the next layer, or the next step")
def step(run: Run, body: StepBy | None = None) -> StrictJSON:
    unit = body.unit if body is not None else "layer"
    answer = run.call("step", unit=unit)
    return StrictJSON({"status": "success", "message": f"Execution pauses at the next {unit}", **_state(answer)})


@router.post("/api/abort", responses=problems(400), summary="End the training as Ctrl-C does, paused or running")
def abort(run: Run) -> StrictJSON:
    before = run.call("state").get("state")
    answer = run.call("abort")
    where = "here" if before == "paused" else "at the next layer"
    return StrictJSON({"status": "success", "message": f"Training ends {where}", **_state(answer)})


def _state(answer: dict[str, Any]) -> dict[str, Any]:
    return {"state": answer}


@router.get("/api/state", summary="Running, paused (and where) or over")
def state(run: Run) -> StrictJSON:
    return StrictJSON(run.state())


@router.get("/api/tensor", responses=problems(409), summary="A tensor of a layer, while the run is paused")
def tensor(
    run: Run,
    layer: Layer | None = None,
    kind: Annotated[str, Query(max_length=100, description="input, output, gradient, weight, ...")] = "output",
    step: Step = None,
    part: Annotated[str | None, Query(alias="slice", max_length=200, description="0, :8")] = None,
) -> StrictJSON:
    """Of another step than the one it is paused at: made again, where the run is recorded (--record full); `proof` says
    whether it is proved to be the one."""
    return StrictJSON(run.call("tensor", layer=layer, kind=kind, slice=part, step=step))
