"""The dead letter queues of a tenant: workflows that take what runs report of their dead letters, and write it.

A few for each tenant and task queue. Reports that arrive together are written together, so a process sends all of
its reports to the same one.
"""

from typing import Final

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from redrive.contracts import Workflow
from redrive.dead_letters import LetterReport, QueueInput, signal_of
from redrive.fairness import ahead_of_others
from redrive.keys import short_hash
from redrive.visibility import search_attributes

# One workflow takes some two hundred signals a second on a cluster.
QUEUES: Final = 4
_READABLE: Final = 100


def queue_ids(tenant: str, task_queue: str) -> list[str]:
    """Return the ids of a tenant's queues. No tenant has a dot in its name."""
    place = task_queue if len(task_queue) <= _READABLE else short_hash(task_queue)
    return [f"dead-letter-queue.{tenant}.{place}.{number}" for number in range(QUEUES)]


def queue_id(tenant: str, task_queue: str, reporter: str) -> str:
    """Return the id of the queue that a process with this identity reports a tenant's dead letters to."""
    return queue_ids(tenant, task_queue)[int(short_hash(reporter), 16) % QUEUES]


async def signal_queue(client: Client, task_queue: str, report: LetterReport) -> None:
    """Signal a report to its queue, which is started if it does not run. Twice is harmless."""
    tenant = report.letter.tenant
    await client.start_workflow(
        Workflow.DEAD_LETTER_QUEUE,
        QueueInput(tenant=tenant),
        id=queue_id(tenant, task_queue, client.identity),
        task_queue=task_queue,
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        start_signal=signal_of(report),
        start_signal_args=[report],
        search_attributes=search_attributes(tenant=tenant),
        static_summary=f"dead letters of tenant {tenant}",
        priority=ahead_of_others(tenant),
    )
