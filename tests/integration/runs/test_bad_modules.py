"""Modules and payloads that misbehave: each ends in a sentence, and the worker goes on."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict
from temporalio import activity
from temporalio.worker import Worker

from redrive import Category, InvalidInput, ModuleContext, Pipeline, Registry, RunStatus, Transient
from redrive.contracts import PAYLOAD_LIMIT, Activity, FailedCycle, RunInput
from redrive.dead_letters import ExhaustedReport
from redrive.documents import parse_payload
from redrive.errors import TooLarge
from redrive.processes.temporal import workflow_runner
from redrive.worker import WORKFLOWS
from tests.conftest import Running, WorkerFactory
from tests.integration.runs.samples import Number, add_good_pipeline, milliseconds, quick, run_until_settled, settled


class Anything(BaseModel):
    """A model that takes and returns anything."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    value: Any = None


class Unshowable(Exception):
    """An error whose own text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


Body = Callable[[], Awaitable[Any]]


def raises(error: BaseException) -> Body:
    """Return a module's body that raises the error."""

    async def body() -> Any:
        raise error

    return body


def returns(value: Any) -> Body:
    """Return a module's body that returns the value."""

    async def body() -> Any:
        return value

    return body


async def calls_sys_exit() -> Any:
    """Try to end the process."""
    sys.exit(3)


async def recurses() -> Any:
    """Run out of stack."""

    def down() -> None:
        down()

    down()


async def cancels_itself() -> Any:
    """Cancel its own task, as a library might."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def blocks_then_waits() -> Any:
    """Block the loop past the timeout, then give it back."""
    time.sleep(0.4)  # noqa: ASYNC251 - this is what a bad module does
    await asyncio.sleep(30)


def deep(levels: int) -> Any:
    """Return a list nested so deep."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def serialization(sentence: str) -> tuple[Category, str]:
    """A result that cannot be carried."""
    return Category.SERIALIZATION, f" returned{sentence}"


BAD_MODULES: dict[str, tuple[Body, Category, str]] = {
    "returns the wrong type": (returns(Number()), *serialization(" Number, not Anything")),
    "returns nothing": (returns(None), *serialization(" NoneType, not Anything")),
    "returns NaN": (returns(Anything(value=[float("nan")])), *serialization(".value[0]: nan is not a JSON number")),
    "returns infinity": (returns(Anything(value=float("inf"))), *serialization(".value: inf is not a JSON number")),
    "returns U+0000": (returns(Anything(value="a\0")), *serialization(".value: the character U+0000")),
    "returns a lone surrogate": (returns(Anything(value="\ud800")), *serialization("")),
    "returns a socket": (returns(Anything(value=object())), *serialization(" what is not JSON")),
    "returns 10,000 levels": (returns(Anything(value=deep(10_000))), *serialization("")),
    "raises BaseException": (raises(BaseException("odd")), Category.UNKNOWN, "BaseException: odd"),
    "raises KeyboardInterrupt": (raises(KeyboardInterrupt()), Category.UNKNOWN, "KeyboardInterrupt"),
    "raises GeneratorExit": (raises(GeneratorExit()), Category.UNKNOWN, "GeneratorExit"),
    "raises CancelledError": (raises(asyncio.CancelledError()), Category.UNKNOWN, "CancelledError"),
    "raises StopAsyncIteration": (raises(StopAsyncIteration()), Category.UNKNOWN, "StopAsyncIteration"),
    "raises without a text": (raises(ValueError()), Category.UNKNOWN, "ValueError"),
    "raises what has no text": (raises(Unshowable()), Category.UNKNOWN, "its text cannot be shown: RuntimeError"),
    "raises a lone surrogate": (raises(ValueError("a \ud800 b")), Category.UNKNOWN, "a \\ud800 b"),
    "raises U+0000": (raises(ValueError("a \0 b")), Category.UNKNOWN, "a \\0 b"),
    "raises 10 MB": (raises(ValueError("x" * 10_000_000)), Category.UNKNOWN, "xxxx"),
    "raises a group": (
        raises(ExceptionGroup("two", [ConnectionError("a"), ValueError("b")])),
        Category.UNKNOWN,
        "two (2 sub-exceptions)",
    ),
    "calls sys.exit": (calls_sys_exit, Category.UNKNOWN, "SystemExit: 3"),
    "runs out of stack": (recurses, Category.UNKNOWN, "maximum recursion depth exceeded"),
    "cancels itself": (cancels_itself, Category.UNKNOWN, "CancelledError"),
    "blocks, then waits": (blocks_then_waits, Category.TIMEOUT, "took longer than its deadline of 0.3 s"),
}


async def test_a_bad_module_fails_its_step_with_a_sentence(worker: WorkerFactory, registry: Registry) -> None:
    """The step fails once with the category and text that fit, and the worker still does good runs."""
    calls: Counter[str] = Counter()

    def add(name: str, body: Body, category: Category) -> None:
        timeout = 0.3 if category is Category.TIMEOUT else 30

        @registry.module(name, policy=quick(max_attempts=1, timeout=timeout))
        async def bad(ctx: ModuleContext, given: Number) -> Anything:
            calls[name] += 1
            returned: Anything = await body()
            return returned

        Pipeline(name, bad, registry=registry)

    names = {f"bad-{number}": case for number, case in enumerate(BAD_MODULES)}
    for name, case in names.items():
        add(name, *BAD_MODULES[case][:2])
    add_good_pipeline(registry)
    async with worker() as running:
        for name, case in names.items():
            _body, category, sentence = BAD_MODULES[case]
            view = await run_until_settled(running.redrive, name)
            failure = view.steps[0].failure
            assert view.status is RunStatus.DLQ_PENDING, case
            assert failure is not None, case
            assert (failure.category, sentence in failure.message) == (category, True), (case, failure.message[:200])
            assert len(failure.message) <= 8 * 1024, case
            good = await run_until_settled(running.redrive, "good")
            assert good.status is RunStatus.SUCCESS, case
    assert calls == dict.fromkeys(names, 1)


async def test_a_module_that_blocks_past_its_timeout_and_returns_has_worked(
    worker: WorkerFactory, registry: Registry
) -> None:
    """Nothing can interrupt a blocked loop: what it returns late counts, for its effects have happened."""

    @registry.module("blocking", policy=quick(max_attempts=2, timeout=0.3))
    async def blocking(ctx: ModuleContext, given: Number) -> Number:
        time.sleep(1)  # noqa: ASYNC251 - this is what a bad module does
        return Number(n=7)

    Pipeline("p", blocking, registry=registry)
    add_good_pipeline(registry)
    async with worker() as running:
        view = await run_until_settled(running.redrive, "p")
        good = await run_until_settled(running.redrive, "good")
    assert (view.status, view.steps[0].attempt) == (RunStatus.SUCCESS, 1)
    assert good.status is RunStatus.SUCCESS


BAD_PAYLOADS: tuple[tuple[Any, type[Exception], str], ...] = (
    ({"n": "x"}, InvalidInput, "payload does not fit 'good': n: "),
    ({"n": 1, "big": "x" * PAYLOAD_LIMIT}, TooLarge, "the limit is"),
    ({"a": [1, {"b": float("nan")}]}, InvalidInput, r"payload.a\[1\].b: nan is not a JSON number"),
    ({"a": "\0"}, InvalidInput, r"payload.a: the character U\+0000 cannot be stored"),
    ({"a\0": 1}, InvalidInput, r"payload: the character U\+0000 cannot be stored"),
    ({"a": "\udfff"}, InvalidInput, "payload.a: lone surrogate"),
    ({"a": deep(10_000)}, InvalidInput, "nested deeper than 100 levels"),
    ({"a": object()}, InvalidInput, "payload.a: object is not a JSON type"),
    ({1: 1}, InvalidInput, "payload: key 1 is not text"),
    ([1], InvalidInput, "payload: a JSON object is needed, not list"),
    ("text", InvalidInput, "payload: a JSON object is needed, not str"),
)


async def test_a_bad_payload_is_refused_at_the_start(worker: WorkerFactory, registry: Registry) -> None:
    """The refusal names the field, and the worker still does a good run."""
    add_good_pipeline(registry)
    async with worker() as running:
        for payload, error, sentence in BAD_PAYLOADS:
            with pytest.raises(error, match=sentence):
                await running.redrive.start("good", payload)
        good = await run_until_settled(running.redrive, "good")
    assert good.status is RunStatus.SUCCESS


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "payload: not valid JSON: EOF"),
        ('{"a": NaN}', "payload: not valid JSON: "),
        ('{"a": "\\ud800"}', "payload: not valid JSON: "),
        ('{"a": "\\u0000"}', "payload.a: the character U"),
        ("[" * 10_000, "payload: not valid JSON: recursion limit exceeded"),
        ("[]", "payload: a JSON object is needed, not list"),
        (b"\xff\xfe", "payload: not valid JSON: "),
        ("", "payload: not valid JSON: EOF"),
    ],
)
def test_text_that_is_no_payload_is_refused(text: str | bytes, sentence: str) -> None:
    """Text from a command line or file becomes a payload, or a sentence that says where it is wrong."""
    with pytest.raises(InvalidInput, match=sentence):
        parse_payload(text)


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_an_unexpected_error_names_its_type_and_line(
    worker: WorkerFactory, registry: Registry, kind: str
) -> None:
    """`'nokey'` says nothing: the message has the type, the file, the line and the function."""

    def look(known: dict[str, int]) -> int:
        return known["nokey"]

    async def asynchronous(ctx: ModuleContext, given: Number) -> Number:
        return Number(n=look({}))

    def plain(ctx: ModuleContext, given: Number) -> Number:
        return Number(n=look({}))

    step = registry.module("bad")(asynchronous) if kind == "async" else registry.module("bad")(plain)
    Pipeline("p", step, registry=registry)
    async with worker() as running:
        view = await run_until_settled(running.redrive, "p")
    failure = view.steps[0].failure
    assert failure is not None
    line = look.__code__.co_firstlineno + 1
    assert failure.message == f"KeyError: 'nokey' (tests/integration/runs/test_bad_modules.py:{line} in look)"


async def failed_step(running: Running, order: RunInput) -> FailedCycle:
    """Start a run from a snapshot that the worker may not know, and return how its step failed."""
    run_id = f"foreign-{running.settings.task_queue}"
    await running.temporal.start_workflow("ModuleRun", order, id=run_id, task_queue=running.settings.task_queue)
    view = await settled(running.redrive, run_id)
    failure = view.steps[0].failure
    assert failure is not None
    assert view.steps[0].attempt == failure.attempts[-1].attempt
    return failure


async def test_a_step_whose_module_the_worker_does_not_know_says_so(worker: WorkerFactory, registry: Registry) -> None:
    """A run whose snapshot names an unknown module fails as `unknown_module`, and lists those that are known."""
    elsewhere = Registry()

    @elsewhere.module("gone")
    async def gone(ctx: ModuleContext, given: Number) -> Number:
        return given

    add_good_pipeline(registry)
    async with worker() as running:
        failure = await failed_step(running, RunInput(pipeline="p", steps=[gone.snapshot()]))
        good = await run_until_settled(running.redrive, "good")
    assert failure.category is Category.UNKNOWN_MODULE
    assert failure.message == "module 'gone' is not known to this worker; known: good"
    assert good.status is RunStatus.SUCCESS


async def test_a_worker_without_the_step_activity_is_an_unknown_module(
    worker: WorkerFactory, registry: Registry
) -> None:
    """Where the activity itself is not registered, the second classifier tells it, and counts the tries."""

    @activity.defn(name=Activity.REPORT_EXHAUSTED)
    async def other(report: ExhaustedReport) -> None:
        """Take the report: a worker needs one activity to poll for them, and the run this one to park."""

    @registry.module("step", policy=quick(max_attempts=2, base=milliseconds(1)))
    async def step(ctx: ModuleContext, given: Number) -> Number:
        return given

    async with worker() as running:
        settings, redrive = running.settings, running.redrive
    bare = Worker(
        running.temporal,
        task_queue=settings.task_queue,
        workflows=WORKFLOWS,
        activities=[other],
        workflow_runner=workflow_runner(),
    )
    async with bare:
        failure = await failed_step(
            Running(redrive, running.temporal, settings), RunInput(pipeline="p", steps=[step.snapshot()])
        )
    assert failure.category is Category.UNKNOWN_MODULE
    assert failure.attempts[-1].attempt == 2


async def test_a_transient_error_with_a_broken_text_is_still_tried_again(
    worker: WorkerFactory, registry: Registry
) -> None:
    """Text that cannot be stored does not stop the retry that it asks for."""

    @registry.module("bad", policy=quick(max_attempts=3, base=milliseconds(1)))
    async def bad(ctx: ModuleContext, given: Number) -> Number:
        if ctx.attempt < 3:
            raise Transient("\ud800\0", retry_after=timedelta(milliseconds=1))
        return given

    Pipeline("p", bad, registry=registry)
    async with worker() as running:
        view = await run_until_settled(running.redrive, "p")
    assert view.status is RunStatus.SUCCESS
    assert [entry.error for entry in view.steps[0].attempts] == ["\\ud800\\0"] * 2
