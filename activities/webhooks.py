"""Signed webhooks, so that receivers can verify the sender."""

import hashlib
import hmac
import time

import httpx
from pydantic import SecretStr

from redrive.classify import category_of_status
from redrive.errors import ServiceError
from redrive.network import PRIVATE


async def post_signed(http: httpx.AsyncClient, url: str, body: bytes, secret: SecretStr | None, *, what: str) -> None:
    """Send a JSON document, or raise a ServiceError that names what was not accepted."""
    # The operator sets the whole address, and no payload data is in it: it may be a private one.
    response = await http.post(
        url, content=body, headers=_headers(body, secret), follow_redirects=False, extensions={PRIVATE: True}
    )
    if response.status_code >= 300:
        raise ServiceError(
            f"the {what} webhook answered {response.status_code}",
            category=category_of_status(response.status_code),
            status=response.status_code,
        )


def _headers(body: bytes, secret: SecretStr | None) -> dict[str, str]:
    moment = str(int(time.time()))
    headers = {"content-type": "application/json", "x-redrive-timestamp": moment}
    if secret:
        key = secret.get_secret_value().encode()
        signature = hmac.new(key, moment.encode() + b"." + body, hashlib.sha256).hexdigest()
        headers["x-redrive-signature"] = f"sha256={signature}"
    return headers
