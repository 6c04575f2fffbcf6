"""The corpus of hostile documents by signals and updates: each is refused with a row, and no workflow is stuck."""

import asyncio
import gc
import itertools

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import RawValue
from temporalio.converter import DataConverter

from redrive.contracts import ELEMENT_LIMIT, MIB
from redrive.dead_letters import LetterStatus, Verb
from tests.hostile.documents import THINNED, around, corpus
from tests.integration.dead_letters.lab import Case, stuck, wording


@pytest.fixture(autouse=True)
def frozen() -> None:
    """Leave what is loaded to itself, as workers do when they are ready: the collector would look through all of it."""
    gc.collect()
    gc.freeze()


def argument(data: bytes) -> RawValue:
    """Return bytes as the argument of a signal, as any program can send them."""
    return RawValue(Payload(metadata={"encoding": b"json/plain"}, data=data))


def edit_of(data: bytes, **others: str) -> bytes:
    """Return a command that puts a document where a number belongs: if it can be read, the run refuses it."""
    return around("input_patch", around("n", around("more", data)), **wording(**others))


def plain(client: Client) -> Client:
    """Return a client that sends what it is given."""
    return Client(**client.config() | {"data_converter": DataConverter.default})


HOSTILE = {
    "a long name over many texts": b'{"' + b"k" * 100_000 + b'": [' + b'"",' * 299_999 + b'""]}',
    "half a million lists": b'{"a": [' + b"[[[[]]]]," * 110_000 + b"[]]}",
    "as many elements as may be": b'{"a": [' + b"[]," * (ELEMENT_LIMIT - 2) + b"[]]}",
    "as many names as may be": b"{" + b",".join(b'"%x":0' % n for n in range(ELEMENT_LIMIT - 10)) + b"}",
    "long names all the way down": (b'{"' + b"k" * 1000 + b'":') * 90 + b"1" + b"}" * 90,
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_a_hostile_edit_does_not_hold_up_a_workflow(case: Case, what: str) -> None:
    """Sent to the queue and to the run, by signal and by update, it takes no workflow task its two seconds."""
    await case.park("second")
    temporal = plain(case.temporal)
    queue = temporal.get_workflow_handle(case.queue.id)
    run = temporal.get_workflow_handle(case.run_id)
    address = {"run_id": case.run_id, "step": "second"}
    await queue.signal(Verb.REPLAY, argument(edit_of(HOSTILE[what], **address)))
    await run.signal(Verb.REPLAY, argument(edit_of(HOSTILE[what])))
    await queue.signal(Verb.REPLAY, argument(HOSTILE[what]))
    await run.signal(Verb.REPLAY, argument(HOSTILE[what]))
    answer = await queue.execute_update(Verb.REPLAY, argument(edit_of(HOSTILE[what], **address)), result_type=dict)
    assert not answer["accepted"]
    assert len(answer["message"]) <= 1024
    await case.refusals(5)
    assert not await stuck(queue)
    assert not await stuck(run)
    await case.works_still()


async def test_every_document_as_a_signal(case: Case) -> None:
    """The corpus as signals to a queue and a run: both go on, and the run ends well."""
    await case.park("second")
    temporal = plain(case.temporal)
    queue = temporal.get_workflow_handle(case.queue.id)
    run = temporal.get_workflow_handle(case.run_id)
    for number, document in enumerate(itertools.islice(corpus(8 * 1024), 0, None, THINNED)):
        target, address = (run, {}) if number % 2 else (queue, {"run_id": case.run_id, "step": "second"})
        data = edit_of(document.data, **address) if number % 3 else document.data
        await target.signal(Verb.REPLAY, argument(data))
    case.patience = 120.0
    # From the fifty-first on they share rows; what is behind them in the inbox is done all the same, see the end.
    await case.refusals(50)
    await case.until_letter("second", LetterStatus.PENDING)
    await case.works_still()
    assert not await stuck(queue)
    assert not await stuck(run)


async def test_a_run_is_started_by_name_with_a_megabyte_of_anything(case: Case) -> None:
    """A start by hand with a hostile payload ends the run with a sentence; its task does not fail over and over."""
    temporal = plain(case.temporal)
    sized = [document for document in corpus(MIB) if document.name.startswith(("many_elements", "long_names: 1025"))]
    for number, document in enumerate(sized):
        data = around("payload", document.data, pipeline="three", tenant=case.tenant)
        run_id = f"run-{case.name}-{number}"
        handle = await temporal.start_workflow("ModuleRun", argument(data), id=run_id, task_queue=case.task_queue)
        with pytest.raises(WorkflowFailureError):
            async with asyncio.timeout(60):
                await handle.result()
