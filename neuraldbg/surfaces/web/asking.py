"""What routes have in common: the run that is meant, stretches of steps, and the bodies of requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from neuraldbg.config.schema import CHARTS
from neuraldbg.control.verbs import LONGEST_GROUP, LONGEST_NAME
from neuraldbg.errors import UsageError
from neuraldbg.surfaces.web.runs import ServedRun, ServedRuns

FURTHEST = 2**53  # the last step that every reader of JSON can count to


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user configured of the server."""

    interval_s: float = 1.0  # websocket_interval
    history: int = 100  # history.inspector
    points: int = 1000  # dashboard.max_history
    theme: str = "dark"  # dashboard.theme
    charts: tuple[str, ...] = CHARTS  # dashboard.charts


def served(request: Request) -> ServedRuns:
    found: ServedRuns = request.app.state.runs
    return found


def settings(request: Request) -> Settings:
    found: Settings = request.app.state.settings
    return found


def chosen(
    runs: Annotated[ServedRuns, Depends(served)],
    run: Annotated[str | None, Query(max_length=300, description="name of a run; without it the first")] = None,
) -> ServedRun:
    return runs.get(run)


Rank = Annotated[int | None, Query(ge=0, le=FURTHEST, description="of one rank; without it the largest of all")]
Step = Annotated[int | None, Query(ge=0, le=FURTHEST, description="a step; without it the newest")]


def stretch(
    first: Annotated[int | None, Query(alias="from", ge=0, le=FURTHEST, description="first step")] = None,
    last: Annotated[int | None, Query(alias="to", ge=0, le=FURTHEST, description="last step, included")] = None,
) -> tuple[int | None, int | None]:
    if first is not None and last is not None and first > last:
        raise UsageError(f"from {first} is after to {last}")
    return first, last


Run = Annotated[ServedRun, Depends(chosen)]
Runs = Annotated[ServedRuns, Depends(served)]
Stretch = Annotated[tuple[int | None, int | None], Depends(stretch)]
Layer = Annotated[str, Query(max_length=300, description="name, path or alias of a layer")]
Configured = Annotated[Settings, Depends(settings)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


Phase = Annotated[
    str | None, Field(max_length=20, description="forward, backward or step; without it as early as can be")
]
Group = Annotated[str | None, Field(max_length=LONGEST_GROUP, description="a name to switch several together by")]
Once = Annotated[bool, Field(description="gone after its first hit")]


class NewBreakpoint(Body):
    layer_name: str = Field(max_length=LONGEST_NAME, description="a layer, an alias, or a glob", examples=["Conv2D_1"])
    condition: str | None = Field(None, examples=["layer_data['execution_time'] > 0.5"])
    phase: Phase = None
    enabled: bool = True
    group: Group = None
    once: Once = False
    pending: bool = Field(False, description="also where no layer has this name: it waits until one has")


class WhichBreakpoint(Body):
    layer_name: str = Field(max_length=LONGEST_NAME, examples=["Conv2D_1"])


class ChangedBreakpoint(Body):
    condition: str | None = None
    phase: Phase = None
    enabled: bool | None = None
    group: Group = None
    once: Once | None = None

    def given(self) -> dict[str, Any]:
        """Only what was sent: null clears a condition or a group and is no value for the rest."""
        sent = {name: getattr(self, name) for name in self.model_fields_set}
        return {name: value for name, value in sent.items() if value is not None or name in ("condition", "group")}


class GroupSwitch(Body):
    group: str = Field(max_length=LONGEST_GROUP, examples=["attention"])
    enabled: bool


class StepBy(Body):
    unit: str = Field("layer", max_length=20, description="layer or step")


class ConditionText(Body):
    condition: str = Field(examples=["layer_data['grad_norm'] < 0.001"])


class Rehearsal(Body):
    condition: str = Field("", examples=["layer_data['grad_norm'] < 0.001"])
    layer_name: str | None = Field(None, description="where it is tried; without it only the words are looked at")


Change = Annotated[str, Field(max_length=100)]


class Experiment(Body):
    finding: str | None = Field(None, max_length=300, description="id or kind of a finding: only its cures are tried")
    changes: list[Change] = Field([], max_length=20, description="to be tried instead", examples=[["lr x0.1"]])
    steps: int | None = Field(None, ge=1, le=FURTHEST, description="updates of each run of the script")
    jobs: int | None = Field(None, ge=1, le=64, description="runs of the script at the same time")
    timeout: float | None = Field(None, ge=1, le=10**7, description="seconds of each run of the script")


class ReplayOrder(Body):
    finding: str | None = Field(None, max_length=300, description="id or kind of a finding: its cures are tried")
    interventions: list[Change] = Field([], max_length=20, description="to be tried instead", examples=[["lr x0.1"]])
    steps: int | None = Field(None, ge=1, le=FURTHEST, description="updates of each run of the script")
    from_step: int = Field(0, ge=0, le=0, description="every run begins at the start")


class PastTensor(Body):
    layer: str = Field(max_length=LONGEST_NAME, examples=["encoder.2"])
    step: int = Field(ge=0, le=FURTHEST)
    kind: str = Field("output", max_length=40, description="output, input, gradient, weight or weight_gradient")
    slice: str = Field("", max_length=200, description="whose values are told: 0, :8; without it the first of all")
    timeout: float = Field(600.0, ge=1, le=10**6, description="seconds")
