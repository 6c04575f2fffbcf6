"""Temporal's Web UI, for owners who are signed in."""

from typing import Annotated, Final
from urllib.parse import urlsplit

from fastapi import Depends, Request, Response

from redrive.access import Principal
from redrive.console.app_state import TheAppState
from redrive.console.authentication import signed_in_owner
from redrive.console.headers import WEB_UI_PATH
from redrive.console.problems import Refusal
from redrive.console.web.routes import page_router

router = page_router()
_METHODS: Final = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
Owner = Annotated[Principal, Depends(signed_in_owner)]


@router.api_route(WEB_UI_PATH, methods=_METHODS)
@router.api_route(WEB_UI_PATH + "/{path:path}", methods=_METHODS)
async def web_ui(request: Request, app_state: TheAppState, _owner: Owner) -> Response:
    """Show a page of the Web UI, or one of its assets."""
    if app_state.web_ui is None:
        raise Refusal(404, "no_web_ui", "this console does not show Temporal's Web UI", "set REDRIVE_WEB_UI_PROXY")
    own = urlsplit(app_state.settings.console_url or str(request.base_url))
    return await app_state.web_ui.show(request, f"{own.scheme}://{own.netloc}")
