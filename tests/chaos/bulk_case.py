"""One bulk replay of all dead letters of a case: started, followed and compared with what must be."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from redrive.bulk_orders import BulkOrder
from redrive.dead_letters import Verb
from tests.chaos.case import DATABASE_ERRORS, TENANT, Case, silent

REQUEST = "everything"


@dataclass
class BulkCase:
    """A bulk operation over the runs of a case."""

    case: Case
    bulk_id: str = ""

    async def start(self) -> None:
        """Plan and start it, however often it must be asked for."""
        bulk = self.case.redrive.bulk
        plan = await self.case.insist(lambda: bulk.plan(BulkOrder(tenant=TENANT, verb=Verb.REPLAY)))
        answer = await self.case.insist(
            lambda: bulk.start(plan, requested_by="ada", reason="the service is mended", request_id=REQUEST)
        )
        self.bulk_id = answer.bulk_id

    async def until(self, done: Callable[[Counter[str]], bool]) -> None:
        """Wait until the counts of items by status are as wanted; they add up to the total all the time."""
        while True:
            with contextlib.suppress(*DATABASE_ERRORS):
                rows = await self.case.rows("SELECT status, count(*) AS n FROM redrive.bulk_items GROUP BY status")
                counts = Counter({row["status"]: row["n"] for row in rows})
                assert counts.total() == self.case.count, counts
                if done(counts):
                    return
            await asyncio.sleep(0.2)

    async def until_ended(self, show: Callable[[int], None] = silent) -> None:
        """Wait until every item has ended, and the operation, too."""

        def all_ended(counts: Counter[str]) -> bool:
            show(counts["APPLIED"])
            return counts["APPLIED"] + counts["SKIPPED"] + counts["FAILED"] == self.case.count

        await self.until(all_ended)
        while True:
            with contextlib.suppress(*DATABASE_ERRORS):
                rows = await self.case.rows("SELECT status FROM redrive.bulk_operations")
                if [row["status"] for row in rows] in (["DONE"], ["STOPPED"]):
                    return
            await asyncio.sleep(0.2)

    async def violations(self) -> list[str]:
        """Compare items, records, audit log, runs and effects with one replay each."""
        items = await self.case.rows("SELECT letter_id, status, why FROM redrive.bulk_items")
        problems = [
            f"{item['letter_id']}: {item['status']}: {item['why']}" for item in items if item["status"] != "APPLIED"
        ]
        wanted = Counter(self.case.letter(run).workflow_id for run in self.case.runs.values())
        if Counter(item["letter_id"] for item in items) != wanted:
            problems.append(f"{len(items)} items are not the {len(wanted)} dead letters")
        actions = await self.case.rows("SELECT action FROM redrive.audit_log WHERE dead_letter IS NULL ORDER BY number")
        if [row["action"] for row in actions] != ["bulk_started", "bulk_finished"]:
            problems.append(f"audit of the bulk operation: {[row['action'] for row in actions]}")
        return problems + await self.case.replayed_violations(await self.case.results())
