"""The recording fake of `ctx.http`."""

from datetime import timedelta

import httpx
import pytest
from pydantic import BaseModel

from redrive import Category, ModuleContext, Registry, RunStatus, ServiceError
from redrive.testing import FakeServices, Faults, UnexpectedCall, new_context, run_module


class Number(BaseModel):
    """The smallest document."""

    n: int = 0


registry = Registry()


@registry.module("careless", effect="none")
async def careless(ctx: ModuleContext, given: Number) -> Number:
    """Swallow whatever a call raises."""
    try:
        await ctx.http.get("https://elsewhere.example/x?q=1", operation="look")
    except Exception:
        ctx.log.info("careless.swallowed")
    return given


@registry.module("put")
async def put(ctx: ModuleContext, given: Number) -> Number:
    """Make two calls."""
    store = ctx.http.service("store")
    await store.put(f"/items/{given.n}", operation="put", json=given)
    answer = await store.get("/items", operation="list", params={"page": 2})
    return Number(n=len(answer.json()))


async def test_a_call_without_an_answer_fails_the_test() -> None:
    """Also if the module catches the error; the message says what to add."""
    services = FakeServices()
    with pytest.raises(UnexpectedCall, match=r"no answer for GET /x \(https://elsewhere.example/x\); add"):
        await run_module(careless, {}, services=services)


async def test_answers_are_chosen_by_service_path_and_order() -> None:
    """The first that fits is used, so often as it says."""
    services = FakeServices()
    services.answer("PUT", "/items/*", status=503, headers={"retry-after": "7"}, times=1, service="store")
    services.answer("PUT", "/items/*", service="other")
    services.answer("PUT", "/items/*", status=204)
    services.answer("get", "/items", json=[1, 2, 3])
    run = await run_module(put, Number(n=4), services=services)
    assert run.output == {"n": 3}
    assert [attempt.delay for attempt in run.attempts(put)] == [timedelta(seconds=7)]
    assert services.calls_to("GET", "/items")[0].params == {"page": "2"}
    assert services.assert_one_key("PUT", "/items/4", service="store") == "test-run:put:put"
    with pytest.raises(AssertionError, match="was called 2 times, not 1 times"):
        services.assert_called("PUT", "/items/*", times=1)
    with pytest.raises(AssertionError, match="without one: no key"):
        services.assert_one_key("GET", "/items")


async def test_an_error_reaches_the_module_as_from_a_network() -> None:
    """It is classified by the real client."""
    services = FakeServices()
    services.answer("PUT", "/items/0", error=httpx.ConnectError("refused"))
    with pytest.raises(ServiceError) as failed:
        await put(new_context(put, services), Number())
    assert failed.value.category is Category.NETWORK


async def test_an_answer_may_be_a_text() -> None:
    """A module that reads texts gets them; one that wants JSON says what is wrong."""
    services = FakeServices()
    services.answer("PUT", "/items/0")
    services.answer("GET", "/items", text="<html>", times=1)
    run = await run_module(put, {}, services=services)
    assert (run.parked_at, run.failures["put"].category) == ("put", Category.SERIALIZATION)
    services.answer("GET", "/items", text="[1, 2]")
    await run.replay()
    assert run.output == {"n": 2}
    with pytest.raises(ValueError, match="either json or text"):
        services.answer("GET", "/items", text="a", json=1)


async def test_failures_are_planned_for_steps_that_are_there() -> None:
    """A name that is no step's would let a test pass in which nothing fails; a module is its name."""
    faults, services = Faults(), FakeServices()
    services.answer("PUT", "/items/0")
    services.answer("GET", "/items", json=[])
    faults.fail("putt")
    with pytest.raises(ValueError, match="the run has no step 'putt', only put"):
        await run_module(put, {}, services=services, faults=faults)
    assert services.calls == []
    faults = Faults()
    faults.fail(put, times=2)
    run = await run_module(put, {}, services=services, faults=faults)
    assert (len(run.attempts(put)), faults.left) == (2, {})


async def test_planned_failures_that_did_not_happen_are_told() -> None:
    """`left` counts them; more failures than the policy allows park the run."""
    faults = Faults()
    services = FakeServices()
    services.answer("*", "/never")
    faults.fail("put", times=9)
    run = await run_module(put, {}, services=services, faults=faults)
    assert (run.status, faults.left) == (RunStatus.DLQ_PENDING, {"put": 5})
    assert len(run.attempts("put")) == 4
    with pytest.raises(LookupError, match="has no output; the run is DLQ_PENDING"):
        run.output_of(put)
    with pytest.raises(TypeError, match="unexpected option 'service'"):
        await run_module(put, {}, service=services)  # type: ignore[call-arg]
