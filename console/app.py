"""The console's application: settings in, routes out. Built in an entry point, or by a test."""

import contextlib
import importlib.metadata
from collections.abc import AsyncIterator

from fastapi import APIRouter, FastAPI

from console.api import dead_letters, health, me
from console.desk import Desk
from console.guard import BodyGuard
from console.headers import SecurityHeaders
from console.problems import handle_errors
from redrive.settings import Settings

PREFIX = "/api/v1"


def build_app(settings: Settings) -> FastAPI:
    """Put the application together. Connections are made when they are first needed."""
    desk = Desk(settings)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await desk.close()

    app = FastAPI(
        title="Redrive",
        version=importlib.metadata.version("redrive"),
        openapi_url=f"{PREFIX}/openapi.json",
        # Their pages load scripts from elsewhere, which the content security policy forbids.
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.desk = desk
    handle_errors(app)
    app.include_router(_api(), prefix=PREFIX)
    app.include_router(health.router, include_in_schema=False)
    app.add_middleware(BodyGuard)
    app.add_middleware(SecurityHeaders, https=desk.https)
    return app


def _api() -> APIRouter:
    router = APIRouter()
    for part in (dead_letters, me, health):
        router.include_router(part.router)
    return router
