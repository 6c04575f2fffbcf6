"""One dead letter: keeps its record in Postgres, takes operators' orders, hands them to the run, learns the outcome.

It knows its owner only by workflow id and by the signals in `redrive.dead_letters`. Everything that reaches it goes
through one inbox and is handled one after another: of two orders at once, one wins.
"""

from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy, SearchAttributeKey
from temporalio.exceptions import ApplicationError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from redrive.contracts import Activity, SearchAttribute, Workflow
    from redrive.dead_letters import (
        ANSWERS_KEPT,
        Answer,
        Continue,
        Discard,
        Ending,
        Exhausted,
        LetterInput,
        LetterOrder,
        LetterRecorded,
        LetterSignal,
        LetterState,
        LetterStatus,
        MalformedOrder,
        Order,
        OrderRecorded,
        OrderRequest,
        Outcome,
        OutcomeRequest,
        OwnerSignal,
        Replay,
        Resolve,
        Restart,
        refusal,
        status_after,
        status_after_outcome,
    )
    from workflows.details import letter_details
    from workflows.inputs import read_message, read_order

LOCAL_TIMEOUT = timedelta(seconds=3)
RECORD_TIMEOUT = timedelta(seconds=5)
RECORD_RETRIES = RetryPolicy(maximum_interval=timedelta(seconds=20))
ALERT_TIMEOUT = timedelta(seconds=30)
ALERT_RETRIES = RetryPolicy(maximum_attempts=8, maximum_interval=timedelta(minutes=5))


@workflow.defn(name=Workflow.DEAD_LETTER)
class DeadLetter:
    """Keep one dead letter until it is replayed, resolved or discarded."""

    @workflow.init
    def __init__(self, given: LetterInput) -> None:
        self._state = given.state or LetterState(letter=given.letter)
        self._loaded = given.state is not None
        self._inbox: deque[Exhausted | Outcome | LetterOrder | MalformedOrder] = deque()

    @workflow.run
    async def run(self, given: LetterInput) -> LetterStatus:
        while True:
            await workflow.wait_condition(lambda: bool(self._inbox) or self._should_continue_as_new())
            if self._inbox:
                await self._handle(self._inbox.popleft())
                self._describe()
            if self._inbox:
                continue
            if self._state.status.closed:
                await workflow.wait_condition(workflow.all_handlers_finished)
                if not self._inbox:
                    return self._state.status
            elif self._should_continue_as_new():
                await workflow.wait_condition(workflow.all_handlers_finished)
                if not self._inbox:
                    workflow.continue_as_new(LetterInput(letter=given.letter, state=self._state))

    @workflow.signal(dynamic=True)
    def take(self, name: str, arguments: Sequence[RawValue]) -> None:
        """Take an order, or word from the owner. What cannot be read is refused and written down."""
        match name:
            case LetterSignal.EXHAUSTED:
                self._note(name, read_message(Exhausted, arguments))
            case LetterSignal.OUTCOME:
                self._note(name, read_message(Outcome, arguments))
            case _:
                self._note(name, read_order(arguments, name))

    @workflow.update(dynamic=True)
    async def take_and_answer(self, name: str, arguments: Sequence[RawValue]) -> Answer:
        """Take an order, and answer when it is known what becomes of it."""
        order = self._note(name, read_order(arguments, name))
        if not isinstance(order, Replay | Resolve | Discard | Restart):
            problem = order.problem if isinstance(order, MalformedOrder) else ""
            return Answer(request_id="", accepted=False, message=problem, status=self._state.status)
        await workflow.wait_condition(lambda: order.request_id in self._state.answers)
        return self._state.answers[order.request_id]

    def _note(
        self, name: str, message: Exhausted | Outcome | Order | str
    ) -> Exhausted | Outcome | LetterOrder | MalformedOrder:
        if isinstance(message, Continue):
            message = "`continue` is an order for the run, not for a dead letter"
        if isinstance(message, Exhausted) and message.letter != self._state.letter:
            message = f"it tells of {message.letter.workflow_id!r}, another dead letter"
        entry = MalformedOrder(verb=name[:64], problem=message) if isinstance(message, str) else message
        self._inbox.append(entry)
        return entry

    async def _handle(self, message: Exhausted | Outcome | LetterOrder | MalformedOrder) -> None:
        match message:
            case Exhausted():
                await self._on_exhausted(message)
            case Outcome():
                await self._on_outcome(message)
            case MalformedOrder():
                await self._load()
                await self._record(Activity.RECORD_REFUSAL, self._state.letter, message)
            case Replay() | Resolve() | Discard() | Restart():
                await self._on_order(message)

    async def _on_exhausted(self, message: Exhausted) -> None:
        recorded: LetterRecorded = await self._record(Activity.RECORD_EXHAUSTED, message, returns=LetterRecorded)
        answers, cycle = self._state.answers, message.cycle
        self._state = recorded.state.model_copy(update={"answers": answers, "cycle": cycle})
        self._loaded = True
        self._upsert()
        if recorded.alert:
            # Not waited for: a dead alert channel must not hold up orders.
            workflow.start_activity(
                Activity.RAISE_ALERT,
                recorded.alert,
                start_to_close_timeout=ALERT_TIMEOUT,
                retry_policy=ALERT_RETRIES,
                summary="alert",
            )

    async def _on_order(self, order: LetterOrder) -> None:
        await self._load()
        answers = self._state.answers
        if order.request_id not in answers:
            request = OrderRequest(
                letter=self._state.letter,
                order=order,
                refusal=refusal(self._state, order),
                status=self._state.status,
            )
            recorded: OrderRecorded = await self._record(Activity.RECORD_ORDER, request, returns=OrderRecorded)
            answers[order.request_id] = answer = recorded.answer
            while len(answers) > ANSWERS_KEPT:
                answers.pop(next(iter(answers)))
            self._state.orphaned = self._state.orphaned or answer.orphaned
            if recorded.forward:
                await self._forward(order)

    async def _forward(self, order: LetterOrder) -> None:
        """Hand an accepted order to the run."""
        self._state.status = status_after(order)
        if isinstance(order, Replay):
            self._state.order = order
            self._state.replays += 1
        self._upsert()
        if isinstance(order, Restart):
            return
        try:
            await workflow.get_external_workflow_handle(self._state.letter.run_id).signal(OwnerSignal.ORDER, order)
        except ApplicationError:
            # The run ended between the check and the signal.
            await self._on_outcome(Outcome(ending=Ending.ORPHANED, request_id=order.request_id))

    async def _on_outcome(self, outcome: Outcome) -> None:
        await self._load()
        if self._state.status in {LetterStatus.RESOLVED, LetterStatus.DISCARDED, LetterStatus.REPLAYED}:
            return
        await self._record(Activity.RECORD_OUTCOME, OutcomeRequest(letter=self._state.letter, outcome=outcome))
        self._state.status = status_after_outcome(outcome)
        self._state.blocked_by = outcome.blocked_by
        self._state.orphaned = outcome.ending is Ending.ORPHANED
        self._state.order = None
        self._upsert()

    async def _load(self) -> None:
        """Read the record, when an order has started this workflow anew after the letter was closed."""
        if self._loaded:
            return
        found: LetterState | None = await self._record(
            Activity.LOAD_LETTER,
            self._state.letter,
            returns=LetterState | None,  # type: ignore[arg-type]  # a union is a type for the converter
        )
        self._state = found or self._state.model_copy(update={"exists": False, "status": LetterStatus.DISCARDED})
        self._loaded = True

    async def _record(self, activity: Activity, *arguments: object, returns: type | None = None) -> Any:
        """Work with the record: at once in the worker that has this task, and if that fails, in any, again and again.

        A local activity holds one of its worker's places for workflow tasks. Those that wait for the database must not
        take them all: runs that need no database would wait, too.
        """
        try:
            return await workflow.execute_local_activity(
                activity,
                args=arguments,
                result_type=returns,
                start_to_close_timeout=LOCAL_TIMEOUT,
                retry_policy=RetryPolicy(maximum_attempts=1),
            )
        except FailureError as error:
            # Not ActivityError: rebuilt from history, a local activity's failure comes without that cover.
            if is_cancelled_exception(error):
                raise
        return await workflow.execute_activity(
            activity,
            args=arguments,
            result_type=returns,
            start_to_close_timeout=RECORD_TIMEOUT,
            retry_policy=RECORD_RETRIES,
            summary="the database did not answer at once",
        )

    def _should_continue_as_new(self) -> bool:
        return workflow.info().is_continue_as_new_suggested()

    def _describe(self) -> None:
        workflow.set_current_details(letter_details(self._state))

    def _upsert(self) -> None:
        state = self._state
        values = {
            SearchAttribute.TENANT: state.letter.tenant,
            SearchAttribute.PIPELINE: state.pipeline,
            SearchAttribute.STATUS: state.status,
            SearchAttribute.FAILED_STEP: state.letter.step,
            SearchAttribute.CATEGORY: state.cycle.category if state.cycle else None,
        }
        workflow.upsert_search_attributes(
            [SearchAttributeKey.for_keyword(name).value_set(value) for name, value in values.items() if value]
        )
