"""Compares what the sink, Temporal, PostgreSQL and each key's answer say about every run."""

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Final

from temporalio.client import WorkflowExecutionStatus

from redrive import RunStatus
from redrive.contracts import DEFAULT_TENANT, Workflow
from redrive.postgres.database import open_pool
from redrive.store.audit import verify
from tests.chaos.traffic import STEPS, Traffic

_RUN_STATUS: Final = {
    WorkflowExecutionStatus.COMPLETED: RunStatus.SUCCESS,
    WorkflowExecutionStatus.FAILED: RunStatus.FAILED,
    WorkflowExecutionStatus.TERMINATED: RunStatus.FAILED,
    WorkflowExecutionStatus.CANCELED: RunStatus.CANCELED,
}
_RECORDED: Final = ("replay_requested", "resolved", "discarded", "refused")


class Agreement:
    """What each source says, read once, and where they differ."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._ends: dict[str, RunStatus | None] = {}
        self._open_letters: set[str] = set()
        self._rows: dict[str, Any] = {}
        self._keys: dict[str, Any] = {}
        self._letters: dict[str, list[Any]] = defaultdict(list)

    async def read(self) -> None:
        """Read Temporal and PostgreSQL."""
        await self._read_temporal()
        ask = self._traffic.rows
        self._rows = {row["run_id"]: row for row in await ask("SELECT * FROM redrive.runs")}
        self._keys = {row["run_id"]: row for row in await ask("SELECT * FROM redrive.idempotency_keys")}
        for row in await ask("SELECT id, run_id, step, status, cycle, orphaned FROM redrive.dead_letters"):
            self._letters[row["run_id"]].append(row)

    async def _read_temporal(self) -> None:
        client = self._traffic.client
        query = f"WorkflowType IN ('{Workflow.MODULE_RUN}', '{Workflow.DEAD_LETTER}')"
        listed = [each async for each in client.list_workflows(query)]
        for each in sorted(listed, key=lambda execution: execution.start_time):
            if each.workflow_type == Workflow.MODULE_RUN:
                self._ends[each.id] = _RUN_STATUS.get(each.status) if each.status else None
            elif each.status is WorkflowExecutionStatus.RUNNING:
                self._open_letters.add(each.id)

    def problems(self) -> list[str]:
        """Return every disagreement between the stores."""
        runs = set(self._traffic.runs.values())
        found = [f"{run}: nobody started it" for run in self._ends.keys() - runs]
        for number, run_id in self._traffic.runs.items():
            found += [f"{run_id} (run {number}): {problem}" for problem in self._of_run(number, run_id)]
        return found + [f"{letter}: its workflow is open" for letter in sorted(self._open_letters)]

    def _of_run(self, number: int, run_id: str) -> list[str]:
        end = self._ends.get(run_id)
        if end is None:
            return ["Temporal has no such run" if run_id not in self._ends else "Temporal says that it is open"]
        stored = [*self._row(run_id, end), *self._key(number, run_id, end), *self._records(run_id, end)]
        return [*stored, *self._effects(number, run_id, end)]

    def _row(self, run_id: str, end: RunStatus) -> list[str]:
        row = self._rows.get(run_id)
        return [f"Temporal says {end}, its row {row['status']}"] if row and row["status"] != end else []

    def _key(self, number: int, run_id: str, end: RunStatus) -> list[str]:
        if number not in self._traffic.keyed:
            return []
        row = self._keys.get(run_id)
        if row is None:
            return [f"Temporal says {end}, its key has no row"]
        wanted = "completed" if end is RunStatus.SUCCESS else "failed"
        told = (row["status"], row["run_status"])
        return [f"Temporal says {end}, the row of its key {told}"] if told != (wanted, end) else []

    def _records(self, run_id: str, end: RunStatus) -> list[str]:
        allowed = {"replayed", "resolved"} | ({"discarded"} if end is not RunStatus.SUCCESS else set())
        found = [
            f"Temporal says {end}, the record of {letter['step']!r} {letter['status']}"
            for letter in self._letters[run_id]
            if letter["status"] not in allowed or letter["orphaned"]
        ]
        statuses = {letter["status"] for letter in self._letters[run_id]}
        if end is RunStatus.FAILED and "discarded" not in statuses:
            found.append(f"it failed, but its records say {statuses}")
        return found

    def _effects(self, number: int, run_id: str, end: RunStatus) -> list[str]:
        found = []
        resolved = {each["step"] for each in self._letters[run_id] if each["status"] == "resolved"}
        for step in STEPS:
            keys = set(self._traffic.sink.keys[f"/{number}/{step}"])
            if keys - {f"{run_id}:{step}:effect"}:
                found.append(f"effects of {step!r} with other keys: {keys}")
            if end is RunStatus.SUCCESS and not keys and step not in resolved and run_id not in self._traffic.reset:
                found.append(f"it succeeded without the effect of {step!r}")
        return found

    async def answers(self) -> list[str]:
        """Ask every key, and return which answers differ from Temporal, or from what was told before."""
        found = []
        for number in sorted(self._traffic.keyed):
            run_id = self._traffic.runs[number]
            answer = await self._traffic.insist(lambda number=number: self._traffic.ask_key(number))  # type: ignore[misc]
            self._traffic.hear(number, answer.status)
            if (answer.run_id, answer.status) != (run_id, self._ends.get(run_id)):
                found.append(f"key {number}: {answer.run_id} {answer.status}, Temporal says {self._ends.get(run_id)}")
        told = self._traffic.ends_told.items()
        return found + [f"key {number} was told {sorted(ends)}" for number, ends in told if len(ends) > 1]

    async def commands(self) -> list[str]:
        """Return which answered commands are not recorded once, or were answered in two ways."""
        rows = await self._traffic.rows(
            "SELECT request_id, count(*) AS n FROM redrive.audit_log WHERE action = ANY($1) GROUP BY 1", _RECORDED
        )
        recorded = {row["request_id"]: row["n"] for row in rows}
        found = [
            f"{request}: answered, and {recorded.get(request, 0)} lines in the audit log"
            for request in self._traffic.answers
            if recorded.get(request) != 1
        ]
        for request, answers in self._traffic.answers.items():
            if len({(answer.accepted, answer.message) for answer in answers}) > 1:
                found.append(f"{request}: answers differ: {[(each.accepted, each.message) for each in answers]}")
        return found + await self._audit_problems()

    async def _audit_problems(self) -> list[str]:
        pool = await open_pool(self._traffic.database_url, max_size=1)
        try:
            proofs = await verify(pool, DEFAULT_TENANT)
        finally:
            await pool.close()
        return [f"the audit log is broken at {proof.first_broken}" for proof in proofs if not proof.is_whole]


def tracebacks(logs: Path) -> list[str]:
    """Return which log files have what an outage must not leave there: a traceback means a bug."""
    found = []
    for file in sorted(logs.glob("*.log")):
        counts = Counter(re.findall("Traceback|never retrieved", file.read_text(errors="replace")))
        found += [f"{file.name}: {count} times {what!r} in the log" for what, count in counts.items()]
    return found
