"""The corpus of hostile documents at the console: a stranger's body is not read, and no body makes a 5xx."""

import collections
import gc
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from redrive import Redrive
from redrive.access import Role
from redrive.console.request_limits import FOR_STRANGERS, FORM_LIMIT
from redrive.contracts import MIB
from redrive.documents import PATHS_NAMED
from tests.conftest import eventually
from tests.hostile.documents import THINNED, Document, around, corpus
from tests.integration.console.conftest import MakeToken, client_of
from tests.integration.dead_letters.lab import Case, stuck

JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
DLQ = "/api/v1/workflow-dlq"
WITH_BODY = {"POST", "PUT", "PATCH", "DELETE"}
WHY = {"reason": "why"}


@pytest.fixture(autouse=True)
def frozen() -> None:
    """Leave what is loaded to itself, as workers do when they are ready: the collector would look through all of it."""
    gc.collect()
    gc.freeze()


class Body:
    """A body that tells whether anybody asked for it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.was_read = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Give it in one piece."""
        self.was_read = True
        yield self.data


def routes_with_bodies(app: FastAPI) -> list[tuple[str, str]]:
    """Return every route that may have a body, as method and path."""
    return [
        (method, context.path.replace("{", "").replace("}", ""))
        for context in iter_route_contexts(app.routes)
        for method in sorted(context.methods or ())
        if method in WITH_BODY and context.path
    ]


@pytest.mark.parametrize("kind", [JSON, FORM, {"Content-Type": "application/json", "Accept": "text/html"}])
async def test_a_strangers_body_is_not_read(app: FastAPI, nobody: httpx.AsyncClient, kind: dict[str, str]) -> None:
    """Every route but those by which one signs in refuses a stranger before it asks for the body."""
    routes = [route for route in routes_with_bodies(app) if route[1] not in FOR_STRANGERS]
    assert len(routes) > 25
    for method, path in [*routes, ("POST", "/api/v1/no-such-thing"), ("DELETE", "/nowhere")]:
        body = Body(b'{"' + b"k" * 100_000 + b'":[' + b'"",' * 100_000 + b'""]}')
        answer = await nobody.request(method, path, content=body, headers=kind)
        to_sign_in = answer.status_code == 303 and answer.headers["location"].startswith("/sign-in")
        assert answer.status_code in {401, 403} or to_sign_in, (method, path, answer.text[:200])
        assert not body.was_read, (method, path)


async def test_who_signs_in_sends_little(nobody: httpx.AsyncClient) -> None:
    """The routes for strangers have a limit of their own, which the refusal names."""
    for path in sorted(FOR_STRANGERS):
        answer = await nobody.post(path, content=b"token=" + b"x" * FORM_LIMIT, headers=FORM)
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
        assert f"the limit is {FORM_LIMIT}" in answer.json()["detail"]
    short = await nobody.post("/sign-in", content=b"token=x", headers=FORM)
    assert short.status_code == 401


async def test_who_asks_is_asked_for_once(app: FastAPI, make_token: MakeToken) -> None:
    """A request with a body counts once for the rate limit, though it is let in before its body is read."""
    counted: list[str] = []
    limiter = app.state.app_state.limiter
    check = limiter.check

    async def counting(who: str) -> None:
        counted.append(who)
        await check(who)

    limiter.check = counting
    try:
        async with client_of(app, await make_token(Role.VIEWER)) as viewer:
            await viewer.post("/api/v1/runs", json={"pipeline": "three"})
    finally:
        limiter.check = check
    assert len(counted) == 1


async def test_no_document_makes_a_5xx(admin: httpx.AsyncClient, case: Case) -> None:
    """Started, planned, given as an edit, as an output and to many: each document is taken or refused with a problem,
    and the run that was aimed at can still be replayed."""
    await case.park("second")
    letter = f"{DLQ}/{case.letter('second').workflow_id}"
    met: collections.Counter[int] = collections.Counter()
    for number, document in enumerate(corpus(8 * 1024)):
        # Every document by some of the ways, every way with some of each family.
        ways = enumerate(_requests(letter, document))
        requests = [request for way, request in ways if (number + way) % THINNED == 0]
        if number % 8 == 0:
            # A run that carries it, and parks with it.
            requests.append(("/api/v1/runs", _start(case, document)))
        for path, body in requests:
            answer = await admin.post(path, content=body, headers=JSON)
            met[answer.status_code] += 1
            assert answer.status_code < 500, (path, document.name, answer.text[:300])
            if answer.status_code >= 400:
                assert answer.json()["detail"], (path, document.name)
                assert len(answer.content) < 8192, (path, document.name)
    assert sum(met.values()) > 1500 // THINNED
    assert met[201] > 0
    assert met[400] > 0
    assert met[422] > 0
    assert not await stuck(case.queue)
    await case.works_still()


def _start(case: Case, document: Document) -> bytes:
    return around("payload", around("more", document.data, case=case.name), pipeline="three")


def _requests(letter: str, document: Document) -> list[tuple[str, bytes]]:
    data = document.data
    return [
        ("/api/v1/runs", data),
        ("/api/v1/runs", around("payload", data, pipeline="three")),
        (f"{letter}/plan", around("input_patch", data)),
        # `n` has to be a number: the edit is checked all the way to the run, and refused there.
        (f"{letter}/replay", around("input_patch", around("n", around("more", data)), **WHY)),
        (f"{letter}/resolve", around("output", data, **WHY)),
        ("/api/v1/bulk/plan", around("input_patch", data, verb="replay", selection={"step": "second"})),
    ]


async def test_a_megabyte_of_anything_is_answered(admin: httpx.AsyncClient, lab: Redrive) -> None:
    """The documents that are hostile by their size, at full size: none makes a 5xx, and the console answers others."""
    sized = ("long_names", "many_names", "many_elements", "deep", "trees", "numbers", "drawn")
    for document in corpus(MIB - 1024):
        if document.name.startswith(sized) and len(document.data) > MIB // 8:
            body = around("payload", document.data, pipeline="three")
            answer = await admin.post("/api/v1/runs", content=body, headers=JSON)
            assert answer.status_code < 500, (document.name, answer.text[:300])
    assert (await admin.get("/api/v1/me")).status_code == 200


async def test_a_plan_names_some_of_very_many_fields(app: FastAPI, make_token: MakeToken, case: Case) -> None:
    """A viewer's plan of 20,000 fields below long names is answered with the first hundred, and a count."""
    await case.park("second")
    patch = b"{" + b",".join(b'"%05d":0' % number for number in range(20_000)) + b"}"
    for _ in range(60):
        patch = b'{"' + b"k" * 1000 + b'":' + patch + b"}"
    async with client_of(app, await make_token(Role.VIEWER)) as viewer:
        address = f"{DLQ}/{case.letter('second').workflow_id}/plan"
        answer = await viewer.post(address, content=around("input_patch", patch), headers=JSON)
    assert answer.status_code == 200
    assert len(answer.content) < 64 * 1024
    assert answer.json()["edited"][-1] == f"and {20_000 - PATHS_NAMED} more"


async def test_a_form_with_a_hostile_input_is_answered(admin: httpx.AsyncClient, case: Case) -> None:
    """The page that checks an edited input while it is typed answers with a page of a bounded size."""
    await case.park("second")
    address = f"/dead-letters/{case.letter('second').workflow_id}/plan"
    for document in corpus(16 * 1024):
        form = {"mode": "FROM_STEP", "input": document.data.decode("utf-8", "replace")}
        answer = await admin.post(address, data=form)
        assert answer.status_code < 500, (document.name, answer.text[:300])
        assert len(answer.content) < 2 * MIB, document.name

    async def answers() -> bool:
        return (await admin.get("/api/v1/me")).status_code == 200

    assert await eventually(answers)
