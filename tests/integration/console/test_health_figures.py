"""How runs and workers do now, on the overview."""

from datetime import UTC, datetime, timedelta

import httpx

from redrive.console.web.health_figures import pace, percentile, step_latencies
from redrive.contracts import RunStatus, StepState
from tests.conftest import eventually
from tests.integration.dead_letters.lab import Case


async def test_the_overview_shows_runs_steps_and_workers(admin: httpx.AsyncClient, case: Case) -> None:
    """One run succeeded and one is parked: half; each module's times; a worker polls."""
    await case.park("second")
    case.mend()
    case.service.broken.clear()
    await case.start()
    await case.until_row(RunStatus.SUCCESS)

    async def shown() -> str | None:
        page = (await admin.get("/overview/health")).text
        return page if "<td>third</td>" in page else None

    page = await eventually(shown)
    assert "50.0 %" in page
    assert '<dt>Workers</dt><dd class="good">' in page


def test_outcomes_are_of_runs_that_have_one() -> None:
    """A parked run is not a success; one that goes on is not counted; none is no share."""
    found = pace({RunStatus.SUCCESS: 3, RunStatus.DLQ_PENDING: 1, RunStatus.RUNNING: 7})
    assert (found.total, found.share) == (4, 75.0)
    assert pace({}).share is None


def test_percentiles_are_times_that_there_were() -> None:
    """The median and the 99th percentile of each module; a step that has not ended is left out."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    times = [timedelta(seconds=seconds) for seconds in range(1, 101)]
    assert (percentile(times, 50), percentile(times, 99)) == (timedelta(seconds=50), timedelta(seconds=99))
    assert percentile(times[:1], 99) == timedelta(seconds=1)
    steps = [StepState(name="pay", started_at=at, finished_at=at + each) for each in times]
    (row,) = step_latencies([*steps, StepState(name="ship", started_at=at)])
    assert (row.module, row.steps, row.median) == ("pay", 100, timedelta(seconds=50))
