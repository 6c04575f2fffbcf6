"""The operators' pages: they read and show the records; changes go through the API, which decides."""

from pathlib import Path
from typing import Final

from fastapi import FastAPI
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from redrive.console.web import administration, broker_records, bulk, outbox, overview, run_starts, runs, schedules
from redrive.console.web import dead_letters as letters
from redrive.console.web import edits as plans

STATIC: Final = "/static"


class _Files(StaticFiles):
    """Files that a browser may cache, and revalidates before each use."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file."""
        answer = await super().get_response(path, scope)
        answer.headers["cache-control"] = "no-cache"
        return answer


def mount(app: FastAPI) -> None:
    """Add the pages and their assets: our own files and the htmx package."""
    for part in (overview, plans, letters, outbox, broker_records, bulk, run_starts, runs, schedules, administration):
        app.include_router(part.router)
    app.mount(
        STATIC, _Files(directory=Path(__file__).parent / "static", packages=[("js_lib_htmx", "static")]), name="static"
    )
