"""Bad input: a 4xx that names the place, as problem+json. Never a 500, never a stack."""

from collections.abc import AsyncIterator

import httpx
import pytest

RUNS = "/api/v1/runs"
JSON = {"Content-Type": "application/json"}
DEEP = '{"pipeline": "three", "payload": {"a": ' + "[" * 5000 + "]" * 5000 + "}}"

BODIES: dict[str, tuple[str | bytes, int, str]] = {
    "not JSON": ("{", 400, "body"),
    "not text": (b"\xff\xfe", 400, "body"),
    "NaN": ('{"pipeline": "three", "payload": {"n": NaN}}', 400, "body"),
    "a NUL": ('{"pipeline": "three", "payload": {"n": "a\\u0000b"}}', 400, "body.payload.n"),
    "half a character": ('{"pipeline": "three", "payload": {"n": "\\ud800"}}', 400, "body"),
    "too deep": (DEEP, 400, "body"),
    "an unknown field": ('{"pipeline": "three", "colour": "red"}', 422, "body.colour"),
    "a missing field": ("{}", 422, "body.pipeline"),
    "a wrong type": ('{"pipeline": 5}', 422, "body.pipeline"),
    "a bad name": ('{"pipeline": "No Such!"}', 422, "body.pipeline"),
    "a list": ("[]", 422, "body"),
    "a number": ("5", 422, "body"),
    "null": ("null", 422, "body"),
    "nothing": ("", 422, "body"),
    "a line break in a header": ('{"pipeline": "three", "correlation_id": "a\\nb"}', 422, "body.correlation_id"),
    "an outer space in a header": ('{"pipeline": "three", "user_id": " ada"}', 422, "body.user_id"),
}


@pytest.mark.parametrize("what", BODIES)
async def test_a_bad_body_is_named_by_its_place(admin: httpx.AsyncClient, what: str) -> None:
    """The answer says where in the body it is wrong, and what to do."""
    body, status, place = BODIES[what]
    answer = await admin.post(RUNS, content=body, headers=JSON)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["places"][0]["place"].startswith(place)
    assert problem["code"] in {"malformed_json", "invalid_request"}
    assert problem["action"]


async def test_a_body_that_is_too_large(admin: httpx.AsyncClient) -> None:
    """More than the limit gives 413, whether it says so before or only turns out so."""
    large = b'{"pipeline": "three", "payload": {"n": "' + b"x" * 1_200_000 + b'"}}'
    assert (await admin.post(RUNS, content=large, headers=JSON)).status_code == 413

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(large), 100_000):
            yield large[start : start + 100_000]

    answer = await admin.post(RUNS, content=pieces(), headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/xml", ""])
async def test_what_is_not_json_is_refused(admin: httpx.AsyncClient, kind: str) -> None:
    """Another content type, or none, gives 415 and names the one that is read."""
    answer = await admin.post(RUNS, content=b'{"pipeline": "three"}', headers={"Content-Type": kind})
    assert answer.status_code == 415
    assert "application/json" in answer.json()["action"]


async def test_wrong_methods_and_addresses(admin: httpx.AsyncClient) -> None:
    """405 names the methods there are; 404 is a problem, too."""
    wrong = await admin.delete(RUNS)
    assert (wrong.status_code, wrong.json()["code"]) == (405, "method_not_allowed")
    assert "GET" in wrong.headers["Allow"]
    missing = await admin.get("/api/v1/nothing")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("limit=0", "query.limit"),
        ("limit=many", "query.limit"),
        ("colour=red", "query.colour"),
        ("status=broken", "query.status"),
        ("since=yesterday", "query.since"),
        ("tenant=No!", "query.tenant"),
    ],
)
async def test_a_bad_query_is_named(admin: httpx.AsyncClient, query: str, place: str) -> None:
    """A parameter that is unknown or does not fit gives 422 and its name."""
    answer = await admin.get(f"/api/v1/workflow-dlq?{query}")
    assert answer.status_code == 422
    assert place in {each["place"] for each in answer.json()["places"]}


@pytest.mark.parametrize("cursor", ["x", "%00", "eyJhIjoxfQ", "é", "A" * 5000])
@pytest.mark.parametrize("path", ["workflow-dlq", "runs", "audit"])
async def test_a_made_up_cursor_is_refused(admin: httpx.AsyncClient, path: str, cursor: str) -> None:
    """A cursor that no list gave gives 400 with what to do."""
    answer = await admin.get(f"/api/v1/{path}", params={"cursor": cursor})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_input")


@pytest.mark.parametrize("name", ["%00", "%ED%A0%80", "..%2F..", "a%0Ab", "%27%3B--", "x" * 3000])
async def test_odd_ids_are_just_not_there(admin: httpx.AsyncClient, name: str) -> None:
    """Whatever stands where an id belongs: no such run, no such letter."""
    for family in ("runs", "workflow-dlq"):
        assert (await admin.get(f"/api/v1/{family}/{name}")).status_code == 404
