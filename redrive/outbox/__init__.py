"""The outbox: rows of a table in your own database that become runs, if and only if their transaction commits."""

from redrive.outbox.producers import enqueue, enqueue_sync

__all__ = ["enqueue", "enqueue_sync"]
