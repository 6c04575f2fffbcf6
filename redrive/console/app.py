"""The console's application: settings in, routes out. Built in an entry point, or by a test."""

import contextlib
import importlib.metadata
from collections.abc import AsyncIterator

from fastapi import APIRouter, FastAPI

from redrive.bridges.events.settings import EventSettings
from redrive.console import sign_in as signing_in
from redrive.console import web
from redrive.console.api import (
    approvals,
    audit,
    broker_records,
    bulk,
    commands,
    dead_letters,
    health,
    me,
    metrics,
    retrying,
    runs,
    tokens,
)
from redrive.console.api import events as stored_events
from redrive.console.api import live_updates as events
from redrive.console.api import modules as catalog
from redrive.console.app_state import AppState
from redrive.console.body_limits import BodyGuard
from redrive.console.connections import BodyDeadline
from redrive.console.headers import SecurityHeaders
from redrive.console.metrics import Counting
from redrive.console.problems import handle_errors
from redrive.console.schema import describe
from redrive.console.tracing import Tracing
from redrive.console.web import temporal
from redrive.settings import Settings
from redrive.tracing import is_on

PREFIX = "/api/v1"


def build_app(settings: Settings, events: EventSettings | None = None) -> FastAPI:
    """Build the application. Connections are made on first use.

    Without settings of events, an event's type names its pipeline.
    """
    app_state = AppState(settings, events or EventSettings.model_construct())

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
        # Its own spans would hold paths and queries, including links' tokens: see redrive/console/tracing.py.
        telemetry={"tracing": False},
    )
    app.state.app_state = app_state
    handle_errors(app)
    describe(app)
    app.include_router(_api(), prefix=PREFIX)
    for part in (health, metrics, signing_in):
        app.include_router(part.router, include_in_schema=False)
    web.mount(app)
    if app_state.web_ui:
        app.include_router(temporal.router)
    app.add_middleware(BodyGuard)
    app.add_middleware(BodyDeadline, timeout=settings.body_timeout, metrics=app_state.metrics)
    app.add_middleware(SecurityHeaders, https=app_state.https)
    app.add_middleware(Counting, metrics=app_state.metrics, api=PREFIX)
    if is_on():
        app.add_middleware(Tracing)
    return app


def _api() -> APIRouter:
    router = APIRouter()
    from_brokers = (broker_records, stored_events)
    watching = (catalog, audit, tokens, me, events, health, metrics)
    for part in (runs, retrying, dead_letters, commands, bulk, approvals, *from_brokers, *watching):
        router.include_router(part.router)
    return router
