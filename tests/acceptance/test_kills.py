"""Nothing is lost: kill -9 of every process of a stack while fifty runs of three steps are on their way."""

import asyncio
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator

import psutil
import pytest

from redrive import Redrive
from redrive.contracts import RunStatus, StepStatus
from tests.acceptance.live import COMMAND, ROOT, Sink, Up, environment, insist, until, working_directory
from tests.conftest import eventually

RUNS = 50
STEPS = ("first", "second", "third")
# Steps that workers are handed one by one, and steps that are done in the workflow task.
PIPELINES = ("effects", "fast-effects")
MODULES = "tests.acceptance.effects"

_numbers = itertools.count()


@pytest.fixture(scope="module")
async def sink() -> AsyncIterator[Sink]:
    """One service for all tests of this file: runs have numbers of their own."""
    async with Sink().serving() as sink:
        yield sink


def _variables(sink: Sink) -> dict[str, str]:
    return {
        "REDRIVE_SERVICES": json.dumps({"sink": {"base_url": sink.address}}),
        "PYTHONPATH": str(ROOT),
    }


@pytest.fixture(scope="module")
def up(sink: Sink) -> Iterator[Up]:
    """A stack with two workers, which is killed piece by piece."""
    with (
        working_directory() as directory,
        Up(directory, "--workers", "2", "--modules", MODULES, variables=_variables(sink)) as up,
    ):
        yield up


@pytest.mark.parametrize("victim", ["worker-1", "temporal", "postgres", "console"])
async def test_kill_loses_no_run_and_no_step(up: Up, sink: Sink, victim: str) -> None:
    """Every run succeeds, every effect arrives, duplicates carry the same key, and the victim is started again."""
    redrive = await Redrive.connect(up.settings)
    numbers = [next(_numbers) for _ in range(RUNS)]
    arrived = sink.arrivals
    runs = asyncio.gather(*(_run(redrive, PIPELINES[number % 2], number) for number in numbers))

    await eventually(lambda: _truth(sink.arrivals >= arrived + RUNS // 2))
    killed = up.info.children[victim]
    os.kill(killed, signal.SIGKILL)
    assert sink.arrivals < arrived + RUNS * len(STEPS), "all was over before the kill"
    run_ids = await runs
    await redrive.close()

    keys = {path: set(sink.keys[path]) for path in sink.keys}
    for number, run_id in zip(numbers, run_ids, strict=True):
        for step in STEPS:
            assert keys.get(f"/{number}/{step}") == {f"{run_id}:{step}:effect"}
    pid = until(lambda: up.restarted(victim), what=f"restart of {victim}")
    assert pid != killed
    assert up.info.children[victim] == pid
    assert all(psutil.pid_exists(child) for child in up.info.children.values())
    assert set(up.info.children) == {"temporal", "postgres", "console", "worker-1", "worker-2"}


async def _run(redrive: Redrive, pipeline: str, number: int) -> str:
    """Start one run, however often it must be asked for, and wait until it has succeeded."""
    key = f"kill-test:{number}"
    started = await insist(lambda: redrive.start(pipeline, {"number": number}, key=key))
    result = await insist(lambda: redrive.result(started.run_id))
    assert result.status is RunStatus.SUCCESS
    return started.run_id


async def _truth(value: bool) -> bool:
    return value


async def test_wait_outlasts_the_restart_of_the_server(up: Up, sink: Sink) -> None:
    """`run start --wait` goes on when the Temporal server is killed under it, as the run does."""
    words = ("run", "start", "effects", "--payload", json.dumps({"number": next(_numbers)}), "--wait")
    sink.refusing = True
    waiting = await asyncio.create_subprocess_exec(
        *(COMMAND, *words), cwd=up.directory, env=environment(), stdout=asyncio.subprocess.PIPE
    )
    assert waiting.stdout
    while "RETRYING" not in (line := (await waiting.stdout.readline()).decode()):
        assert line, "the wait ended before its time"
    os.kill(up.info.children["temporal"], signal.SIGKILL)
    sink.refusing = False
    rest, _ = await waiting.communicate()
    assert waiting.returncode == 0
    assert "third  SUCCESS" in rest.decode()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)])
async def test_next_up_finishes_what_the_last_one_left(up: Up, sink: Sink, number: signal.Signals, code: int) -> None:
    """A run that retries while `up` is stopped, or killed, finishes under the next `up`; no process is left."""
    order = next(_numbers)
    sink.refusing = True
    redrive = await Redrive.connect(up.settings)
    run = await redrive.start("effects", {"number": order})
    await eventually(lambda: _is_retrying(redrive, run.run_id))
    assert up.stop(number) == code
    sink.refusing = False
    up.start()
    redrive = await Redrive.connect(up.settings)
    await insist(lambda: redrive.result(run.run_id))
    view = await redrive.status(run.run_id)
    assert view.status is RunStatus.SUCCESS
    assert view.steps[0].attempt > 1
    assert [set(sink.keys[f"/{order}/{step}"]) for step in STEPS] == [{f"{run.run_id}:{step}:effect"} for step in STEPS]


async def _is_retrying(redrive: Redrive, run_id: str) -> bool:
    steps = (await redrive.status(run_id)).steps
    return bool(steps) and steps[0].status is StepStatus.RETRYING
