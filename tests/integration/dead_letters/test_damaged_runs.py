"""A run that Temporal cannot read, because its data is damaged, and the sweep over all the others."""

import sqlite3
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from temporalio.testing import ActivityEnvironment

from redrive import Redrive, Registry
from redrive.activities.maintenance import KeyActivities
from redrive.connection import connect_temporal, database_url
from redrive.missed_ends import MissedEnds
from redrive.postgres.database import Database
from redrive.reconcile import Kind, Reconciliation
from redrive.redaction.redactor import Redactor
from redrive.settings import Settings
from redrive.starter.stack.stack import Stack
from redrive.worker import running_worker
from tests.acceptance.live import working_directory
from tests.alerts import SILENT
from tests.conftest import owner_url
from tests.database import fetch
from tests.integration.runs.samples import add_good_pipeline

KEYS: Final = ("history-lost", "encoding-unknown", "whole")


async def test_one_run_that_temporal_cannot_read_does_not_keep_the_sweep_from_the_others() -> None:
    """The others get their ends; each damaged one is a problem that nobody can repair, and is told as such."""
    with working_directory() as directory:
        async with Stack(Settings(), state_dir=directory / "state", workers=0) as stack:
            runs = await _ended_runs(_settings(stack))
        _damage(directory / "state" / "temporal" / "temporal.db", runs)
        async with Stack(Settings(), state_dir=directory / "state", workers=0) as stack:
            await _miss_the_ends(stack)
            settings = _settings(stack)
            client = await connect_temporal(settings)
            async with Database(database_url(settings), max_size=2) as database:
                await ActivityEnvironment().run(KeyActivities(client, database, Redactor(), SILENT).expire_keys)
                pool = await database.pool()
                report = await Reconciliation(client, pool, MissedEnds(client, pool, Redactor()), repair=True).run(None)
            ends = await fetch(owner_url(stack.info), "SELECT key, status FROM redrive.idempotency_keys")
            rows = await fetch(owner_url(stack.info), "SELECT run_id, status FROM redrive.runs")
    assert {end["key"]: end["status"] for end in ends}["whole"] == "completed"
    assert {row["run_id"]: row["status"] for row in rows}[runs["whole"][0]] == "SUCCESS"
    unread = {problem.run_id: problem for problem in report.problems}
    assert unread.keys() == {runs["history-lost"][0], runs["encoding-unknown"][0]}
    for problem in unread.values():
        assert (problem.kind, problem.repaired) == (Kind.NO_ANSWER, False)
        assert "Temporal cannot read run" in problem.about


def _settings(stack: Stack) -> Settings:
    info = stack.info
    return Settings(temporal_address=info.temporal_address, database_url=info.database_url)


async def _ended_runs(settings: Settings) -> dict[str, tuple[str, bytes]]:
    """Return the run's id, and Temporal's, of each key."""
    registry = Registry()
    add_good_pipeline(registry)
    runs = {}
    async with running_worker(settings, registry), await Redrive.connect(settings) as redrive:
        client = await connect_temporal(settings)
        for key in KEYS:
            run_id = (await redrive.start("good", {"n": 1}, key=key)).run_id
            await redrive.result(run_id)
            description = await client.get_workflow_handle(run_id).describe()
            runs[key] = (run_id, uuid.UUID(description.run_id).bytes)
    return runs


def _damage(file: Path, runs: dict[str, tuple[str, bytes]]) -> None:
    database = sqlite3.connect(file)
    with database:
        database.execute("DELETE FROM history_node WHERE tree_id = ?", (runs["history-lost"][1],))
        database.execute(
            "UPDATE executions SET data_encoding = 'none' WHERE workflow_id = ?", (runs["encoding-unknown"][0],)
        )
    database.close()


async def _miss_the_ends(stack: Stack) -> None:
    """Let the rows and keys say that the runs are open, as if PostgreSQL had been down at their end."""
    url, missed_at = owner_url(stack.info), datetime.now(UTC) - timedelta(hours=1)
    await fetch(url, "UPDATE redrive.runs SET status = 'RUNNING', closed_at = NULL, updated_at = $1", missed_at)
    await fetch(url, "UPDATE redrive.idempotency_keys SET status = 'processing', updated_at = $1", missed_at)
