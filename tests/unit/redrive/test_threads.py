"""Plain functions in threads: what they see, what they may call, and what happens when nobody waits for them."""

import asyncio
import contextvars
import functools
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from redrive.errors import AttemptEnded
from redrive.threads import on_loop, run_in_thread, wait
from tests.conftest import eventually

colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


async def test_a_function_runs_beside_the_loop_with_the_callers_context() -> None:
    """It is in another thread, the loop goes on meanwhile, and context variables are those of the caller."""
    colour.set("red")
    may_end = threading.Event()

    def blocking(word: str) -> tuple[str, str, bool]:
        may_end.wait()
        return word, colour.get(), threading.current_thread() is threading.main_thread()

    running = asyncio.create_task(run_in_thread(blocking, "a"))
    await asyncio.sleep(0)
    may_end.set()
    assert await running == ("a", "red", False)


async def test_a_thread_waits_for_what_runs_on_the_loop() -> None:
    """An async call, made in the thread, runs on the loop, with the thread's context, and its result is returned."""
    here = threading.get_ident()

    async def ask(number: int) -> tuple[int, str, bool]:
        await asyncio.sleep(0)
        return number + 1, colour.get(), threading.get_ident() == here

    def function() -> tuple[int, str, bool]:
        colour.set("blue")
        return wait(ask(1))

    assert await run_in_thread(function) == (2, "blue", True)


async def test_an_error_on_the_loop_reaches_the_thread() -> None:
    """The thread can handle it, or let it through."""

    async def fail() -> None:
        raise KeyError("k")

    with pytest.raises(KeyError):
        await run_in_thread(lambda: wait(fail()))


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_a_function_may_raise_anything(error: BaseException) -> None:
    """What ends a program or a task elsewhere comes out of the call, and the loop goes on."""

    def function() -> None:
        raise error

    with pytest.raises(type(error)):
        await run_in_thread(function)


async def test_a_stop_iteration_does_not_hang() -> None:
    """A future cannot carry it: Python makes a RuntimeError of it, as in an async function."""
    with pytest.raises(RuntimeError, match="StopIteration"):
        await run_in_thread(lambda: next(iter(())))


async def test_an_async_function_behind_a_plain_decorator_is_awaited() -> None:
    """A decorator may hide that a function is async."""

    def decorated(function: Callable[[], Awaitable[int]]) -> Callable[[], Awaitable[int]]:
        @functools.wraps(function)
        def inner() -> Awaitable[int]:
            return function()

        return inner

    @decorated
    async def answer() -> int:
        return 42

    returned: object = await run_in_thread(answer)
    assert returned == 42


async def test_a_function_that_is_left_behind_is_told_so() -> None:
    """Its caller goes on at once; whatever the thread then asks of the loop raises, and ends it."""
    told: list[str] = []
    may_go_on = threading.Event()
    beat = on_loop(lambda: told.append("beat"))

    def function() -> None:
        may_go_on.wait()
        for ask in (beat, lambda: wait(asyncio.sleep(0))):
            try:
                ask()
            except AttemptEnded as error:
                told.append(str(error))

    left: list[Future[Any]] = []
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await run_in_thread(function, pool=pool, on_left=left.append)
        assert [running.done() for running in left] == [False]
        may_go_on.set()
    assert told == ["the attempt has ended, and its function still runs: return, nobody waits for it"] * 2


async def test_a_thread_that_waits_is_woken_when_its_attempt_ends() -> None:
    """A call on the loop does not outlast the attempt that made it."""
    outcome: list[object] = []
    began = asyncio.Event()

    async def forever() -> None:
        began.set()
        await asyncio.Event().wait()

    def function() -> None:
        try:
            wait(forever())
        except AttemptEnded as error:
            outcome.append(error)

    running = asyncio.create_task(run_in_thread(function))
    await began.wait()
    running.cancel()

    async def is_told() -> bool:
        return bool(outcome)

    await eventually(is_told)
    assert running.cancelled()


async def test_a_beat_of_a_thread_happens_on_the_loop() -> None:
    """On the loop itself it happens at once."""
    threads: list[int] = []
    beat = on_loop(lambda: threads.append(threading.get_ident()))
    await run_in_thread(beat)
    beat()
    await asyncio.sleep(0)
    assert threads == [threading.get_ident()] * 2


async def test_an_async_function_is_told_to_await() -> None:
    """To wait on the loop would block it: the refusal says what to write."""
    with pytest.raises(RuntimeError, match="an async one writes `await`"):
        wait(asyncio.sleep(0))
