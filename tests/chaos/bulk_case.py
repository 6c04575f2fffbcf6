"""One bulk replay of all dead letters of a case: started at the console, followed and compared with what must be."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx

from redrive.access import Role
from redrive.postgres.database import ACCESS_ROLE, DRIVER_ERRORS, open_pool
from redrive.store.access import TokenRequest, create_token
from tests.chaos.case import TENANT, Case, silent

REQUEST = "everything"
ADMIN = TokenRequest(
    name="ada", role=Role.ADMIN, tenant=TENANT, created_by="the tests", person="member:ada", lasts=timedelta(hours=12)
)


@contextlib.asynccontextmanager
async def bulk_case(case: Case, console: str) -> AsyncIterator["BulkCase"]:
    """Give a bulk operation over the runs of a case, ordered by an admin at a console."""
    async with await open_pool(case.database_url, max_size=1, role=ACCESS_ROLE) as pool:
        token = (await create_token(pool, ADMIN)).secret
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=f"{console}/api/v1", headers=headers) as client:
        yield BulkCase(case, client)


@dataclass
class BulkCase:
    """A bulk operation over the runs of a case. The console may die at any time: what it is asked is asked again."""

    case: Case
    console: httpx.AsyncClient
    bulk_id: str = ""

    async def start(self, parallelism: int = 20) -> None:
        """Plan and start it."""
        plan = await self._ask("POST", "/bulk/plan", {"verb": "replay", "parallelism": parallelism})
        command = {"command": plan["command"], "plan_hash": plan["hash"], "request_id": REQUEST}
        answer = await self._ask("POST", "/bulk", command | {"reason": "the service is mended"})
        self.bulk_id = answer["bulk_id"]

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        while True:
            with contextlib.suppress(httpx.TransportError):
                answer = await self.console.request(method, path, json=body, timeout=60)
                if answer.is_success:
                    found: dict[str, Any] = answer.json()
                    return found
                assert answer.is_server_error, answer.text
            await asyncio.sleep(0.2)

    async def until(self, done: Callable[[Counter[str]], bool]) -> None:
        """Wait until the counts of items by status are as wanted; they add up to the total all the time."""
        while True:
            with contextlib.suppress(*DRIVER_ERRORS):
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
            with contextlib.suppress(*DRIVER_ERRORS):
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
        shown = await self._ask("GET", f"/bulk/{self.bulk_id}")
        if (shown["status"], shown["progress"]["applied"]) != ("DONE", self.case.count):
            problems.append(f"the console shows {shown['status']}, {shown['progress']}")
        actions = await self.case.rows("SELECT action FROM redrive.audit_log WHERE action LIKE 'bulk%' ORDER BY number")
        if [row["action"] for row in actions] != ["bulk_started", "bulk_finished"]:
            problems.append(f"audit of the bulk operation: {[row['action'] for row in actions]}")
        return problems + await self.case.replayed_violations(await self.case.results())
