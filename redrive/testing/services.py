"""A recording fake of `ctx.http`: the real client, with its keys, limits and errors, on a transport of its own."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

import httpx
from pydantic_core import from_json, to_json

from redrive.http import ServiceClient
from redrive.settings import ServiceSettings

_DOMAIN: Final = ".service.test"


class UnexpectedCall(AssertionError):
    """A module made a call for which the test has no answer. It fails the test, whatever the module does with it."""


@dataclass(frozen=True)
class Call:
    """One call that a module made."""

    method: str
    path: str
    url: str
    service: str | None = None
    """The name in `ctx.http.service(name)`; None for a call by a whole URL."""
    key: str | None = None
    """The idempotency key that was sent."""
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)

    @property
    def json(self) -> Any:
        """The body that was sent."""
        return from_json(self.body) if self.body else None

    def __str__(self) -> str:
        return f"{self.method} {self.path}" + (f" of {self.service!r}" if self.service else f" ({self.url})")


@dataclass
class _Answer:
    method: str
    path: str
    service: str | None
    make: Callable[[Call], httpx.Response]
    left: int | None

    def fits(self, call: Call) -> bool:
        return self.left != 0 and _matches(call, self.method, self.path, self.service)


class FakeServices(httpx.AsyncBaseTransport):
    """Answers the calls that modules make through `ctx.http`, and records them. Any service name is known."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.unexpected: list[Call] = []
        self._answers: list[_Answer] = []

    def answer(
        self,
        method: str,
        path: str,
        *,
        service: str | None = None,
        json: Any = None,
        text: str | None = None,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        error: Exception | None = None,
        times: int | None = None,
    ) -> None:
        """Answer calls of a method and a path (`"/charges/*"`, or a whole URL), of one service or of any.

        The first answer that fits is used; one with `times` only so often. So two failures and a success are
        `answer(…, status=503, times=2)` and then `answer(…, json=…)`. `json` is a value, or a function of the call;
        `text` is an answer that is not JSON. `error` is raised in place of an answer, such as
        `httpx.ConnectError("refused")`.
        """
        if json is not None and text is not None:
            raise ValueError("an answer is either json or text")
        if times is not None and times < 1:
            raise ValueError(f"times={times}: an answer is given at least once; leave it out for every time")

        def make(call: Call) -> httpx.Response:
            if error is not None:
                raise error
            value = json(call) if callable(json) else json
            content = (text or "").encode() if value is None else to_json(value)
            return httpx.Response(status, headers=headers, stream=httpx.ByteStream(content))

        self._answers.append(_Answer(method.upper(), path, service, make, times))

    def calls_to(self, method: str, path: str, *, service: str | None = None) -> list[Call]:
        """Return the calls of a method and a path."""
        return [call for call in self.calls if _matches(call, method.upper(), path, service)]

    def effects(self, method: str, path: str, *, service: str | None = None) -> int:
        """Return how often a service that knows keys did it: once for each key, and for each call without one."""
        keys = [call.key for call in self.calls_to(method, path, service=service)]
        return len({key for key in keys if key is not None}) + keys.count(None)

    def assert_called(self, method: str, path: str, *, times: int | None = None, service: str | None = None) -> None:
        """Assert that a call was made, or made so often."""
        found = len(self.calls_to(method, path, service=service))
        if found == times or (times is None and found):
            return
        wanted = "at least once" if times is None else f"{times} times"
        made = "\n".join(f"  {call}" for call in self.calls) or "  none"
        raise AssertionError(f"{method.upper()} {path} was called {found} times, not {wanted}. All calls:\n{made}")

    def assert_one_key(self, method: str, path: str, *, service: str | None = None) -> str:
        """Assert that all calls of a method and a path had one and the same key, and return it."""
        self.assert_called(method, path, service=service)
        keys = {call.key for call in self.calls_to(method, path, service=service)}
        if len(keys) == 1 and (key := keys.pop()) is not None:
            return key
        shown = ", ".join(sorted(key or "no key" for key in keys)) or "no key"
        raise AssertionError(f"{method.upper()} {path} was called with different keys, or without one: {shown}")

    def assert_expected(self) -> None:
        """Assert that the test has answered every call."""
        if self.unexpected:
            calls = ", ".join(str(call) for call in self.unexpected)
            first = self.unexpected[0]
            raise UnexpectedCall(
                f"the test has no answer for {calls}; add services.answer({first.method!r}, {first.path!r}, json=…)"
            )

    def client(
        self,
        *,
        key_for: Callable[[str], str] | None = None,
        user_id: str | None = None,
        request_id: str | None = None,
    ) -> ServiceClient:
        """Return a client whose calls are answered here."""
        return ServiceClient(
            self.http_client(),
            services=self.settings,
            private_addresses=True,
            key_for=key_for,
            user_id=user_id,
            request_id=request_id,
        )

    def http_client(self) -> httpx.AsyncClient:
        """Return the HTTP client of this transport."""
        return httpx.AsyncClient(transport=self)

    @property
    def settings(self) -> Mapping[str, ServiceSettings]:
        """Settings that have a service of any name."""
        return _AnyService()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer a call."""
        call = _call(request, await request.aread())
        self.calls.append(call)
        answer = next((each for each in self._answers if each.fits(call)), None)
        if answer is None:
            self.unexpected.append(call)
            self.assert_expected()
            raise AssertionError
        if answer.left is not None:
            answer.left -= 1
        response = answer.make(call)
        response.request = request
        return response


class _AnyService(Mapping[str, ServiceSettings]):
    def __getitem__(self, name: str) -> ServiceSettings:
        return ServiceSettings(base_url=f"https://{name}{_DOMAIN}")

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _call(request: httpx.Request, body: bytes) -> Call:
    host = request.url.host
    return Call(
        method=request.method,
        path=request.url.path,
        url=str(request.url.copy_with(query=None)),
        service=host.removesuffix(_DOMAIN) if host.endswith(_DOMAIN) else None,
        key=request.headers.get("idempotency-key"),
        params=dict(request.url.params),
        headers=dict(request.headers),
        body=body,
    )


def _matches(call: Call, method: str, path: str, service: str | None) -> bool:
    place = call.url if "://" in path else call.path
    return call.method == method and fnmatchcase(place, path) and service in {None, call.service}
