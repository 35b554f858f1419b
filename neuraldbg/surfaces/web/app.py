"""The application: all routes behind the guard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
from fastapi import FastAPI

from neuraldbg.config.installation import own_version
from neuraldbg.surfaces.web import (
    control_routes,
    events,
    metrics,
    original_routes,
    page_routes,
    pages,
    view_routes,
    whatif_routes,
)
from neuraldbg.surfaces.web.answers import StrictJSON, explain_errors, problems
from neuraldbg.surfaces.web.asking import Settings
from neuraldbg.surfaces.web.guard import Guard, Policy
from neuraldbg.surfaces.web.runs import ServedRuns

THREADS = 8  # requests at once; each keeps some memory of its own


def make_app(runs: ServedRuns, policy: Policy, settings: Settings | None = None) -> FastAPI:
    """Whoever made `runs` closes them."""
    given = settings or Settings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        app.state.streams = events.Streams(runs, given)
        yield

    app = FastAPI(
        title="NeuralDbg",
        version=own_version(),
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        lifespan=lifespan,
        default_response_class=StrictJSON,
        responses=problems(401, 403, 411, 413, 415),
    )
    app.state.runs, app.state.settings = runs, given
    for room in (page_routes, whatif_routes, control_routes, view_routes, original_routes, metrics, events, pages):
        app.include_router(room.router)
    explain_errors(app)
    app.add_middleware(Guard, policy=policy)
    _plain_schema(app)
    return app


def _plain_schema(app: FastAPI) -> None:
    """The schema without what FastAPI adds of its own: a 422 of another shape than ours."""
    whole = app.openapi

    def openapi() -> dict[str, Any]:
        schema = whole()
        for name in ("HTTPValidationError", "ValidationError"):
            schema.get("components", {}).get("schemas", {}).pop(name, None)
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
