"""Commands in any order and twice, cancels, late reports, workers and a database that fail: a model and all sources.

The sweep is paused: what a run does not report by itself is found here, and not repaired.
"""

import asyncio
import os
import random
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHandle

from redrive import Redrive, Registry, RunStatus
from redrive.connection import connect_temporal, database_url, owner_database_url
from redrive.contracts import Activity
from redrive.dead_letters import Exhausted, LetterSignal, LetterStatus, Mode, RunSignal, Verb
from redrive.idempotency.postgres_claims import PostgresClaims
from redrive.postgres.database import open_pool
from redrive.schedules import keep_sweep_schedule
from redrive.settings import Settings
from redrive.starter.stack.state import StackInfo
from redrive.store.audit import verify
from tests.conftest import eventually, pauses
from tests.database import close_connections
from tests.integration.dead_letters import outside
from tests.integration.dead_letters.lab import STEPS, Case, register, wording
from tests.integration.dead_letters.outside import FiledService
from tests.integration.dead_letters.processes import WorkerProcess, stopped
from tests.integration.dead_letters.sweeps import sweep
from tests.queues import open_queues

T = TypeVar("T")
# A task that a killed worker had in hand is given to another after ten seconds, an attempt at a step after six.
PATIENCE = 60.0
KEY = "k"
RECORDED_AS: Final = {Verb.REPLAY: "replay_requested", Verb.RESOLVE: "resolved", Verb.DISCARD: "discarded"}


class Way(StrEnum):
    """How a command comes: as operators give it, or as a signal to the run or to the queue."""

    CLIENT = "client"
    RUN = "run"
    QUEUE = "queue"


class Fault(StrEnum):
    """What happens to a worker, or to the database, while it has a signalled command in hand."""

    KILL = "kill"
    FREEZE = "freeze"
    DATABASE = "database"


# Seldom anything, as it costs seconds.
FAULTS = st.sampled_from([*[None] * 12, *Fault])
WAYS = st.sampled_from(Way)


class Background:
    """An event loop in a thread of its own, and two worker processes that can be killed. Nobody sweeps."""

    def __init__(self, chosen: Settings, workers: Sequence[WorkerProcess], folder: Path, database: int) -> None:
        self.settings = chosen
        self.database = database
        self.folder = folder
        self.registry = Registry()
        register(self.registry)
        # By what was drawn: an example that is tried again has the same.
        self.openings: dict[int, int] = {}
        self._workers = deque(workers)
        self._claims = PostgresClaims(database_url(chosen), max_size=1)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._starting: asyncio.Task[None] | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for what it returns."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(timeout=2 * PATIENCE)

    def start(self) -> None:
        self._thread.start()
        self.run(self._pause_the_sweep())
        for worker in self._workers:
            self.run(worker.start())

    async def _pause_the_sweep(self) -> None:
        client, queue = await connect_temporal(self.settings), self.settings.task_queue
        await keep_sweep_schedule(client, queue)
        await client.get_schedule_handle(f"redrive-expire-keys-{queue}").pause()

    async def case(self) -> Case:
        """Return a run to be, of a caller that keeps keys in the database."""
        queue = self.settings.task_queue
        client = await connect_temporal(self.settings)
        redrive = Redrive(client, task_queue=queue, registry=self.registry, claims=self._claims)
        case = Case(redrive, client, owner_database_url(self.settings), queue)
        case.service = FiledService(self.folder / case.name)
        case.patience = PATIENCE
        return case

    @property
    def has_missed_an_end(self) -> bool:
        """Whether a worker has said that it could not write an end in time: then it is left to the sweep."""
        return any("run.row_not_written" in worker.log.read_text() for worker in self._workers)

    def kill_worker(self) -> None:
        """End a worker with kill -9. The other goes on, while one is started in its place."""
        self.run(self._kill())

    async def _kill(self) -> None:
        await self._started()
        await self._workers[0].kill()
        self._starting = asyncio.create_task(self._workers[0].start())
        self._workers.rotate()

    async def _started(self) -> None:
        if self._starting:
            await self._starting

    def freeze_worker(self) -> None:
        """Stop a worker in the middle of what it does. The other goes on."""
        self.run(self._started())
        self._workers[0].freeze()

    def thaw_worker(self) -> None:
        """Let the frozen worker go on as if nothing had happened."""
        self._workers[0].thaw()
        self._workers.rotate()

    def stop(self) -> None:
        self.run(self._started())
        for worker in self._workers:
            self.run(worker.kill())
        self.run(self._claims.close())
        self.run(close_connections())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Orders(RuleBasedStateMachine):
    """One run of three steps whose second one fails as long as its service is broken."""

    background: ClassVar[Background]

    def __init__(self) -> None:
        super().__init__()
        self.run_status = RunStatus.DLQ_PENDING
        self.letter_status = LetterStatus.PENDING
        self.cycles = 1
        self.calls = Counter(first=1, second=1)
        # A try whose worker was killed may have called its service already: the next one calls it again.
        self.tries_lost = 0
        self.lines = Counter(dead_lettered=1)
        self.accepted: list[str] = []
        self.is_reported = True

    @initialize(number=st.integers(0, 2**32))
    def park(self, number: int) -> None:
        self.case = self.background.run(self.background.case())
        self.background.run(self.case.park("second", key=KEY))
        openings = self.background.openings
        for act in OPENINGS[openings.setdefault(number, len(openings)) % len(OPENINGS)]:
            self.agrees_with_the_model()
            act(self)

    @precondition(lambda self: self.run_status is RunStatus.DLQ_PENDING)
    @rule(mode=st.sampled_from(Mode), from_first=st.booleans(), works=st.booleans(), way=WAYS, fault=FAULTS)
    def replay(
        self,
        *,
        works: bool,
        mode: Mode = Mode.FROM_STEP,
        from_first: bool = False,
        way: Way = Way.CLIENT,
        fault: Fault | None = None,
    ) -> None:
        if works:
            self.case.mend()
        goes_back = from_first and mode is Mode.FROM_STEP
        self.give(Verb.REPLAY, way, fault, mode=mode, from_step="first" if goes_back else None)
        self.calls += Counter(first=int(goes_back), second=1)
        if not works:
            self.cycles += 1
            self.lines["dead_lettered"] += 1
            return
        self.lines["replay_outcome"] += 1
        self.letter_status = LetterStatus.REPLAYED
        self.run_status = RunStatus.PARTIAL
        if mode is Mode.FROM_STEP:
            self.succeed()

    @precondition(lambda self: self.run_status is RunStatus.DLQ_PENDING)
    @rule(way=WAYS, fault=FAULTS)
    def resolve(self, *, way: Way = Way.CLIENT, fault: Fault | None = None) -> None:
        self.give(Verb.RESOLVE, way, fault, output={"step": "by hand", "n": 1})
        self.letter_status = LetterStatus.RESOLVED
        self.succeed()

    @precondition(lambda self: self.run_status is RunStatus.DLQ_PENDING)
    @rule(way=WAYS, fault=FAULTS)
    def discard(self, *, way: Way = Way.CLIENT, fault: Fault | None = None) -> None:
        self.give(Verb.DISCARD, way, fault)
        self.letter_status, self.run_status = LetterStatus.DISCARDED, RunStatus.FAILED

    @precondition(lambda self: self.run_status is RunStatus.PARTIAL)
    @rule()
    def go_on(self) -> None:
        letters = self.case.redrive.dead_letters
        answer = self.background.run(letters.go_on(self.case.run_id, requested_by="ada", reason="go"))
        assert answer.accepted
        self.lines["continued"] += 1
        self.succeed()

    def succeed(self) -> None:
        self.calls["third"] += 1
        self.run_status = RunStatus.SUCCESS

    @precondition(lambda self: not self.run_status.closed)
    @rule(kill=st.sampled_from([False, False, False, True]))
    def cancel(self, *, kill: bool = False) -> None:
        self.background.run(self.case.redrive.cancel(self.case.run_id, reason="go home"))
        if kill:
            self.background.kill_worker()
        # Without an open dead letter, a canceled run has nothing to report: the sweep finds its end.
        self.is_reported = not self.letter_status.closed
        if self.is_reported:
            self.lines["replay_outcome"] += 1
            self.letter_status = LetterStatus.DISCARDED
        self.run_status = RunStatus.CANCELED

    @precondition(lambda self: self.run_status is not RunStatus.DLQ_PENDING)
    @rule(verb=st.sampled_from([Verb.REPLAY, Verb.DISCARD, Verb.RESTART]))
    def command_too_late(self, verb: Verb) -> None:
        self.refuse(verb)

    @precondition(lambda self: self.run_status is RunStatus.DLQ_PENDING)
    @rule(fields=st.sampled_from([{"from_step": "third"}, {"input_patch": {"no": 1}}, {"policy": {"no": 1}}]))
    def unfit(self, fields: dict[str, Any]) -> None:
        self.refuse(Verb.REPLAY, **fields)

    def refuse(self, verb: Verb, **fields: Any) -> None:
        answer = self.background.run(self.case.command(verb, **fields))
        assert not answer.accepted
        self.lines["refused"] += 1

    @precondition(lambda self: self.run_status is RunStatus.DLQ_PENDING)
    @rule(fields=st.sampled_from([{"mode": "NONE"}, {"reason": 1}, {"surprise": True}]), way=WAYS)
    def malformed(self, fields: dict[str, Any], way: Way) -> None:
        self.background.run(self._signal(Verb.REPLAY, fields, way))
        self.lines["refused"] += 1

    @precondition(lambda self: bool(self.accepted))
    @rule(data=st.data(), verb=st.sampled_from([Verb.REPLAY, Verb.DISCARD]))
    def same_request_again(self, data: st.DataObject, verb: Verb) -> None:
        request_id = data.draw(st.sampled_from(self.accepted))
        answer = self.background.run(self.case.command(verb, request_id=request_id))
        assert answer.accepted

    @precondition(lambda self: self.run_status is RunStatus.DLQ_PENDING)
    @rule()
    def report_again(self) -> None:
        """Ask the run for what its record says already. The answer may arrive after a command."""
        self.background.run(self.case.run.signal(RunSignal.REPORT))

    @rule(which=st.integers(0, 10))
    def late_report(self, which: int = 0) -> None:
        """Bring one of the run's reports a second time, as a worker that was frozen while it reported does."""
        self.background.run(self._report_late(which))

    @rule()
    def sweep(self) -> None:
        """Find nothing to repair."""
        self.background.run(sweep(self.case, self.background.settings))

    def give(self, verb: Verb, way: Way, fault: Fault | None, **fields: Any) -> None:
        message = wording(**fields)
        request_id = str(message["request_id"])
        if fault is Fault.FREEZE:
            self.background.freeze_worker()
        if fault is Fault.DATABASE:
            with stopped(self.background.database):
                self.background.run(self._signal(verb, message, Way.RUN))
                self.background.run(eventually(self._waits_for_the_database, within=PATIENCE))
        elif fault or way is not Way.CLIENT:
            self.background.run(self._signal(verb, message, way))
        else:
            answer = self.background.run(self.case.command(verb, **message))
            assert answer.accepted, answer
        if fault is Fault.KILL:
            self.background.kill_worker()
        self.tries_lost += fault is not None
        self.background.run(self.case.audited(request_id, action=RECORDED_AS[verb]))
        if fault is Fault.FREEZE:
            self.background.thaw_worker()
        self.accepted.append(request_id)
        self.lines[RECORDED_AS[verb]] += 1

    async def _waits_for_the_database(self) -> bool:
        """Tell whether the run has the command, and cannot have it recorded."""
        pending = (await self.case.run.describe()).raw_description.pending_activities
        return Activity.RECORD_COMMAND in {each.activity_type.name for each in pending}

    async def _signal(self, verb: Verb, message: dict[str, Any], way: Way) -> None:
        if way is Way.QUEUE:
            queue, *_ = await self._queues()
            await queue.signal(verb, self.case.addressed(**message))
        else:
            await self.case.run.signal(verb, wording(**message))

    async def _report_late(self, which: int) -> None:
        queues = await self._queues()
        events = [event for queue in queues for event in (await queue.fetch_history()).events]
        reports = [event for event in events if _is_report(event)]
        given = reports[which % len(reports)].workflow_execution_signaled_event_attributes.input.payloads
        (report,) = await self.case.temporal.data_converter.decode(given, [Exhausted])
        before = sum(map(_is_report, (await queues[0].fetch_history()).events))
        await queues[0].signal(LetterSignal.EXHAUSTED, report)

        async def is_taken() -> bool:
            events = (await queues[0].fetch_history()).events
            places = [place for place, event in enumerate(events) if _is_report(event)]
            written = [event.event_type == EventType.EVENT_TYPE_MARKER_RECORDED for event in events[places[-1] :]]
            return len(places) > before and any(written)

        await eventually(is_taken, within=PATIENCE)

    async def _queues(self) -> list[WorkflowHandle[Any, Any]]:
        """Return those that the two workers, and their predecessors, report to."""
        return await open_queues(self.case.temporal, self.case.tenant, self.case.task_queue)

    @invariant()
    def agrees_with_the_model(self) -> None:
        if hasattr(self, "case"):
            self.background.run(self._check())

    async def _check(self) -> None:
        """Wait until all sources say what the model says; then a caller with the key is told the same."""
        wanted, give_up = self._wanted(), time.monotonic() + PATIENCE
        for pause in pauses():
            said = await self._said()
            if said == wanted or time.monotonic() > give_up:
                break
            if not self.is_reported or self.background.has_missed_an_end:
                await sweep(self.case, self.background.settings)
            await asyncio.sleep(pause)
        assert said == wanted
        await self._check_calls()
        told = await self.case.redrive.start(
            "three", {"case": self.case.name, "n": 1}, tenant=self.case.tenant, key=KEY
        )
        assert (told.run_id, told.is_cached, told.status) == (self.case.run_id, True, self.run_status)

    def _wanted(self) -> dict[str, Any]:
        word = "completed" if self.run_status is RunStatus.SUCCESS else "failed"
        return {
            "run": self.run_status,
            "records": [("second", self.letter_status, self.cycles, self.cycles)],
            "rows": [(self.run_status, self.run_status.closed)],
            "keys": [(word, self.run_status) if self.run_status.closed else ("processing", None)],
            "audit log": self.lines,
        }

    async def _said(self) -> dict[str, Any]:
        """Return what Temporal, the records, the row, the key and the audit log say."""
        tenant = self.case.tenant
        records = await self.case.rows("SELECT * FROM redrive.dead_letters WHERE tenant = $1", tenant)
        rows = await self.case.rows("SELECT status, closed_at FROM redrive.runs WHERE tenant = $1", tenant)
        keys = await self.case.rows("SELECT * FROM redrive.idempotency_keys WHERE tenant = $1", tenant)
        return {
            "run": (await self.case.view()).status,
            "records": [(r["step"], r["status"], r["cycle"], len(r["failure_history"])) for r in records],
            "rows": [(row["status"], row["closed_at"] is not None) for row in rows],
            "keys": [(key["status"], key["run_status"]) for key in keys],
            "audit log": Counter(line["action"] for line in await self.case.audit()),
        }

    async def _check_calls(self) -> None:
        called = Counter(self.case.service.called)
        for step in STEPS:
            most = self.calls[step] + bool(self.calls[step]) * self.tries_lost
            assert self.calls[step] <= called[step] <= most, step

    def teardown(self) -> None:
        if hasattr(self, "case"):
            self.background.run(self._check_audit_log())

    async def _check_audit_log(self) -> None:
        pool = await open_pool(self.case.database_url, max_size=1)
        try:
            proofs = await verify(pool, self.case.tenant)
        finally:
            await pool.close()
        assert [proof.first_broken for proof in proofs] == [None]


def _is_report(event: HistoryEvent) -> bool:
    return event.workflow_execution_signaled_event_attributes.signal_name == LetterSignal.EXHAUSTED


# Each is the beginning of one example: every way that a run can end, and every fault, whatever else is drawn.
OPENINGS: Final[Sequence[Sequence[Callable[[Orders], None]]]] = (
    (lambda it: it.replay(works=True), lambda it: it.late_report()),
    (lambda it: it.replay(works=False, way=Way.QUEUE), lambda it: it.late_report()),
    (lambda it: it.replay(works=True, mode=Mode.STEP_ONLY), lambda it: it.go_on()),
    (lambda it: it.resolve(way=Way.RUN),),
    (lambda it: it.discard(way=Way.QUEUE),),
    (lambda it: it.cancel(),),
    (lambda it: it.replay(works=False), lambda it: it.replay(works=True, fault=Fault.KILL)),
    (lambda it: it.discard(fault=Fault.FREEZE),),
    (lambda it: it.replay(works=True, fault=Fault.DATABASE),),
    (lambda it: it.replay(works=True, mode=Mode.STEP_ONLY, way=Way.RUN), lambda it: it.cancel(kill=True)),
)


@pytest.mark.timeout(400)
def test_run_and_letter_behave_like_the_model(stack: StackInfo, tmp_path: Path) -> None:
    """After every step: Temporal, record, row, key and audit log say what the model says, and the calls are as many."""
    chosen = Settings(
        temporal_address=stack.temporal_address,
        database_url=stack.database_url,
        owner_database_url=stack.owner_url,
        state_dir=tmp_path,
        task_queue=f"queue-{uuid.uuid4().hex[:12]}",
    )
    number = int(os.environ.get("SEED") or random.getrandbits(32))
    print(f"SEED={number}")
    environment = {
        "REDRIVE_MODULES": outside.__name__,
        "REDRIVE_TASK_QUEUE": chosen.task_queue,
        outside.FOLDER: str(tmp_path),
    }
    workers = [WorkerProcess(stack, tmp_path / name, **environment) for name in ("worker-1", "worker-2")]
    Orders.background = background = Background(chosen, workers, tmp_path, stack.children["postgres"])
    background.start()
    try:
        run_state_machine_as_test(
            seed(number)(Orders),
            settings=settings(
                max_examples=len(OPENINGS),
                stateful_step_count=3,
                # What failed once on real servers is told as it was: trying to shrink it would take minutes.
                phases=[Phase.generate],
                deadline=None,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
                database=None,
            ),
        )
    finally:
        background.stop()
