"""Which dead letter queue a process reports to."""

from redrive.dead_letter_queue import QUEUES, queue_id, queue_ids


def test_processes_share_a_tenants_queues() -> None:
    """Enough processes use all of them; a long task queue's name does not make an id that Temporal refuses."""
    used = {queue_id("acme", "t" * 200, f"{number}@host") for number in range(100)}
    assert used == set(queue_ids("acme", "t" * 200))
    assert len(used) == QUEUES
    assert max(map(len, used)) < 255
