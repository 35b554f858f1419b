"""Routes that only our own page needs: its settings, the verdict, every layer at one step, what is unusual."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from neuraldbg.analysis.rank_overview import overview
from neuraldbg.config.installation import own_version
from neuraldbg.errors import ConditionError, UnknownLayer
from neuraldbg.surfaces.web import data, inspector
from neuraldbg.surfaces.web.answers import StrictJSON, problems, refusal
from neuraldbg.surfaces.web.asking import Configured, Rank, Rehearsal, Run, Step, Stretch
from neuraldbg.surfaces.web.rehearsal import rehearse
from neuraldbg.surfaces.web.view_routes import Name

router = APIRouter(tags=["page"], default_response_class=StrictJSON)
OF_A_RUN = problems(404, 422, 503)


@router.get("/api/settings", summary="What the user configured of the page")
def settings(settings: Configured) -> StrictJSON:
    return StrictJSON(
        {
            "theme": settings.theme,
            "refresh_s": settings.interval_s,
            "max_history": settings.points,
            "history": settings.history,
            "charts": list(settings.charts),
            "version": own_version(),
        }
    )


@router.get("/api/verdict", responses=OF_A_RUN, summary="The one sentence about a run, and the finding behind it")
def verdict(run: Run) -> StrictJSON:
    return StrictJSON(run.verdict())


@router.get("/api/frame", responses=OF_A_RUN, summary="Every layer in numbers, at the last measured step up to a step")
def frame(run: Run, step: Step = None) -> StrictJSON:
    with run.reading() as trace:
        return StrictJSON(data.frame_at(trace, step))


@router.get("/api/moment", responses=OF_A_RUN, summary="All that the page shows of a step, in one answer")
def moment(
    run: Run,
    settings: Configured,
    step: Step = None,
    layer: Annotated[str | None, Query(max_length=4000, description="the layer inspected")] = None,
    spans: Annotated[bool, Query(description="when every layer ran, too")] = False,
) -> StrictJSON:
    """As /api/frame, but numbers in base64 as in the stream; with `inspected` as /api/layer_inspect has it, and `spans`
    as /api/flame."""
    with run.reading() as trace:
        found = data.moment(trace, step, spans=spans)
        try:
            seen = layer and inspector.inspect_layer(trace, layer, step=step, history=settings.history)
        except UnknownLayer as error:
            seen = {"error": str(error), "history": []}
    return StrictJSON({**found, "inspected": seen or None})


@router.get("/api/heatmap/cells", responses=OF_A_RUN, summary="A heatmap with its names: one byte a cell, in base64")
def cells(
    run: Run,
    between: Stretch,
    metric: Name = "grad_norm",
    width: Annotated[int, Query(ge=1, le=4000, description="columns at most")] = 1000,
    scale: Annotated[Literal["linear", "log"] | None, Query(description="without it as the values need it")] = None,
    rank: Rank = None,
) -> StrictJSON:
    """As /api/heatmap; `measured` of the `of` steps have something where the value of one stands for those after it.
    A log scale needs values from zero on: `log` in the answer says what it became."""
    with run.reading() as trace:
        log = None if scale is None else scale == "log"
        return StrictJSON(data.drawn(trace, metric, between, width, log=log, rank=rank))


@router.get("/api/ranks", responses=OF_A_RUN, summary="Every rank: its last step, last loss and usual time of a step")
def ranks(run: Run, between: Stretch) -> StrictJSON:
    """As they stood at the end of the stretch; with what each waits for others, who is slowest, and where one stands
    that has not moved."""
    with run.reading() as trace:
        return StrictJSON({**overview(trace.between(*between)), "to": between[1]})


@router.get("/api/anomalies", responses=OF_A_RUN, summary="Samples unlike those before them, by layer and by step")
def anomalies(run: Run) -> StrictJSON:
    return StrictJSON(run.anomalies())


@router.post(
    "/api/breakpoint/rehearsal",
    responses={**OF_A_RUN, **problems(400)},
    summary="How often a breakpoint would have been hit in the recorded steps; `error` where it makes no sense",
)
def rehearsal(body: Rehearsal, run: Run) -> StrictJSON:
    """Asked with every key that somebody types: half a condition is no failure here, but an answer."""
    try:
        with run.reading() as trace:
            return StrictJSON({"error": None, **rehearse(trace, body.condition, body.layer_name)})
    except (ConditionError, UnknownLayer) as error:
        _, reason, details = refusal(error)
        return StrictJSON({"error": reason, "unknown_layer": isinstance(error, UnknownLayer), **details})
