"""When a bridge looks at the rows that it has started."""

import itertools
import uuid

from redrive.bridges.outbox.fates import ended
from redrive.bridges.outbox.recent import FollowedRow, RecentStarts
from redrive.outbox.rows import OutboxStatus
from redrive.store.run_fates import Followed


def row(cycle: int = 0) -> FollowedRow:
    run = Followed("acme", "run-1", None)
    return FollowedRow(uuid.uuid4(), None, OutboxStatus.IN_FLIGHT, cycle, run, None)


def test_looks_become_rarer_and_end_after_ten_seconds() -> None:
    """After a quarter of a second, then of the time that the run has taken so far; then the outbox itself knows."""
    recent, started = RecentStarts(), row()
    recent.add([started], 0.0)
    looks = [tick / 20 for tick in range(400) if recent.due(tick / 20)]
    assert looks[:4] == [0.25, 0.5, 0.75, 1.0]
    waits = [later - earlier for earlier, later in itertools.pairwise(looks)]
    assert waits == sorted(waits)
    assert len(looks) < 20
    assert 10 <= looks[-1] < 13


def test_row_that_has_news_is_not_looked_at_again() -> None:
    """Others go on."""
    recent, one, other = RecentStarts(), row(), row()
    recent.add([one, other], 0.0)
    recent.forget([one])
    assert recent.due(0.3) == [other]


def test_what_the_row_knows_already_is_no_news() -> None:
    """A run under way, and the failure that was just replayed."""
    replayed = row(cycle=1)
    assert not replayed.is_news({"status": OutboxStatus.IN_FLIGHT, "cycle": 1})
    assert not replayed.is_news({"status": OutboxStatus.FAILED, "cycle": 1})
    assert replayed.is_news({"status": OutboxStatus.FAILED, "cycle": 2})
    assert replayed.is_news(ended("run-1", None))
    assert replayed.is_news(ended("run-1", "discarded"))
