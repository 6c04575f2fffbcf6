"""Outbound HTTP: one call, bounded in time and size, with its idempotency key and classified errors.

Never sends a token anywhere but below the base URL that it was configured for. Never puts headers, bodies' secrets or
query values into a log line or an error.
"""

import asyncio
import functools
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import aclosing, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import timedelta
from http.cookiejar import CookieJar, DefaultCookiePolicy
from json import dumps
from typing import Any, Final, TypedDict, TypeVar, Unpack, overload

import httpx
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import from_json, to_jsonable_python

from redrive.categories import Category
from redrive.classify import category_of, category_of_status, retry_after_of
from redrive.contracts import MIB
from redrive.errors import ServiceError, Terminal
from redrive.field_types import header_problem
from redrive.logs import Log, get_logger
from redrive.network import PRIVATE, GuardedTransport
from redrive.policy import SERVICE_CALL, RetryPolicy
from redrive.redaction.redactor import Redactor
from redrive.retry import with_retry
from redrive.settings import ServiceSettings
from redrive.tracing import mark_failed, note, span, trace_headers
from redrive.urls import Outside, base_url, final_url, names_private, whole_url

M = TypeVar("M", bound=BaseModel)

RESPONSE_LIMIT: Final = MIB
EXCERPT_LIMIT: Final = 500
REFUSAL_LIMIT: Final = 16 * 1024
REDIRECT_LIMIT: Final = 5

_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# Idempotent by definition (RFC 9110, 9.2.2), so they need no key for a retry.
_IDEMPOTENT_METHODS: Final = _SAFE_METHODS | {"PUT", "DELETE"}
# The body of an error is worth a moment, not the rest of the deadline: its status already says what to do.
_EXCERPT_TIMEOUT: Final = 1.0
_EXCERPT_BYTES: Final = 4 * EXCERPT_LIMIT
# The call's own deadline has the better message, so it must fire before the one around the attempt.
_GRACE: Final = timedelta(seconds=1)

_redactor = Redactor()


class CallOptions(TypedDict, total=False):
    """What a call may set besides its method, path, operation and answer."""

    json: Any
    params: Mapping[str, str | int | float | bool | None] | None
    headers: Mapping[str, str] | None
    timeout: timedelta | None
    idle_timeout: timedelta | None
    idempotency_key: str | None
    create_if_absent: bool
    expected: Collection[int]
    refused: "RefusalReader | None"


@dataclass(frozen=True)
class ServiceResponse:
    """A successful answer, read once."""

    status: int
    body: bytes = field(repr=False)

    @property
    def text(self) -> str:
        """Return the body as text."""
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        """Return the body as JSON; None if it is empty."""
        if not self.body:
            return None
        try:
            return from_json(self.body)
        except ValueError as error:
            raise ServiceError(
                f"the answer is not JSON: {error}", category=Category.SERIALIZATION, status=self.status
            ) from error


@dataclass(frozen=True)
class Refusal:
    """An answer with an error status: what a connector reads to tell more than the status does."""

    call: str
    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    def json(self) -> Any:
        """Return the body as JSON; None if it is not, or longer than what is read of it."""
        try:
            return from_json(self.body)
        except ValueError:
            return None

    def error(self, text: str, category: Category | None = None) -> ServiceError:
        """Return the error of this answer, with its status and the time that it asks to wait."""
        return ServiceError(
            f"{self.call} answered {self.status}" + (f": {text}" if text else ""),
            category=category or category_of_status(self.status),
            status=self.status,
            retry_after=retry_after_of(self.headers),
        )


# Returns the error to raise, or None for the one that the status tells.
RefusalReader = Callable[[Refusal], ServiceError | None]


def bearer(token: str) -> dict[str, str]:
    """Sign in with a bearer token."""
    return {"authorization": f"Bearer {token}"}


def new_http_client() -> httpx.AsyncClient:
    """Build the connection pool that all ServiceClients of a process share."""
    return httpx.AsyncClient(
        # Runs of all tenants share the pool: a cookie set for one must not be sent for another.
        cookies=CookieJar(policy=DefaultCookiePolicy(allowed_domains=[])),
        transport=GuardedTransport(
            httpx.Limits(max_connections=200, max_keepalive_connections=50, keepalive_expiry=30)
        ),
        timeout=SERVICE_CALL.timeout.total_seconds(),
    )


@dataclass(frozen=True)
class ServiceClient:
    """Call services over HTTP.

    Without `retry` a call is made once: inside a step Temporal retries. With it, a call that is safe to repeat (an
    idempotent method, or any with an idempotency key) is retried under that policy.
    """

    http: httpx.AsyncClient = field(repr=False)
    _: KW_ONLY
    base_url: str | None = field(default=None, repr=False)
    token: SecretStr | None = None
    sign_in: Callable[[str], Mapping[str, str]] = bearer
    user_id: str | None = None
    user_header: str = "x-redrive-user"
    request_id: str | None = None
    key_for: Callable[[str], str] | None = field(default=None, repr=False)
    retry: RetryPolicy | None = None
    services: Mapping[str, ServiceSettings] = field(default_factory=dict, repr=False)
    private_addresses: bool = False
    response_limit: int = RESPONSE_LIMIT
    log: Log = field(default_factory=lambda: get_logger(__name__), repr=False)

    def __post_init__(self) -> None:
        if self.base_url is None:
            return
        try:
            base_url(self.base_url)
        except Outside as error:
            raise Terminal(
                f"base URL {_redactor.text(self.base_url)!r} {error}; see REDRIVE_SERVICES",
                category=Category.MISSING_CONFIG,
            ) from None

    def service(self, name: str) -> "ServiceClient":
        """Return a client for the configured service of that name."""
        settings = self.services.get(name)
        if settings is None:
            known = ", ".join(sorted(self.services)) or "none"
            raise Terminal(
                f"no service {name!r} is configured (known: {known}); add it to REDRIVE_SERVICES",
                category=Category.MISSING_CONFIG,
            )
        private = self.private_addresses or settings.private_addresses
        return replace(self, base_url=settings.base_url, token=settings.token, private_addresses=private)

    @overload
    async def request(
        self, method: str, path: str, *, operation: str, returns: type[M], **options: Unpack[CallOptions]
    ) -> M: ...
    @overload
    async def request(
        self, method: str, path: str, *, operation: str, returns: None = None, **options: Unpack[CallOptions]
    ) -> ServiceResponse: ...
    async def request(
        self,
        method: str,
        path: str,
        *,
        operation: str,
        returns: type[BaseModel] | None = None,
        **options: Unpack[CallOptions],
    ) -> BaseModel | ServiceResponse:
        """Make a call and return its answer as `returns`, or unparsed.

        `operation` names the call in logs, errors and its idempotency key. `path` is joined to the base URL.
        `create_if_absent` makes a 409 a success: what was to be created exists. `expected` are other statuses that are
        answers, such as a 404; `refused` reads an answer with any other error status. `timeout` bounds the whole call,
        `idle_timeout` the time without a byte of the answer.
        """
        call = self._call(method.upper(), path, operation, returns, options)
        if self.retry is None:
            return await self._attempt(call, self.log)
        return await with_retry(
            operation,
            lambda attempt: self._attempt(call, self.log.bind(attempt=attempt.attempt)),
            policy=_policy_for(call, self.retry),
            key=call.key,
            log=self.log,
        )

    @overload
    async def get(self, path: str, *, operation: str, returns: type[M], **options: Unpack[CallOptions]) -> M: ...
    @overload
    async def get(self, path: str, *, operation: str, **options: Unpack[CallOptions]) -> ServiceResponse: ...
    async def get(self, path: str, **options: Any) -> Any:
        """GET: see `request`."""
        return await self.request("GET", path, **options)

    @overload
    async def post(self, path: str, *, operation: str, returns: type[M], **options: Unpack[CallOptions]) -> M: ...
    @overload
    async def post(self, path: str, *, operation: str, **options: Unpack[CallOptions]) -> ServiceResponse: ...
    async def post(self, path: str, **options: Any) -> Any:
        """POST: see `request`."""
        return await self.request("POST", path, **options)

    @overload
    async def put(self, path: str, *, operation: str, returns: type[M], **options: Unpack[CallOptions]) -> M: ...
    @overload
    async def put(self, path: str, *, operation: str, **options: Unpack[CallOptions]) -> ServiceResponse: ...
    async def put(self, path: str, **options: Any) -> Any:
        """PUT: see `request`."""
        return await self.request("PUT", path, **options)

    @overload
    async def patch(self, path: str, *, operation: str, returns: type[M], **options: Unpack[CallOptions]) -> M: ...
    @overload
    async def patch(self, path: str, *, operation: str, **options: Unpack[CallOptions]) -> ServiceResponse: ...
    async def patch(self, path: str, **options: Any) -> Any:
        """PATCH: see `request`."""
        return await self.request("PATCH", path, **options)

    @overload
    async def delete(self, path: str, *, operation: str, returns: type[M], **options: Unpack[CallOptions]) -> M: ...
    @overload
    async def delete(self, path: str, *, operation: str, **options: Unpack[CallOptions]) -> ServiceResponse: ...
    async def delete(self, path: str, **options: Any) -> Any:
        """DELETE: see `request`."""
        return await self.request("DELETE", path, **options)

    def _call(
        self, method: str, path: str, operation: str, returns: type[BaseModel] | None, options: CallOptions
    ) -> "_Call":
        key = None if method in _SAFE_METHODS else options.get("idempotency_key") or self._key(operation)
        content = _encode(operation, options.get("json"))
        base = base_url(self.base_url) if self.base_url is not None else None
        url = self._url(base, operation, path)
        if params := options.get("params"):
            url = url.copy_merge_params(dict(params))
        return _Call(
            method=method,
            base=base or url.copy_with(raw_path=b"/"),
            url=url,
            operation=operation,
            key=key,
            private=self.private_addresses or (base is not None and names_private(base.host)),
            headers=self._headers(key, has_body=content is not None, extra=options.get("headers") or {}),
            content=content,
            timeout=(timeout := options.get("timeout") or (self.retry or SERVICE_CALL).timeout),
            idle_timeout=min(timeout, options.get("idle_timeout") or timeout),
            expected=frozenset(options.get("expected", ())) | ({409} if options.get("create_if_absent") else set()),
            refused=options.get("refused"),
            returns=returns,
        )

    def _key(self, operation: str) -> str | None:
        return self.key_for(operation) if self.key_for else None

    def _headers(self, key: str | None, *, has_body: bool, extra: Mapping[str, str]) -> httpx.Headers:
        headers = httpx.Headers({"accept": "application/json"})
        # A small compressed body can expand to any size, past the limit on what is read.
        headers["accept-encoding"] = "identity"
        named = {
            "content-type": "application/json" if has_body else None,
            "x-request-id": self.request_id or uuid.uuid4().hex,
            "idempotency-key": key,
            self.user_header: self.user_id,
        }
        # Without a base URL the caller names any host: none of them is the one the token is for.
        signed = self.sign_in(self.token.get_secret_value()) if self.token and self.base_url else {}
        for name, value in [*named.items(), *signed.items(), *extra.items()]:
            if value is not None:
                headers.update({name.encode(): _header_value(name, value)})
        return headers

    def _url(self, base: httpx.URL | None, operation: str, path: str) -> httpx.URL:
        try:
            url = whole_url(path) if base is None else final_url(base, path)
        except Outside as error:
            shown = f"{operation}: path {_redactor.text(path)!r}"
            if base is None:
                raise Terminal(
                    f"{shown} {error}, and there is no base URL: use .service(name), or a whole http(s) URL",
                    category=Category.MISSING_CONFIG,
                ) from None
            raise Terminal(f"{shown} {error}; this client may call what is below {_shown(base)}") from None
        if base is None and not self.private_addresses and names_private(url.host):
            raise Terminal(
                f"{operation}: {_shown(url)} is private: use .service(name), or set REDRIVE_PRIVATE_ADDRESSES=true"
            )
        return url

    async def _attempt(self, call: "_Call", log: Log) -> BaseModel | ServiceResponse:
        log = log.bind(operation=call.operation, method=call.method, url=_shown(call.url), idempotency_key=call.key)
        started = time.monotonic()
        try:
            with span("service.call", "client", operation=call.operation, method=call.method, host=call.url.host):
                response, result = await self._answer(call)
        except ServiceError as error:
            log.warning(
                "service.failed",
                latency_ms=_milliseconds_since(started),
                http_status=error.status,
                category=error.category,
                error_type=type(error.__cause__ or error).__name__,
                error=str(error),
            )
            raise
        log.info("service.called", latency_ms=_milliseconds_since(started), http_status=response.status)
        return result

    async def _answer(self, call: "_Call") -> tuple[ServiceResponse, BaseModel | ServiceResponse]:
        """Make the call and return its answer, raw and parsed."""
        try:
            response = await self._exchange_in_time(call)
            note(http_status=response.status)
            return response, response if call.returns is None else _parse(call, response, call.returns)
        except ServiceError as error:
            mark_failed(category=error.category, http_status=error.status)
            raise

    async def _exchange_in_time(self, call: "_Call") -> ServiceResponse:
        seconds = call.timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                return await self._exchange(call)
        except TimeoutError as error:
            raise ServiceError(f"{call} gave no full answer in {seconds:g} s", category=Category.TIMEOUT) from error
        except httpx.ReadTimeout as error:
            silence = call.idle_timeout.total_seconds()
            raise ServiceError(f"{call} sent nothing for {silence:g} s", category=Category.TIMEOUT) from error
        except httpx.HTTPError as error:
            what = f"{type(error).__name__}: {_redactor.text(str(error))}".removesuffix(": ")
            raise ServiceError(f"{call} failed: {what}", category=category_of(error)) from error

    async def _exchange(self, call: "_Call") -> ServiceResponse:
        url, headers = call.url, call.headers.copy()
        headers.update(trace_headers())
        for _ in range(REDIRECT_LIMIT + 1):
            request = self.http.build_request(
                call.method,
                url,
                headers=headers,
                content=call.content,
                timeout=httpx.Timeout(call.timeout.total_seconds(), read=call.idle_timeout.total_seconds()),
                extensions={PRIVATE: call.private},
            )
            async with aclosing(await self.http.send(request, stream=True, follow_redirects=False)) as response:
                if not response.has_redirect_location:
                    return await self._receive(call, response)
                url = _redirect_target(call, response)
        raise ServiceError(f"{call} was redirected more than {REDIRECT_LIMIT} times", category=Category.PROVIDER_4XX)

    async def _receive(self, call: "_Call", response: httpx.Response) -> ServiceResponse:
        status = response.status_code
        if response.is_success or status in call.expected:
            return ServiceResponse(status, await self._read(call, response))
        refusal = Refusal(str(call), status, response.headers, await _beginning(response))
        raise (call.refused(refusal) if call.refused else None) or refusal.error(self.excerpt(refusal.body))

    def excerpt(self, body: bytes) -> str:
        """Return the beginning of what a service said, on one line and without secrets; its own token is one."""
        text = " ".join(body[:_EXCERPT_BYTES].decode(errors="replace").split())
        # A service may echo what it was sent. Before the cut: half a token would not be recognised.
        own = _redactor_knowing(self.token.get_secret_value()) if self.token else _redactor
        return own.text(text)[:EXCERPT_LIMIT]

    async def _read(self, call: "_Call", response: httpx.Response) -> bytes:
        status = response.status_code
        if _is_encoded(response):
            problem = f"{call} answered with a compressed body, which was not asked for"
            raise ServiceError(problem, category=Category.SERIALIZATION, status=status)
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > self.response_limit:
                problem = f"{call} answered with more than {self.response_limit} bytes"
                raise ServiceError(problem, category=Category.TOO_LARGE, status=status)
        return bytes(body)


@dataclass(frozen=True)
class _Call:
    """One call, ready to be made any number of times."""

    method: str
    base: httpx.URL
    url: httpx.URL
    operation: str
    key: str | None
    private: bool
    headers: httpx.Headers = field(repr=False)
    content: bytes | None = field(repr=False)
    timeout: timedelta
    idle_timeout: timedelta
    expected: frozenset[int]
    refused: RefusalReader | None
    returns: type[BaseModel] | None

    def __str__(self) -> str:
        return f"{self.operation}: {self.method} {_shown(self.url)}"

    @property
    def is_repeatable(self) -> bool:
        return self.method in _IDEMPOTENT_METHODS or self.key is not None


@functools.lru_cache(maxsize=64)
def _redactor_knowing(token: str) -> Redactor:
    """Return a redactor that knows a service's token. Building one takes milliseconds."""
    return Redactor(own=[token])


def _policy_for(call: _Call, policy: RetryPolicy) -> RetryPolicy:
    changes: dict[str, Any] = {"timeout": call.timeout + _GRACE}
    if not call.is_repeatable:
        changes |= {"max_attempts": 1, "per_category": {}}
    return policy.model_copy(update=changes)


def _shown(url: httpx.URL) -> str:
    """Return the URL without user, password, query and fragment."""
    path = url.raw_path.partition(b"?")[0].decode("ascii", errors="replace")
    return _redactor.text(f"{url.scheme}://{url.netloc.decode('ascii', errors='replace')}{path}")


def _header_value(name: str, value: str) -> bytes:
    # The value itself may be a token, so only an idempotency key is shown.
    shown = f" {value!r}" if name == "idempotency-key" else ""
    problem = header_problem(value)
    if problem:
        raise Terminal(f"header {name}{shown} {problem}")
    return value.encode()


def _encode(operation: str, value: Any) -> bytes | None:
    if value is None:
        return None
    try:
        return dumps(to_jsonable_python(value), allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise Terminal(f"{operation}: the body is not JSON: {error}", category=Category.SERIALIZATION) from error


def _parse(call: _Call, response: ServiceResponse, returns: type[M]) -> M:
    try:
        return returns.model_validate_json(response.body)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)[0]
    category = Category.SERIALIZATION if details["type"] == "json_invalid" else Category.VALIDATION
    if response.status == httpx.codes.CONFLICT:
        category = Category.CONFLICT
    where = ".".join(str(part) for part in details["loc"]) or "body"
    what = f"{call} answered {response.status} with what does not fit {returns.__name__}"
    # Raised outside the except block: the text of pydantic's own error holds the body.
    raise ServiceError(_redactor.text(f"{what}: {where}: {details['msg']}"), category=category, status=response.status)


def _redirect_target(call: _Call, response: httpx.Response) -> httpx.URL:
    try:
        target = final_url(call.base, str(response.url.join(response.headers["location"])))
        why = f"of a {call.method}"
    except (Outside, httpx.InvalidURL) as error:
        target, why = None, f"that {error}" if isinstance(error, Outside) else "to an invalid URL"
    if target is None or call.method not in {"GET", "HEAD"}:
        problem = f"{call} answered {response.status_code}: a redirect {why}, which is not followed"
        raise ServiceError(problem, category=Category.PROVIDER_4XX, status=response.status_code)
    return target


async def _beginning(response: httpx.Response) -> bytes:
    """Return the beginning of an error's body: nothing of a compressed one, and what came in a moment of a slow one."""
    body = bytearray()
    if _is_encoded(response):
        return b""
    with suppress(TimeoutError, httpx.HTTPError):
        async with asyncio.timeout(_EXCERPT_TIMEOUT):
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) >= REFUSAL_LIMIT:
                    break
    return bytes(body[:REFUSAL_LIMIT])


def _is_encoded(response: httpx.Response) -> bool:
    return response.headers.get("content-encoding", "identity").strip().lower() not in {"", "identity"}


def _milliseconds_since(started: float) -> float:
    return round((time.monotonic() - started) * 1000, 1)
