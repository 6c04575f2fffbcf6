"""The console's application: settings in, routes out. Built in an entry point, or by a test."""

import contextlib
import importlib.metadata
from collections.abc import AsyncIterator

from fastapi import APIRouter, FastAPI

from redrive.bridges.events.settings import EventSettings
from redrive.console import sign_in as signing_in
from redrive.console import web
from redrive.console.api import (
    access,
    activities,
    approvals,
    audit,
    broker_records,
    bulk,
    dead_letters,
    health,
    live_updates,
    run_contents,
    run_starts,
    runs,
    schedules,
    services,
)
from redrive.console.api import outbox as outbox_rows
from redrive.console.api.answers import describe
from redrive.console.app_state import AppState
from redrive.console.headers import SecurityHeaders
from redrive.console.problems import handle_errors
from redrive.console.request_limits import BodyDeadline, BodyGuard
from redrive.console.telemetry import Counting, Tracing
from redrive.console.web import administration
from redrive.outbox.settings import OutboxSettings
from redrive.settings import Settings
from redrive.tracing import is_on

PREFIX = "/api/v1"


def build_app(settings: Settings, events: EventSettings | None = None, outbox: OutboxSettings | None = None) -> FastAPI:
    """Build the application. Connections are made on first use.

    Without settings of events, an event's type names its pipeline; without those of the outbox, it is Redrive's own.
    """
    app_state = AppState(
        settings, events or EventSettings.model_construct(), outbox or OutboxSettings.model_construct()
    )

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await app_state.close()

    app = FastAPI(
        title="Redrive",
        version=importlib.metadata.version("redrive"),
        openapi_url=f"{PREFIX}/openapi.json",
        # Their pages load external scripts, which the content security policy forbids.
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        # Its own spans would hold paths and queries, including links' tokens: see redrive/console/telemetry.py.
        telemetry={"tracing": False},
    )
    app.state.app_state = app_state
    handle_errors(app)
    describe(app)
    app.include_router(_api(), prefix=PREFIX)
    for part in (health, signing_in):
        app.include_router(part.router, include_in_schema=False)
    web.mount(app)
    if app_state.web_ui:
        app.include_router(administration.temporal_router)
    app.add_middleware(BodyGuard)
    app.add_middleware(BodyDeadline, timeout=settings.body_timeout, metrics=app_state.metrics)
    app.add_middleware(SecurityHeaders, https=app_state.https)
    app.add_middleware(Counting, metrics=app_state.metrics, api=PREFIX)
    if is_on():
        app.add_middleware(Tracing)
    return app


def _api() -> APIRouter:
    router = APIRouter()
    for part in (
        runs.router,
        schedules.router,
        run_starts.router,
        run_contents.router,
        runs.retrying_router,
        dead_letters.router,
        dead_letters.command_router,
        bulk.router,
        approvals.router,
        broker_records.router,
        broker_records.event_router,
        outbox_rows.router,
        runs.modules_router,
        activities.router,
        services.router,
        audit.router,
        access.router,
        access.me_router,
        live_updates.router,
        health.router,
    ):
        router.include_router(part)
    return router
