"""The webhook of an alert: its signature, and what counts as delivered."""

import hashlib
import hmac

import httpx
import pytest
from pydantic import SecretStr

from redrive.activities.alerts import AlertActivities
from redrive.categories import Category
from redrive.dead_letters import Alert, LetterId
from redrive.errors import ServiceError
from redrive.settings import AlertSettings

ALERT = Alert(
    letter=LetterId(tenant="t", run_id="run-1", step="second"),
    pipeline="three",
    fingerprint="f",
    category="network",
    error_type="OSError",
    message="refused",
    attempts=3,
    count=7,
)


async def sent(settings: AlertSettings, status: int = 200) -> list[httpx.Request]:
    """Send the alert to a webhook that answers with a status, and return what it was sent."""
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(status, headers={"location": "http://elsewhere.example/"})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        await AlertActivities(http, settings).send(ALERT, set(), source="run")
    return requests


async def test_nothing_is_sent_without_a_channel() -> None:
    """Alerts are optional."""
    assert await sent(AlertSettings()) == []


async def test_body_is_signed_with_its_time() -> None:
    """HMAC-SHA256 over `timestamp.body`."""
    (request,) = await sent(AlertSettings(webhook_url="http://hook.example/", webhook_secret=SecretStr("s")))
    moment = request.headers["x-redrive-timestamp"]
    expected = hmac.new(b"s", moment.encode() + b"." + request.content, hashlib.sha256).hexdigest()
    assert request.headers["x-redrive-signature"] == f"sha256={expected}"
    assert Alert.model_validate_json(request.content) == ALERT


async def test_without_a_secret_there_is_no_signature() -> None:
    """None is better than one that proves nothing."""
    (request,) = await sent(AlertSettings(webhook_url="http://hook.example/"))
    assert "x-redrive-signature" not in request.headers


@pytest.mark.parametrize(
    ("status", "category"),
    [(302, Category.UNKNOWN), (404, Category.PROVIDER_4XX), (503, Category.PROVIDER_5XX)],
)
async def test_answer_other_than_success_is_an_error(status: int, category: Category) -> None:
    """Temporal tries again; a redirect is not followed."""
    with pytest.raises(ServiceError, match=str(status)) as caught:
        await sent(AlertSettings(webhook_url="http://hook.example/"), status)
    assert caught.value.status == status
    assert status == 302 or caught.value.category is category
