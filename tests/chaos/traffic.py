"""What callers and operators do during the chaos: starts by three ways, commands in duplicate, cancels, resets.

Each remembers what it was told: that is compared with the stores at the end.
"""

import asyncio
import contextlib
import random
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import asyncpg
import httpx
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from redrive import Redrive, RunStatus
from redrive.connection import connect_temporal, owner_database_url
from redrive.contracts import DEFAULT_TENANT, TASK_QUEUE, StartedRun, Workflow
from redrive.dead_letters import Answer, LetterId
from redrive.errors import InvalidInput, RedriveError, RunNotFound, Unavailable
from redrive.postgres.database import DRIVER_ERRORS
from tests.acceptance.live import Sink, Up, until
from tests.chaos.modules import FAST_PIPELINE, FRAGILE, LATER, PIPELINE
from tests.queues import open_queues

T = TypeVar("T")

AWAY: Final = (Unavailable, RPCError, httpx.HTTPError, OSError)
PAUSE: Final = 0.2
CANCELED_SHARE: Final = 0.2
# A cancel comes at any point of a run: before its first step, between two, near its end, when it is parked.
CANCELED_WITHIN: Final = 3.0
REFUSED_SHARE: Final = 0.4
_OPEN: Final = """
    SELECT run_id, step, cycle FROM redrive.dead_letters WHERE status = 'pending' AND NOT orphaned
    ORDER BY random() LIMIT $1
"""
_REPLAYED: Final = "SELECT run_id FROM redrive.dead_letters WHERE status = 'replayed' ORDER BY random() LIMIT 1"


class MoodySink(Sink):
    """A service that refuses some effects the first time, and some of those again."""

    def __init__(self, seed: int) -> None:
        super().__init__(delay=0.02, refusal="422 Unprocessable Content")
        self.healthy = False
        self._random = random.Random(seed)

    def refusal(self, path: str) -> str | None:
        """Return the status that a request gets instead of its effect, if it is refused."""
        self.refusing = not self.healthy and not self.keys[path] and self._random.random() < REFUSED_SHARE
        return super().refusal(path)


class Open(NamedTuple):
    """A dead letter that waits for a command."""

    letter: LetterId
    cycle: int


@dataclass
class Traffic:
    """Everything that was started, sent and answered."""

    console: str
    token: str
    database_url: str
    task_queue: str
    redrive: Redrive
    client: Client
    sink: MoodySink
    random: random.Random
    runs: dict[int, str] = field(default_factory=dict)
    keyed: set[int] = field(default_factory=set)
    answers: dict[str, list[Answer]] = field(default_factory=lambda: defaultdict(list))
    ends_told: dict[int, set[RunStatus]] = field(default_factory=lambda: defaultdict(set))
    reset: set[str] = field(default_factory=set)
    canceled: int = 0
    idle: list["asyncpg.Connection[asyncpg.Record]"] = field(default_factory=list)

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, up: Up, sink: MoodySink, seed: int) -> AsyncIterator["Traffic"]:
        """Connect to a stack, once: it keeps its addresses when it is started again."""
        async with await Redrive.connect(up.settings) as redrive:
            yield cls(
                console=up.info.console or "",
                token=await asyncio.to_thread(until, partial(_token, up), what="the first token"),
                database_url=owner_database_url(up.settings),
                task_queue=up.settings.task_queue,
                redrive=redrive,
                client=await connect_temporal(up.settings),
                sink=sink,
                random=random.Random(seed),
            )

    def pipeline(self, number: int) -> str:
        """Return the pipeline of a run: every third has fast steps."""
        return FAST_PIPELINE if number % 3 == 2 else PIPELINE

    async def start(self, number: int) -> None:
        """Start a run by one of the three ways, twice at once; some are canceled a little later."""
        way = self.random.choice([self._by_client, self._by_api, self._by_hand])
        first, second = await asyncio.gather(self.insist(lambda: way(number)), self.insist(lambda: way(number)))
        assert first == second, f"run {number} was started twice: {first}, {second}"
        self.runs[number] = first
        if way != self._by_hand:
            self.keyed.add(number)
        if self.random.random() < CANCELED_SHARE:
            await asyncio.sleep(self.random.uniform(0, CANCELED_WITHIN))
            await self._cancel(first)

    async def _by_client(self, number: int) -> str:
        return (await self.ask_key(number)).run_id

    async def _by_api(self, number: int) -> str:
        body = {"pipeline": self.pipeline(number), "payload": {"number": number}}
        answer = await self._post("/runs", body, {"Idempotency-Key": f"chaos:{number}"})
        return str(answer["run_id"])

    async def _by_hand(self, number: int) -> str:
        """Start it as Temporal's Web UI does, without a key."""
        run_id = f"by-hand-{number}"
        given = {"pipeline": self.pipeline(number), "payload": {"number": number}}
        with contextlib.suppress(WorkflowAlreadyStartedError):
            await self.client.start_workflow(Workflow.MODULE_RUN, given, id=run_id, task_queue=self.task_queue)
        return run_id

    async def ask_key(self, number: int) -> StartedRun:
        """Start the run of a key, again or for the first time."""
        payload = {"number": number}
        return await self.redrive.start(self.pipeline(number), payload, key=f"chaos:{number}")

    async def _post(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> dict[str, Any]:
        async with httpx.AsyncClient(timeout=20) as http:
            answer = await http.post(
                f"{self.console}/api/v1{path}",
                json=body,
                headers={"Authorization": f"Bearer {self.token}"} | (headers or {}),
            )
        if answer.status_code >= 500 or answer.status_code in {408, 429}:
            raise Unavailable(answer.text[:300])
        document: dict[str, Any] = answer.json()
        return document | {"status_code": answer.status_code}

    async def _cancel(self, run_id: str) -> None:
        with contextlib.suppress(InvalidInput, RunNotFound):
            await self.insist(lambda: self.redrive.cancel(run_id, reason="chaos"))
            self.canceled += 1

    async def command(self, found: Open) -> None:
        """Send one command by two or three operators at once, by different ways."""
        verb = self.random.choice(["replay"] * 4 + ["resolve", "discard"])
        request_id = f"{verb}-{found.letter.step}-{found.cycle}-{found.letter.run_id}"
        senders = self.random.sample([self._by_sdk, self._by_console, self._by_signal], self.random.choice([2, 3]))
        await asyncio.gather(*(self._told(send, found.letter, verb, request_id) for send in senders))

    async def _told(
        self, send: Callable[[LetterId, str, str], Awaitable[Answer | None]], letter: LetterId, verb: str, request: str
    ) -> None:
        with contextlib.suppress(*AWAY):
            if answer := await send(letter, verb, request):
                self.answers[request].append(answer)

    async def _by_sdk(self, letter: LetterId, verb: str, request_id: str) -> Answer:
        letters, who = self.redrive.dead_letters, {"requested_by": "ada", "reason": "chaos", "request_id": request_id}
        if verb == "resolve":
            return await letters.resolve(letter, output={}, **who)
        return await (letters.replay if verb == "replay" else letters.discard)(letter, **who)

    async def _by_console(self, letter: LetterId, verb: str, request_id: str) -> Answer | None:
        body: dict[str, Any] = {"reason": "chaos", "request_id": request_id}
        body |= {"output": {}} if verb == "resolve" else {}
        answer = await self._post(f"/dead-letters/{letter.workflow_id}/{verb}", body)
        # A refusal has another form: what is compared is what was accepted.
        return Answer.model_validate(answer, extra="ignore") if answer["status_code"] == 202 else None

    async def _by_signal(self, letter: LetterId, verb: str, request_id: str) -> None:
        command: dict[str, Any] = {"request_id": request_id, "requested_by": "grace", "reason": "chaos"}
        command |= {"output": {}} if verb == "resolve" else {}
        command |= {"run_id": letter.run_id, "step": letter.step}
        queue, *_ = await open_queues(self.client, letter.tenant, TASK_QUEUE)
        await queue.signal(verb, command)

    async def operate(self, stop: asyncio.Event) -> None:
        """Be an operator: take dead letters that wait, and send commands."""
        while not stop.is_set():
            for found in await self.waiting(3):
                await self.command(found)
            await asyncio.sleep(self.random.uniform(0, 2 * PAUSE))

    async def ask_keys(self, stop: asyncio.Event) -> None:
        """Ask again and again what became of keys: an end that was told stays the end."""
        while not stop.is_set():
            await asyncio.sleep(PAUSE)
            known = sorted(self.keyed)
            if known:
                number = self.random.choice(known)
                with contextlib.suppress(*AWAY):
                    self.hear(number, (await self.ask_key(number)).status)

    def hear(self, number: int, status: RunStatus) -> None:
        """Remember what a key answered, if that is an end."""
        if status.closed and self.runs.get(number) not in self.reset:
            self.ends_told[number].add(status)

    async def reset_some(self, stop: asyncio.Event) -> None:
        """Reset, now and then, a run that was replayed to where it was parked."""
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self.random.uniform(2, 6))
            for (run_id,) in await self.rows(_REPLAYED):
                with contextlib.suppress(*AWAY):
                    self.reset.add(run_id)
                    await _reset(self.client, run_id)

    async def waiting(self, limit: int) -> list[Open]:
        """Return some dead letters that wait for a command."""
        rows = await self.rows(_OPEN, limit)
        return [Open(LetterId(tenant=DEFAULT_TENANT, run_id=run, step=step), cycle) for run, step, cycle in rows]

    async def rows(self, query: str, *arguments: object) -> list[Any]:
        """Ask the database; nothing while it does not answer."""
        with contextlib.suppress(RedriveError, *DRIVER_ERRORS):
            async with asyncio.timeout(20), self._connection() as connection:
                return await connection.fetch(query, *arguments)
        return []

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
        """Open a connection, or take an idle one: to open one costs more than to ask. One that fails is dropped."""
        connection = self.idle.pop() if self.idle else await asyncpg.connect(self.database_url)
        try:
            yield connection
        except BaseException:
            connection.terminate()
            raise
        self.idle.append(connection)

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call again for as long as something is away."""
        while True:
            with contextlib.suppress(*AWAY):
                return await call()
            await asyncio.sleep(PAUSE)


def _token(up: Up) -> str | None:
    file = up.directory / ".redrive" / "token"
    return file.read_text().strip() if file.exists() else None


async def _reset(client: Client, run_id: str) -> None:
    """Take a run that has ended back to where it was first parked, before any command."""
    handle = client.get_workflow_handle(run_id)
    description = await handle.describe()
    if description.status is not WorkflowExecutionStatus.COMPLETED:
        return
    events = [event async for event in handle.fetch_history_events()]
    signals = [e.event_id for e in events if e.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED]
    tasks = [e.event_id for e in events if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED]
    before = [task for task in tasks if signals and task < signals[0]]
    if not before:
        return
    await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=run_id, run_id=description.run_id),
            reason="chaos",
            workflow_task_finish_event_id=max(before),
            request_id=uuid.uuid4().hex,
        )
    )


STEPS: Final = (FRAGILE, LATER)
