"""What goes out: strict JSON, and for everything refused a status and a reason."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException

from neuraldbg.analysis.findings import strict
from neuraldbg.errors import (
    ChannelClosed,
    ChannelError,
    NeuralDbgError,
    NotNow,
    NotPaused,
    NotRecorded,
    TraceError,
    TraceNotFound,
    UnknownBreakpoint,
    UnknownDiagnosis,
    UnknownName,
    UnknownRun,
    nearest,
)
from neuraldbg.surfaces.live_analysis import NOT_READABLE

log = logging.getLogger("neuraldbg")

MEANINGS = {
    400: "the request is not valid JSON or not valid HTTP",
    401: "a token is needed",
    403: "another site or another host asked",
    404: "there is no such layer, run, breakpoint, finding or step; `nearest` says what may have been meant",
    405: "this path knows other methods",
    409: "the state of the run does not allow it",
    411: "a request with a body says its length",
    413: "the request is too large",
    415: "a write needs Content-Type: application/json",
    422: "a value is missing or makes no sense; a bad condition has `column` and `why`",
    503: "no training process is attached, or the run cannot be read now",
}
_OF_KIND = {
    "NotPaused": 409,
    "ChannelClosed": 503,
    "ChannelError": 503,
    **dict.fromkeys(("UnknownLayer", "UnknownName", "UnknownBreakpoint", "NotRecorded"), 404),
}
DETAILS: tuple[str, ...] = ("column", "why", "nearest")
_NOT_FOUND = (UnknownName, UnknownBreakpoint, UnknownDiagnosis, UnknownRun, NotRecorded, TraceNotFound)


class Problem(BaseModel):
    """Why a request was refused."""

    model_config = ConfigDict(extra="allow")
    error: str


class StrictJSON(JSONResponse):
    """NaN and infinities are the strings "nan", "inf" and "-inf"."""

    def render(self, content: Any) -> bytes:
        try:  # nearly always there is none of them, and looking for them took ten times as long as writing
            return _written(content)
        except (ValueError, TypeError):
            return _written(strict(content))


def _written(content: Any) -> bytes:
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals of a route, as the schema declares them."""
    return {status: {"model": Problem, "description": MEANINGS[status]} for status in statuses}


def problem(
    status: int, error: str, more: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
) -> StrictJSON:
    return StrictJSON({"error": error, **(more or {})}, status, headers)


def refusal(error: NeuralDbgError) -> tuple[int, str, dict[str, Any]]:
    """Status, reason and details of what we raise on purpose."""
    if isinstance(error, ChannelError):
        kept: dict[str, Any] = {name: error.details[name] for name in DETAILS if name in error.details}
        status = 503 if isinstance(error, ChannelClosed) else _OF_KIND.get(error.kind, 422)
        return status, str(error), kept
    details = {name: getattr(error, name) for name in DETAILS if hasattr(error, name)}
    if isinstance(error, _NOT_FOUND):
        return 404, str(error), details
    if isinstance(error, NotPaused | NotNow):
        return 409, str(error), details
    return (503 if isinstance(error, TraceError) else 422), str(error), details


def explain_errors(app: FastAPI) -> None:
    """Every way a request can fail has a handler: nothing becomes a bare 500."""

    async def on_purpose(_: Request, error: Exception) -> StrictJSON:
        assert isinstance(error, NeuralDbgError)
        status, reason, details = refusal(error)
        return problem(status, reason, details)

    async def invalid(_: Request, error: Exception) -> StrictJSON:
        assert isinstance(error, RequestValidationError)
        return _invalid(error)

    async def http(request: Request, error: Exception) -> StrictJSON:
        assert isinstance(error, HTTPException)
        return _http(app, request, error)

    async def unreadable(request: Request, error: Exception) -> StrictJSON:
        log.warning("%s %s: %r", request.method, request.url.path, error, exc_info=error)
        return problem(503, f"the run cannot be read now ({type(error).__name__}: {error}); try again")

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    for kind in NOT_READABLE:
        app.add_exception_handler(kind, unreadable)
    app.add_exception_handler(NeuralDbgError, on_purpose)


def _invalid(error: RequestValidationError) -> StrictJSON:
    found: list[dict[str, Any]] = list(error.errors())
    first: dict[str, Any] = found[0] if found else {"type": "", "loc": (), "msg": "not valid"}
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    if first["type"] == "json_invalid":
        why = (first.get("ctx") or {}).get("error", first["msg"])
        place = first["loc"][-1] if first["loc"] else None
        return problem(400, f"this is not JSON: {why}", {"column": place if isinstance(place, int) else None})
    told = [{"where": list(one["loc"]), "why": one["msg"]} for one in found]
    return problem(422, f"{where}: {first['msg']}" if where else first["msg"], {"problems": told})


def _http(app: FastAPI, request: Request, error: HTTPException) -> StrictJSON:
    if error.status_code != 404 or error.detail != "Not Found":
        return problem(error.status_code, str(error.detail), headers=error.headers)
    known = [path for path in app.openapi().get("paths", {}) if "{" not in path]
    near = nearest(request.url.path, known)
    hint = f"did you mean {near[0]}?" if near else "/docs lists what there is"
    return problem(404, f"nothing is served at {request.url.path}; {hint}", {"nearest": near})
