"""Routes of experiments: what was tried on a run, what would be, and trying it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from neuraldbg.errors import NotNow, UnknownName
from neuraldbg.surfaces.web.answers import StrictJSON, problems
from neuraldbg.surfaces.web.asking import Experiment, PastTensor, ReplayOrder, Run, Runs
from neuraldbg.surfaces.web.runs import ServedRun

router = APIRouter(tags=["whatif"], responses=problems(404, 422, 503), default_response_class=StrictJSON)
OVER = ("finished", "interrupted", "crashed", "killed")


@router.get("/api/whatif", summary="Changes that were tried on a run, and what became of each")
def whatif(run: Run) -> StrictJSON:
    """`tried`: as `neural whatif --json` tells it, null where nothing was; `trying`: the experiment that was started
    here, null where none was; `command`: what tries the cures at a terminal."""
    from neuraldbg.analysis.tried import read_tried

    with run.reading() as trace:
        tried = read_tried(trace.path)
    return StrictJSON({"tried": tried, "trying": run.trying.told(), "command": run.command("whatif")})


@router.get("/api/whatif/plan", responses=problems(409), summary="What an experiment would run; runs nothing")
def plan(
    run: Run, finding: Annotated[str | None, Query(max_length=300, description="id or kind of a finding")] = None
) -> StrictJSON:
    """To be shown before somebody agrees: the script that would be run again, in a copy of which folder, which files it
    wrote the first time, and which changes would be tried."""
    _is_over(run)
    return StrictJSON(run.trying.plan(_options(run, Experiment.model_validate({"finding": finding}))))


@router.post("/api/whatif", responses=problems(400, 409), summary="Try the cures of a run, or of one finding of it")
def start(run: Run, body: Experiment | None = None) -> StrictJSON:
    """Runs the user's script again, several times, in copies of its working directory. Returns at once; GET /api/whatif
    tells how far it is. The run has to be over, and one experiment is made at a time."""
    _is_over(run)
    trying = run.trying.start(_options(run, body or Experiment.model_validate({})))
    message = "The script is run again, with one change at a time"
    return StrictJSON({"status": "success", "message": message, "trying": trying})


@router.delete("/api/whatif", responses=problems(400), summary="Stop the experiment that is under way")
def stop(run: Run) -> StrictJSON:
    return StrictJSON({"status": "success", "message": "Nothing is tried any more", "trying": run.trying.stop()})


@router.post(
    "/api/replay", responses=problems(400, 409), summary="Try a fix: as POST /api/whatif, with a job to ask for"
)
def replay(run: Run, body: ReplayOrder | None = None) -> StrictJSON:
    order = body or ReplayOrder.model_validate({})
    _is_over(run)
    given = {"finding": order.finding, "changes": order.interventions, "steps": order.steps}
    wanted = Experiment.model_validate(given)
    return StrictJSON({"status": "success", **_job(run, run.trying.start(_options(run, wanted)))})


@router.get("/api/jobs/{id}", summary="What became of a replay that was asked for")
def job(runs: Runs, number: Annotated[str, Path(alias="id", max_length=200)]) -> StrictJSON:
    jobs = {told["job"]: (run, told) for run in runs if (told := run.trying.told()) is not None}
    if number not in jobs:
        raise UnknownName("job", number, jobs, listed_by="POST /api/replay")
    return StrictJSON(_job(*jobs[number]))


def _job(run: ServedRun, told: dict[str, Any]) -> dict[str, Any]:
    from neuraldbg.analysis.tried import read_tried

    with run.reading() as trace:
        return {**told, "run": run.name, "tried": read_tried(trace.path) if told["state"] == "done" else None}


@router.post("/api/tensor", responses=problems(400, 409), summary="A tensor of a run that is over, made again")
def past(run: Run, body: PastTensor) -> StrictJSON:
    """As `neural replay --json`: runs the script of a recorded run up to where its models are built, in a copy of its
    working directory, and makes the step again. Takes seconds; `proof` says whether it is proved to be the one, and
    `tensor` is what GET /api/tensor tells of one while a run is paused."""
    _is_over(run)
    return StrictJSON(run.trying.past(body.layer, body.step, body.kind, body.slice, body.timeout))


def _is_over(run: ServedRun) -> None:
    state = run.state()["state"]
    if state not in OVER:
        raise NotNow(f"the run is {state}: its cures can be tried when it is over")


def _options(run: ServedRun, body: Experiment) -> list[str]:
    words: list[str] = []
    if body.finding is not None:
        words += ["--cause", _kind(run, body.finding)]
    for change in body.changes:
        words += [f"--change={change}"]
    for name in ("steps", "jobs", "timeout"):
        value = getattr(body, name)
        words += [] if value is None else [f"--{name}", str(value)]
    return words


def _kind(run: ServedRun, finding: str) -> str:
    found = run.findings()
    for one in found:
        if finding in (one["id"], one["kind"]):
            return str(one["kind"])
    raise UnknownName("finding", finding, [one["kind"] for one in found], listed_by="/api/findings")
