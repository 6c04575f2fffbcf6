"""Record the stored histories of bulk operations: `python -m tests.histories.bulk`, in a fresh server of its own."""

import asyncio
from typing import Any

from redrive.bulk import BulkCommand, BulkPlan, BulkStatus, bulk_id_for
from redrive.dead_letters import LetterId, LetterSelection, Verb
from redrive.errors import BulkNotFound, InvalidInput, PlanChanged
from redrive.logs import configure_logging
from tests.conftest import eventually
from tests.histories.record import EVENTS_BEFORE_CONTINUE, Recorder, recording

WHO: dict[str, Any] = {"requested_by": "ada", "reason": "a history"}


async def _plan(recorder: Recorder, *names: str, **options: Any) -> BulkPlan:
    """Let runs die, and plan the replay of their dead letters."""
    ids = []
    for name in names:
        run_id = await recorder.park(name, "count-2")
        ids.append(LetterId(tenant="default", run_id=run_id, step="count-2").workflow_id)
    command = BulkCommand(tenant="default", verb=Verb.REPLAY, selection=LetterSelection(letters=ids), **options)

    async def complete() -> BulkPlan | None:
        try:
            plan = await recorder.redrive.bulk.plan(command)
        except InvalidInput:
            return None
        return plan if plan.count == len(names) else None

    return await eventually(complete)


async def _until(recorder: Recorder, bulk_id: str, status: BulkStatus) -> None:
    async def has() -> bool:
        try:
            return (await recorder.redrive.bulk.get(bulk_id, tenant="default")).status is status
        except BulkNotFound:
            return False

    await eventually(has, within=60)


async def _until_idle(recorder: Recorder, bulk_id: str) -> None:
    async def idle() -> bool:
        return (await recorder.redrive.bulk.get(bulk_id, tenant="default")).progress.idle

    await eventually(idle)


async def _replayed(recorder: Recorder) -> None:
    """A canary first, then the other one."""
    plan = await _plan(recorder, "bulk-1", "bulk-2", canary=1)
    recorder.mend()
    bulk = await recorder.redrive.bulk.start(plan, **WHO, request_id="replayed")
    await _until(recorder, bulk.bulk_id, BulkStatus.DONE)
    await recorder.keep("bulk_replayed", bulk.bulk_id)


async def _controlled(recorder: Recorder) -> None:
    """Paused until nothing is under way, resumed, told nonsense, stopped by a signal."""
    plan = await _plan(recorder, "bulk-3", "bulk-4", "bulk-5", rate=0.2)
    recorder.mend()
    bulk = await recorder.redrive.bulk.start(plan, **WHO, request_id="controlled")
    await recorder.redrive.bulk.pause(bulk.bulk_id, tenant="default", **WHO)
    await _until_idle(recorder, bulk.bulk_id)
    await recorder.redrive.bulk.resume(bulk.bulk_id, tenant="default", **WHO)
    handle = recorder.client.get_workflow_handle(bulk.bulk_id)
    await handle.signal("stop", "nonsense")
    await handle.signal("stop", WHO)
    await _until(recorder, bulk.bulk_id, BulkStatus.STOPPED)
    await recorder.keep("bulk_controlled", bulk.bulk_id)


async def _refused(recorder: Recorder) -> None:
    plan = await _plan(recorder, "bulk-6")
    try:
        await recorder.redrive.bulk.start(plan.model_copy(update={"hash": "stale"}), **WHO, request_id="refused")
    except PlanChanged as refused:
        print(refused)
    await recorder.keep("bulk_refused", bulk_id_for("default", "refused"))


async def _continued(recorder: Recorder) -> None:
    """So many commands that its history is cut short."""
    plan = await _plan(recorder, "bulk-7", "bulk-8", "bulk-9", rate=0.2)
    recorder.mend()
    bulk = await recorder.redrive.bulk.start(plan, **WHO, request_id="continued")
    for _ in range(4):
        await recorder.redrive.bulk.pause(bulk.bulk_id, tenant="default", **WHO)
        await _until_idle(recorder, bulk.bulk_id)
        await recorder.redrive.bulk.resume(bulk.bulk_id, tenant="default", **WHO)
    await _until(recorder, bulk.bulk_id, BulkStatus.DONE)
    await recorder.keep("bulk_continued", bulk.bulk_id)


async def main() -> None:
    """Write all histories."""
    configure_logging("error")
    async with recording() as recorder:
        for scene in (_replayed, _controlled, _refused):
            await scene(recorder)
    suggestion = f"limit.historyCount.suggestContinueAsNew={EVENTS_BEFORE_CONTINUE}"
    async with recording("--dynamic-config-value", suggestion) as recorder:
        await _continued(recorder)


if __name__ == "__main__":
    asyncio.run(main())
