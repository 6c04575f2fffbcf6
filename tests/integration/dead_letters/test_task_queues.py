"""A tenant or pipeline with a task queue of its own: who gives commands does not need to know it."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from redrive import RunStatus
from redrive.dead_letter_client import DeadLetters
from redrive.dead_letters import Answer, LetterId, LetterStatus
from tests.conftest import WorkerFactory
from tests.integration.dead_letters.lab import Case

WHO: dict[str, Any] = {"requested_by": "ada", "reason": "it is mended"}
OUTPUT = {"step": "second", "n": 2}
Command = Callable[[DeadLetters, LetterId], Awaitable[Answer]]


@pytest.mark.parametrize(
    ("command", "letter", "run"),
    [
        (lambda letters, which: letters.replay(which, **WHO), LetterStatus.REPLAYED, RunStatus.SUCCESS),
        (lambda letters, which: letters.resolve(which, output=OUTPUT, **WHO), LetterStatus.RESOLVED, RunStatus.SUCCESS),
        (lambda letters, which: letters.discard(which, **WHO), LetterStatus.DISCARDED, RunStatus.FAILED),
    ],
    ids=["replay", "resolve", "discard"],
)
async def test_command_from_another_task_queue_reaches_the_run(
    case: Case, worker: WorkerFactory, command: Command, letter: LetterStatus, run: RunStatus
) -> None:
    """The run answers and obeys, by the workers of its own task queue: those of the other one lack its modules."""
    await case.park("second")
    case.mend()
    async with worker() as elsewhere:
        answer = await command(elsewhere.redrive.dead_letters, case.letter("second"))
    assert answer.accepted, answer
    await case.until(run)
    await case.until_letter("second", letter)


async def test_run_that_is_gone_is_restarted_on_its_own_task_queue(case: Case, worker: WorkerFactory) -> None:
    """The command is carried out by a worker of the sender's task queue, which does not have the run's modules."""
    await case.park("second")
    case.mend()
    await case.run.terminate()
    async with worker() as elsewhere:
        answer = await elsewhere.redrive.dead_letters.restart(case.letter("second"), **WHO)
    assert answer.accepted, answer
    case.run_id = answer.message.rpartition(" ")[2]
    assert (await case.run.describe()).task_queue == case.task_queue
    assert (await case.redrive.result(case.run_id)).status is RunStatus.SUCCESS
