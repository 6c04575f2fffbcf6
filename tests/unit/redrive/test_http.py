"""Calls to services over real sockets."""

import asyncio
import gzip
import socket
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from pydantic import BaseModel, SecretStr
from structlog.testing import LogCapture
from structlog.typing import EventDict

from redrive.categories import Category
from redrive.errors import ServiceError, Terminal
from redrive.http import EXCERPT_LIMIT, REDIRECT_LIMIT, Refusal, ServiceClient, ServiceResponse, new_http_client
from redrive.network import certificates
from redrive.policy import NoJitter, RetryPolicy
from redrive.settings import ServiceSettings
from tests.unit.redrive.conftest import Server, endless, hang, raw, reply, reset
from tests.unit.redrive.test_urls import PATHS, read_by_a_server

SECRET = "Zq-secret-token"
SHORT = timedelta(milliseconds=150)
QUICK = RetryPolicy(
    base=timedelta(milliseconds=1),
    cap=timedelta(milliseconds=5),
    jitter=NoJitter(),
    max_attempts=3,
    timeout=timedelta(seconds=5),
    retry_after_cap=timedelta(milliseconds=100),
)


class Order(BaseModel):
    """What the service answers."""

    id: str
    price: int


class Stage:
    """A client of the server, and what it logged."""

    def __init__(self, http: httpx.AsyncClient, server: Server) -> None:
        self._http = http
        self._sink = LogCapture()
        self.server = server

    def client(self, **changes: Any) -> ServiceClient:
        """A client with a token, changed."""
        log = structlog.wrap_logger(None, processors=[self._sink], wrapper_class=structlog.stdlib.BoundLogger)
        given = {"base_url": self.server.url, "token": SecretStr(SECRET), "log": log} | changes
        return ServiceClient(self._http, **given)

    @property
    def events(self) -> list[EventDict]:
        """What was logged."""
        return self._sink.entries


@pytest.fixture
def stage(http: httpx.AsyncClient, server: Server) -> Stage:
    """A client and a server for one test."""
    return Stage(http, server)


async def failure(stage: Stage, method: str = "GET", path: str = "/x", **options: Any) -> ServiceError:
    """Make a call that fails, and return its error."""
    client = options.pop("client", None) or stage.client()
    with pytest.raises(ServiceError) as caught:
        await client.request(method, path, operation="op", **options)
    return caught.value


async def test_answer_is_parsed_into_its_model(stage: Stage) -> None:
    """A call with `returns` gives the model, one without gives status and body."""
    stage.server.on("/orders/1", reply(200, {"id": "1", "price": 5}))
    stage.server.on("/empty", reply(204))
    order = await stage.client().get("/orders/1", operation="order.read", returns=Order)
    assert order == Order(id="1", price=5)
    response = await stage.client().get("/orders/1", operation="order.read")
    assert (response.status, response.json()) == (200, {"id": "1", "price": 5})
    assert (await stage.client().delete("/empty", operation="order.delete")).json() is None


async def test_call_carries_its_headers_body_and_query(stage: Stage) -> None:
    """Token, request id, idempotency key, user, JSON and query all reach the service."""
    stage.server.on("/orders", reply(201, {}))
    client = stage.client(user_id="user-7", request_id="req-1", key_for=lambda operation: f"run-1:pay:{operation}")
    await client.post("/orders?a=1", operation="create", json=Order(id="ä", price=1), params={"b": 2})
    [request] = stage.server.received
    assert (request.method, request.target) == ("POST", "/orders?a=1&b=2")
    assert request.headers["authorization"] == f"Bearer {SECRET}"
    assert request.headers["x-request-id"] == "req-1"
    assert request.headers["idempotency-key"] == "run-1:pay:create"
    assert request.headers["x-redrive-user"] == "user-7"
    assert request.headers["content-type"] == "application/json"
    assert Order.model_validate_json(request.body) == Order(id="ä", price=1)


async def test_reading_sends_no_key_and_no_user_unless_there_is_one(stage: Stage) -> None:
    """A GET has no idempotency key; without user and token there are no such headers; a request id is always made."""
    stage.server.on("/x", reply(200, {}))
    await stage.client(token=None, key_for=str).get("x", operation="read")
    [request] = stage.server.received
    assert not {"idempotency-key", "authorization", "x-redrive-user", "content-type"} & request.headers.keys()
    assert len(request.headers["x-request-id"]) == 32


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
async def test_writing_takes_a_key_of_its_own(stage: Stage, method: str) -> None:
    """An explicit idempotency key wins over the made one, and the caller's headers over ours."""
    stage.server.on("/x", reply(200, {}))
    call = getattr(stage.client(key_for=str, user_header="x-user", user_id="u"), method)
    await call("/x", operation="write", idempotency_key="mine-é", headers={"X-User": "other"})
    [request] = stage.server.received
    assert request.method == method.upper()
    assert request.headers["idempotency-key"].encode("latin-1").decode() == "mine-é"
    assert request.headers["x-user"] == "other"


async def test_service_is_bound_to_its_address_and_token(stage: Stage) -> None:
    """A configured service is called at its own base URL, path included, with its own token."""
    stage.server.on("/v1/x", reply(200, {}))
    settings = ServiceSettings(base_url=f"{stage.server.url}/v1/", token=SecretStr("own"))
    await stage.client(base_url=None, services={"billing": settings}).service("billing").get("/x", operation="read")
    assert stage.server.received[0].headers["authorization"] == "Bearer own"


@pytest.mark.parametrize(("known", "named"), [({}, "none"), ({"billing": ServiceSettings(base_url="x")}, "billing")])
async def test_unknown_service_is_named(stage: Stage, known: dict[str, ServiceSettings], named: str) -> None:
    """A service that is not configured is an error that says what to set."""
    with pytest.raises(Terminal, match=rf"'mail'.*known: {named}.*REDRIVE_SERVICES") as caught:
        stage.client(services=known).service("mail")
    assert caught.value.category is Category.MISSING_CONFIG


@pytest.mark.parametrize(
    ("status", "category"),
    [
        (400, Category.PROVIDER_4XX),
        (401, Category.PROVIDER_4XX),
        (404, Category.PROVIDER_4XX),
        (408, Category.TIMEOUT),
        (409, Category.CONFLICT),
        (422, Category.PROVIDER_4XX),
        (425, Category.RATE_LIMIT),
        (429, Category.RATE_LIMIT),
        (500, Category.PROVIDER_5XX),
        (503, Category.PROVIDER_5XX),
        (304, Category.PROVIDER_4XX),
    ],
)
async def test_error_status_becomes_a_classified_error(stage: Stage, status: int, category: Category) -> None:
    """The error has status and category, and its message the call and what the service said."""
    stage.server.on("/x", reply(status, None if status == 304 else {"why": "no backlog"}))
    error = await failure(stage)
    assert (error.status, error.category) == (status, category)
    assert str(error).startswith(f"op: GET {stage.server.url}/x answered {status}")
    assert status == 304 or "no backlog" in str(error)


@pytest.mark.parametrize("is_date", [False, True])
async def test_retry_after_is_read_in_both_forms(stage: Stage, is_date: bool) -> None:
    """Seconds and HTTP dates both become the time to wait."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    date, later = (format_datetime(now + timedelta(seconds=s), usegmt=True) for s in (0, 7))
    stage.server.on("/x", reply(429, {}, retry_after=later if is_date else "7", date=date))
    assert (await failure(stage)).retry_after == timedelta(seconds=7)


async def test_excerpt_is_short_and_redacted(stage: Stage) -> None:
    """What a service says in an error is cut to 500 characters and shows no secret."""
    stage.server.on("/x", reply(500, f'{{"password": "Zq1", "token": "Zq2"}}\r\n{"a" * 5000}'.encode()))
    text = str(await failure(stage))
    assert "Zq" not in text
    assert "\n" not in text
    assert len(text) < EXCERPT_LIMIT + 100


async def test_echo_of_our_own_token_is_redacted_before_the_cut(stage: Stage) -> None:
    """A service that answers with the token it was sent shows none of it, also where the excerpt ends within it."""
    stage.server.on("/x", reply(403, ("a" * (EXCERPT_LIMIT - 10) + "opaque-token-of-ours").encode()))
    with pytest.raises(ServiceError) as caught:
        await stage.client(token=SecretStr("opaque-token-of-ours")).get("/x", operation="read")
    assert "opaque" not in str(caught.value)


async def test_error_body_without_end_does_not_hide_the_status(stage: Stage) -> None:
    """An endless error body is cut off, and a compressed one left out: the status is what counts."""
    stage.server.on("/x", endless(b"a" * 1000, status=400), reply(503, gzip.compress(b"x"), content_encoding="gzip"))
    assert (await failure(stage)).status == 400
    assert (await failure(stage)).status == 503


async def test_conflict_is_success_for_create_if_absent(stage: Stage) -> None:
    """A 409 means that the thing is there, where the call says so."""
    stage.server.on("/x", reply(409, {"id": "1", "price": 2}))
    response = await stage.client().put("/x", operation="create", create_if_absent=True)
    assert response.status == 409
    assert await stage.client().put("/x", operation="create", create_if_absent=True, returns=Order) == Order(
        id="1", price=2
    )
    assert (await failure(stage, "PUT")).category is Category.CONFLICT


async def test_expected_status_is_an_answer(stage: Stage) -> None:
    """A status that the call expects is returned, not raised, and is no failure in the log; others are."""
    stage.server.on("/x", reply(404, {"why": "none"}), reply(410))
    response = await stage.client().get("/x", operation="find", expected={404, 422})
    assert (response.status, response.json()) == (404, {"why": "none"})
    assert [event["event"] for event in stage.events] == ["service.called"]
    assert (await failure(stage, expected={404})).status == 410


async def test_refusal_is_read_by_the_caller(stage: Stage) -> None:
    """A reader gets status, headers and body, and decides the error; None leaves the one of the status."""
    stage.server.on("/x", reply(400, {"code": "busy"}, x_wait="5"), reply(400, b"<html>"))

    def read(refusal: Refusal) -> ServiceError | None:
        if refusal.json() is None:
            return None
        return refusal.error(f"busy for {refusal.headers['x-wait']} s", Category.PROVIDER_5XX)

    error = await failure(stage, refused=read)
    assert (error.category, error.status) == (Category.PROVIDER_5XX, 400)
    assert str(error).endswith("answered 400: busy for 5 s")
    assert stage.events[-1]["category"] is Category.PROVIDER_5XX
    assert (await failure(stage, refused=read)).category is Category.PROVIDER_4XX


async def test_token_is_sent_as_the_service_wants_it(stage: Stage) -> None:
    """A client may sign in with a header of the service's own, and its token is redacted as any other."""
    stage.server.on("/x", reply(403, {"key": SECRET}))
    client = stage.client(sign_in=lambda token: {"x-api-key": token})
    error = await failure(stage, client=client)
    assert stage.server.received[0].headers["x-api-key"] == SECRET
    assert "authorization" not in stage.server.received[0].headers
    assert SECRET not in str(error)


async def test_silence_ends_a_call_before_its_deadline(stage: Stage) -> None:
    """With `idle_timeout`, an answer that stops arriving is a timeout long before the whole call's."""
    stage.server.on("/x", hang)
    error = await failure(stage, timeout=timedelta(minutes=5), idle_timeout=SHORT)
    assert error.category is Category.TIMEOUT


@pytest.mark.parametrize(
    ("body", "category", "named"),
    [
        (b'{"id": "1", "price": "Zq"}', Category.VALIDATION, "Order: price: "),
        (b'{"id": "1"}', Category.VALIDATION, "Order: price: Field required"),
        (b"[]", Category.VALIDATION, "Order: body: "),
        (b"<html>Zq</html>", Category.SERIALIZATION, "Order: body: Invalid JSON"),
        (b"", Category.SERIALIZATION, "Order: body: Invalid JSON"),
        (b"[" * 10_000, Category.SERIALIZATION, "Order: body: Invalid JSON"),
    ],
    ids=["type", "missing", "list", "html", "empty", "deep"],
)
async def test_answer_that_does_not_fit_names_the_field(
    stage: Stage, body: bytes, category: Category, named: str
) -> None:
    """A wrong answer is an error that names the field, keeps the status and shows no value, not even as its cause."""
    stage.server.on("/x", reply(200, body))
    error = await failure(stage, returns=Order)
    assert (error.category, error.status) == (category, 200)
    assert named in str(error)
    assert "Zq" not in str(error)
    assert error.__cause__ is None
    assert error.__context__ is None


def test_wrong_json_of_a_plain_answer_is_told() -> None:
    """ApprovalRequest an answer that is not JSON for JSON says so."""
    with pytest.raises(ServiceError, match="not JSON") as caught:
        ServiceResponse(200, b"<html>").json()
    assert caught.value.category is Category.SERIALIZATION


async def test_answer_over_the_limit_is_cut_off(stage: Stage) -> None:
    """A body without end is stopped at the limit, and so is one that is a byte over it."""
    stage.server.on("/x", endless(b"a" * 65536))
    error = await failure(stage)
    assert (error.category, error.status) == (Category.TOO_LARGE, 200)
    stage.server.on("/y", reply(200, b"a" * 101), reply(200, b"a" * 100))
    small = stage.client(response_limit=100)
    assert (await failure(stage, path="/y", client=small)).category is Category.TOO_LARGE
    assert len((await small.get("/y", operation="read")).body) == 100


async def test_compressed_answer_is_refused(stage: Stage) -> None:
    """A body that could unfold past the limit is not read: none was asked for."""
    stage.server.on("/x", reply(200, gzip.compress(b"{}"), content_encoding="gzip"))
    assert (await failure(stage)).category is Category.SERIALIZATION
    assert stage.server.received[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("answer", [hang, endless(b"a", pause=0.01)], ids=["hang", "drip"])
async def test_deadline_covers_the_whole_answer(stage: Stage, answer: Any) -> None:
    """A service that hangs, or drips its body, is given up at the call's own timeout."""
    stage.server.on("/x", answer)
    started = time.monotonic()
    error = await failure(stage, timeout=SHORT)
    assert 0.15 <= time.monotonic() - started < 30
    assert error.category is Category.TIMEOUT
    assert "gave no full answer in 0.15 s" in str(error)


@pytest.mark.parametrize(
    "answer",
    [reset, raw(b"nonsense\r\n\r\n"), raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc"), raw(b"")],
    ids=["reset", "nonsense", "cut body", "closed"],
)
async def test_broken_connection_is_a_network_error(stage: Stage, answer: Any) -> None:
    """A connection that breaks before the answer is whole can be tried again."""
    stage.server.on("/x", answer)
    error = await failure(stage)
    assert (error.category, error.status) == (Category.NETWORK, None)
    assert isinstance(error.__cause__, httpx.TransportError)


async def test_refused_connection_is_a_network_error(stage: Stage) -> None:
    """A service that is not there can be tried again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    error = await failure(stage, client=stage.client(base_url=f"http://127.0.0.1:{port}"))
    assert error.category is Category.NETWORK


async def test_redirect_on_the_same_origin_is_followed(stage: Stage) -> None:
    """A GET follows redirects of its own service, with its token."""
    stage.server.on("/x", reply(302, location="/y?b=2"))
    stage.server.on("/y", reply(200, {"id": "1", "price": 1}))
    assert (await stage.client().get("/x?a=1", operation="read", returns=Order)).id == "1"
    assert stage.server.received[1].target == "/y?b=2"
    assert stage.server.received[1].headers["authorization"] == f"Bearer {SECRET}"


async def test_redirects_end(stage: Stage) -> None:
    """A circle of redirects is given up."""
    stage.server.on("/x", reply(301, location="/x"))
    assert "redirected more than" in str(await failure(stage))
    assert len(stage.server.received) == REDIRECT_LIMIT + 1


@pytest.mark.parametrize("location", ["http://localhost:1/?Zq=1", "//evil.test/", "https://127.0.0.1/", "http://[bad"])
async def test_redirect_elsewhere_is_not_followed(stage: Stage, location: str) -> None:
    """No call leaves the origin that it was meant for."""
    stage.server.on("/x", reply(302, location=location))
    error = await failure(stage)
    assert (error.status, error.category) == (302, Category.PROVIDER_4XX)
    assert "not followed" in str(error)
    assert "Zq" not in str(error)


async def test_redirect_of_a_write_is_not_followed(stage: Stage) -> None:
    """A POST is not turned into another call."""
    stage.server.on("/x", reply(307, location="/y"))
    assert (await failure(stage, "POST")).status == 307
    assert len(stage.server.received) == 1


@pytest.mark.parametrize(
    "path",
    [
        *("http://evil.test/x", "https://127.0.0.1/", "ftp://127.0.0.1/", "//evil.test/x", "../x", "a/%2e%2e/x"),
        *("a\\..\\x", "\x00", "a/%252e%252e/x", "a/..;/x", "a/\uff0e\uff0e/x"),
    ],
)
async def test_path_cannot_leave_the_base_url(stage: Stage, path: str) -> None:
    """A path that names another origin, or climbs out of the base path, is refused before anything is sent."""
    with pytest.raises(Terminal, match="read: ") as caught:
        await stage.client().get(path, operation="read")
    assert caught.value.category is Category.VALIDATION
    assert stage.server.received == []


@given(path=PATHS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_nothing_outside_of_the_base_path_arrives(stage: Stage, path: str) -> None:
    """A real server sees requests below the base path alone, whatever a payload puts into the path."""
    stage.server.otherwise = reply(200, {})
    stage.server.received.clear()
    client = stage.client(base_url=f"{stage.server.url}/v1/acme")
    try:
        await client.get(path.replace("api.example.com", stage.server.url.partition("://")[2]), operation="read")
    except Terminal:
        assert stage.server.received == []
    else:
        [request] = stage.server.received
        assert request.target.startswith("/v1/acme")
        assert all(f"{reading}/".startswith("/v1/acme/") for reading in read_by_a_server(request.target))


@pytest.mark.parametrize("path", ["{url}/admin", "{url}/v1/acme/../../admin", "{url}/v1/acmes"])
async def test_absolute_url_outside_of_the_base_path_is_refused(stage: Stage, path: str) -> None:
    """The token is for a part of a service, and is shown to no other part of it."""
    with pytest.raises(Terminal, match="may call what is below"):
        await stage.client(base_url=f"{stage.server.url}/v1/acme").get(
            path.format(url=stage.server.url), operation="read"
        )
    assert stage.server.received == []


@pytest.mark.parametrize("location", ["/admin", "../../admin", "/v1/acme/%2e%2e/%2e%2e/admin", "//u:p@127.0.0.1/"])
async def test_redirect_out_of_the_base_path_is_not_followed(stage: Stage, location: str) -> None:
    """A service's redirect goes through the same check as a path."""
    stage.server.on("/v1/acme/x", reply(302, location=location))
    error = await failure(stage, client=stage.client(base_url=f"{stage.server.url}/v1/acme"))
    assert (error.status, error.category) == (302, Category.PROVIDER_4XX)
    assert len(stage.server.received) == 1


async def test_private_address_needs_a_base_url_that_is_one(stage: Stage) -> None:
    """A whole URL, or a public name, that leads to a private address is refused when it is connected to."""
    stage.server.on("/x", reply(200, {}))
    disguised = stage.server.url.replace("127.0.0.1", "0x7f.0.0.1")
    for client, path in (
        (stage.client(base_url=None), f"{stage.server.url}/x"),
        (stage.client(base_url=None), f"{disguised}/x"),
        (stage.client(base_url=disguised), "/x"),
    ):
        with pytest.raises(Terminal, match="REDRIVE_PRIVATE_ADDRESSES=true") as caught:
            await client.get(path, operation="read")
        assert caught.value.category is Category.VALIDATION
    assert stage.server.received == []
    service = ServiceSettings(base_url=disguised, private_addresses=True)
    assert (await stage.client(services={"own": service}).service("own").get("/x", operation="read")).status == 200
    # The connection that is open now is no way in for others.
    with pytest.raises(Terminal):
        await stage.client(base_url=disguised).get("/x", operation="read")


@pytest.mark.parametrize("path", ["@evil.test/x", "/x?next=http://evil.test/../y", ":80/x"])
async def test_odd_path_stays_on_the_service(stage: Stage, path: str) -> None:
    """A path that only looks like another host is a path."""
    stage.server.on(f"/{path.lstrip('/').partition('?')[0]}", reply(200, {}))
    assert (await stage.client().get(path, operation="read")).status == 200


async def test_absolute_url_is_allowed_on_the_same_origin_or_without_a_base(stage: Stage) -> None:
    """The token goes to the origin that it is for and, when there is none, nowhere."""
    stage.server.on("/x", reply(200, {}))
    await stage.client().get(f"{stage.server.url}/x", operation="read")
    await stage.client(base_url=None, private_addresses=True).get(f"{stage.server.url}/x", operation="read")
    assert ["authorization" in request.headers for request in stage.server.received] == [True, False]


@pytest.mark.parametrize("path", ["/x", "evil", "file:///etc/passwd", "http://"])
async def test_path_without_a_base_url_is_refused(stage: Stage, path: str) -> None:
    """An unbound client says how to bind it."""
    with pytest.raises(Terminal, match=r"\.service\(name\)"):
        await stage.client(base_url=None).get(path, operation="read")


@pytest.mark.parametrize("base_url", ["localhost:8080", "ftp://x", "", "http://"])
def test_wrong_base_url_is_refused(stage: Stage, base_url: str) -> None:
    """A base URL that cannot work is told when the client is made."""
    with pytest.raises(Terminal, match="REDRIVE_SERVICES") as caught:
        stage.client(base_url=base_url)
    assert caught.value.category is Category.MISSING_CONFIG


@pytest.mark.parametrize("value", ["a\r\nx-admin: 1", "a\nb", "\x00", " a", "", "\ud800"])
async def test_header_cannot_be_broken_out_of(stage: Stage, value: str) -> None:
    """A key with a line break or other bad characters is refused by name, and a bad token without being shown."""
    with pytest.raises(Terminal, match="header idempotency-key"):
        await stage.client(key_for=lambda _: value).post("/x", operation="write")
    with pytest.raises(Terminal, match="header authorization holds the control character") as caught:
        await stage.client(token=SecretStr(f"{SECRET}\n")).get("/x", operation="read")
    assert SECRET not in str(caught.value)
    assert stage.server.received == []


@pytest.mark.parametrize("json", [float("nan"), object(), {"a": {1, object()}}], ids=["nan", "object", "set"])
async def test_body_that_is_not_json_is_refused(stage: Stage, json: Any) -> None:
    """What cannot be sent is told before anything is sent."""
    with pytest.raises(Terminal) as caught:
        await stage.client().post("/x", operation="write", json=json)
    assert caught.value.category is Category.SERIALIZATION


async def test_calls_are_logged_without_secrets(stage: Stage) -> None:
    """A log line says what was called and how it went; no token, query value, body or user of a URL is in it."""
    stage.server.on("/x", reply(200, {"id": "1", "price": 3}), reply(503, b"password=Zq1"))
    base = stage.server.url.replace("http://", "http://user:Zq2@")
    client = stage.client(base_url=base, key_for=str)
    await client.post("/x", operation="pay", json={"a": "Zq3"}, params={"q": "Zq4"}, returns=Order)
    with pytest.raises(ServiceError):
        await client.post("/x", operation="pay", headers={"x-extra": "Zq5"})
    called, failed = stage.events
    assert called.pop("latency_ms") >= 0
    assert called == {
        "event": "service.called",
        "log_level": "info",
        "operation": "pay",
        "method": "POST",
        "url": f"{stage.server.url}/x",
        "idempotency_key": "pay",
        "http_status": 200,
    }
    assert (failed["event"], failed["http_status"], failed["category"]) == ("service.failed", 503, "provider_5xx")
    assert failed["error_type"] == "ServiceError"
    assert "Zq" not in str(stage.events)
    assert "Zq" not in repr(client)


async def test_step_client_calls_once(stage: Stage) -> None:
    """Without a policy of its own a call is made once: Temporal tries again."""
    stage.server.on("/x", reply(503))
    await failure(stage)
    assert len(stage.server.received) == 1


async def test_client_with_a_policy_tries_again(stage: Stage) -> None:
    """With a policy a call is tried again with the same key and request id, and Retry-After is obeyed to its cap."""
    stage.server.on("/x", reply(503), reply(429, {}, retry_after="1"), reply(200, {}))
    client = stage.client(retry=QUICK, key_for=str, request_id="req-1")
    started = time.monotonic()
    assert (await client.post("/x", operation="pay")).status == 200
    assert time.monotonic() - started >= 0.1
    sent = [(request.headers["idempotency-key"], request.headers["x-request-id"]) for request in stage.server.received]
    assert sent == [("pay", "req-1")] * 3
    assert [entry["attempt"] for entry in stage.events if entry["event"].startswith("service.")] == [1, 2, 3]


async def test_timeout_of_a_retried_call_is_the_calls_own(stage: Stage) -> None:
    """Each try has the call's timeout, and its error is that of the call."""
    stage.server.on("/x", hang, hang, reply(200, {}))
    client = stage.client(retry=QUICK)
    # Long enough for the last try to be answered on a busy machine.
    assert (await client.get("/x", operation="read", timeout=timedelta(seconds=1))).status == 200
    stage.server.on("/x", hang)
    once = stage.client(retry=QUICK.model_copy(update={"max_attempts": 1}))
    assert (await failure(stage, client=once, timeout=SHORT)).category is Category.TIMEOUT


@pytest.mark.parametrize(("method", "tries"), [("POST", 1), ("PATCH", 1), ("GET", 3), ("PUT", 3), ("DELETE", 3)])
async def test_call_that_is_not_safe_to_repeat_is_made_once(stage: Stage, method: str, tries: int) -> None:
    """Without a key, only methods that may be repeated by their definition are tried again."""
    stage.server.on("/x", reply(503))
    await failure(stage, method, client=stage.client(retry=QUICK))
    assert len(stage.server.received) == tries


async def test_cookie_of_one_call_is_not_sent_with_the_next(stage: Stage) -> None:
    """The pool is shared by all tenants: it keeps no cookies."""
    stage.server.on("/x", reply(200, {}, set_cookie="session=Zq; path=/"))
    await stage.client().get("/x", operation="read")
    await stage.client().get("/x", operation="read")
    assert "cookie" not in stage.server.received[1].headers


async def test_cancelled_call_frees_its_connection(stage: Stage) -> None:
    """Cancelling goes through, and the pool can be used after."""
    stage.server.on("/x", hang, reply(200, {}))
    task = asyncio.create_task(stage.client().get("/x", operation="read"))
    await stage.server.called.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await stage.client().get("/x", operation="read")).status == 200


async def test_certificates_are_read_once_in_a_process() -> None:
    """A second connection pool trusts whom the first one does, without reading the machine's files again."""
    for _ in range(2):
        async with new_http_client():
            pass
    assert certificates.cache_info().misses == 1
