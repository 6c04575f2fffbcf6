"""The side effects of a dead letter: its record in Postgres, the checks of an order with the run, the first report."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pydantic import ValidationError
from pydantic_core import to_json
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowQueryFailedError
from temporalio.common import (
    RawValue,
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.service import RPCError, RPCStatusCode

from redrive.contracts import (
    DOCUMENT_LIMIT,
    PAYLOAD_LIMIT,
    RESULT_LIMIT,
    Activity,
    Query,
    RunInput,
    SearchAttribute,
    StepSnapshot,
    Workflow,
)
from redrive.dead_letters import (
    SNAPSHOT_LIMIT,
    Alert,
    Answer,
    Continue,
    Discard,
    Exhausted,
    ExhaustedReport,
    LetterId,
    LetterInput,
    LetterOrder,
    LetterRecorded,
    LetterSignal,
    LetterState,
    LetterStatus,
    MalformedOrder,
    OrderRecorded,
    OrderRequest,
    OutcomeRequest,
    Replay,
    Resolve,
    Restart,
    RunDocument,
    Verb,
    restarted,
    status_after,
)
from redrive.documents import json_size, patched, step_input, validation_sentence
from redrive.fingerprints import fingerprint
from redrive.keys import run_id_for_key
from redrive.logs import get_logger
from redrive.metrics import Metrics
from redrive.modules import Registry
from redrive.policy import RetryPolicy
from redrive.redaction import Redactor
from redrive.starting import start_run
from store import dead_letters
from store.continues import put_continue
from store.database import Database
from store.orders import is_under_way

log = get_logger(__name__)


class DeadLetterActivities:
    """Keep dead letters."""

    def __init__(
        self,
        client: Client,
        database: Database,
        registry: Registry,
        redactor: Redactor,
        metrics: Metrics,
        *,
        task_queue: str,
    ) -> None:
        self._client = client
        self._database = database
        self._registry = registry
        self._redactor = redactor
        self._metrics = metrics
        self._task_queue = task_queue

    @activity.defn(name=Activity.REPORT_EXHAUSTED)
    async def report_exhausted(self, report: ExhaustedReport) -> None:
        """Tell the dead letter's workflow, starting it if it is not there. Telling it twice does no harm."""
        payload = self._redactor.value(report.document)
        if json_size(payload) > SNAPSHOT_LIMIT:
            payload = {"omitted": f"larger than {SNAPSHOT_LIMIT} bytes; the run has it"}
        message = Exhausted(
            letter=report.letter,
            pipeline=report.pipeline,
            cycle=report.cycle,
            payload=payload,
            config=report.snapshot.policy,
            correlation_id=report.correlation_id,
            key=report.key,
            claim=report.claim,
            at=report.at,
        )
        await self._client.start_workflow(
            Workflow.DEAD_LETTER,
            LetterInput(letter=report.letter),
            id=report.letter.workflow_id,
            task_queue=self._task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            start_signal=LetterSignal.EXHAUSTED,
            start_signal_args=[message],
            search_attributes=_search_attributes(report),
            static_summary=f"{report.letter.step} of {report.pipeline}, tenant {report.letter.tenant}",
        )

    @activity.defn(name=Activity.SIGNAL_LETTER)
    async def signal_letter(self, letter: LetterId, signal: str, raw: RawValue) -> None:
        """Signal the dead letter's workflow, starting it if it is not there: it reads its record and answers."""
        await self._client.start_workflow(
            Workflow.DEAD_LETTER,
            LetterInput(letter=letter),
            id=letter.workflow_id,
            task_queue=self._task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            start_signal=signal,
            start_signal_args=[raw],
        )

    @activity.defn(name=Activity.RECORD_EXHAUSTED)
    async def record_exhausted(self, message: Exhausted) -> LetterRecorded:
        """Write the record, or append a cycle to it."""
        pool = await self._database.pool()
        recorded = await dead_letters.record_exhausted(pool, message)
        mark = fingerprint(message.pipeline, message.cycle)
        log.warning(
            "run.dead_lettered",
            run_id=message.letter.run_id,
            tenant_id=message.letter.tenant,
            step=message.letter.step,
            dlq_id=message.letter.workflow_id,
            category=message.cycle.category.value,
            cycle=message.cycle.cycle,
            correlation_id=message.correlation_id,
        )
        if recorded.is_new:
            took = max(datetime.now(UTC) - message.at, timedelta(0))
            self._metrics.moved(message.pipeline, message.letter.step, message.cycle.category.value, took)
            if message.cycle.cycle > 1:
                self._metrics.replayed("exhausted")
        count = recorded.alert_count
        return LetterRecorded(state=recorded.state, alert=_alert(message, mark, count) if count else None)

    @activity.defn(name=Activity.RECORD_ORDER)
    async def record_order(self, request: OrderRequest) -> OrderRecorded:
        """Accept or refuse an order, and write that down. The same order again gets the first answer."""
        letter, order = request.letter, request.order
        written = order.model_copy(update={"reason": self._redactor.text(order.reason)})
        pool = await self._database.pool()
        earlier = await dead_letters.first_answer(pool, letter, order.request_id)
        if earlier:
            return OrderRecorded(answer=earlier, forward=await self._is_under_way(letter, earlier))
        verdict = _Verdict(request.refusal) if request.refusal else await self._check(letter, order)
        if verdict.problem is not None:
            answer = Answer(
                request_id=order.request_id,
                accepted=False,
                message=verdict.problem,
                status=request.status,
                orphaned=verdict.orphaned,
            )
            answer = await dead_letters.put_refused(pool, letter, written, answer, orphaned=verdict.orphaned)
        else:
            answer = Answer(
                request_id=order.request_id, accepted=True, message=verdict.message, status=status_after(order)
            )
            answer = await dead_letters.put_accepted(pool, letter, written, answer)
        if isinstance(order, Replay):
            self._metrics.replayed("accepted" if answer.accepted else "refused")
        log.info(
            "dead_letter.ordered",
            dlq_id=letter.workflow_id,
            run_id=letter.run_id,
            tenant_id=letter.tenant,
            operation=order.verb.value,
            request_id=order.request_id,
            user_id=order.requested_by,
            accepted=answer.accepted,
            error=verdict.problem,
        )
        return OrderRecorded(answer=answer, forward=await self._is_under_way(letter, answer))

    async def _is_under_way(self, letter: LetterId, answer: Answer) -> bool:
        """Tell whether an accepted order has to reach the run: not when it was carried out long ago."""
        return answer.accepted and await is_under_way(await self._database.pool(), letter, answer.request_id)

    @activity.defn(name=Activity.RECORD_OUTCOME)
    async def record_outcome(self, request: OutcomeRequest) -> None:
        """Write down how a replay ended."""
        await dead_letters.put_outcome(await self._database.pool(), request.letter, request.outcome)
        self._metrics.replayed(request.outcome.ending.value)
        log.info(
            "dead_letter.outcome",
            dlq_id=request.letter.workflow_id,
            run_id=request.letter.run_id,
            tenant_id=request.letter.tenant,
            outcome=request.outcome.ending.value,
        )

    @activity.defn(name=Activity.RECORD_REFUSAL)
    async def record_refusal(self, letter: LetterId, malformed: MalformedOrder) -> None:
        """Write down an order that could not be read."""
        info = activity.info()
        # The same for every try of this activity, so that it is written down once.
        once = f"{info.workflow_run_id}:{info.activity_id}"
        await dead_letters.put_malformed(await self._database.pool(), letter, malformed, once)
        log.warning("dead_letter.malformed_order", dlq_id=letter.workflow_id, error=malformed.problem)

    @activity.defn(name=Activity.RECORD_CONTINUE)
    async def record_continue(self, letter: LetterId, order: Continue, answer: Answer) -> None:
        """Write down a `continue` and its answer."""
        written = order.model_copy(update={"reason": self._redactor.text(order.reason)})
        await put_continue(await self._database.pool(), letter, written, answer)
        log.info(
            "run.continued",
            run_id=letter.run_id,
            tenant_id=letter.tenant,
            request_id=order.request_id,
            user_id=order.requested_by,
            accepted=answer.accepted,
        )

    @activity.defn(name=Activity.LOAD_LETTER)
    async def load_letter(self, letter: LetterId) -> LetterState | None:
        """Read the record's state."""
        return await dead_letters.load_state(await self._database.pool(), letter)

    async def _check(self, letter: LetterId, order: LetterOrder) -> "_Verdict":
        """Say whether the run stands against an order, and whether it is gone."""
        handle = self._client.get_workflow_handle(letter.run_id)
        try:
            description = await handle.describe()
            run: RunDocument = await handle.query(Query.DOCUMENT, result_type=RunDocument)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return _gone(order, "the run is not in Temporal any more: its history cannot be read")
            raise
        except WorkflowQueryFailedError as error:
            return _Verdict(f"the run does not answer: {error}")
        gone = description.status is not WorkflowExecutionStatus.RUNNING
        if isinstance(order, Restart):
            return await self._restart(letter, run.run) if gone else _Verdict("the run is open: replay it instead")
        if gone:
            return _gone(order, "the run has ended: `restart` starts it anew from this step")
        if run.parked_at != letter.step:
            where = f"parked at {run.parked_at!r}: order on its dead letter first" if run.parked_at else "not parked"
            return _Verdict(f"the run is {where}")
        return _Verdict(self._order_problem(letter, order, run), message=_MESSAGES[order.verb])

    async def _restart(self, letter: LetterId, run: RunInput) -> "_Verdict":
        """Start the next generation of a run that is gone, with the steps before the dead one done."""
        anew = restarted(run, letter)
        run_id = run_id_for_key(letter.tenant, run.key or letter.run_id, anew.generation)
        # Starting twice is one run: the id is computed.
        await start_run(self._client, self._task_queue, run_id, anew)
        return _Verdict(message=f"started anew as {run_id}")

    def _order_problem(self, letter: LetterId, order: LetterOrder, run: RunDocument) -> str | None:
        match order:
            case Replay():
                return self._replay_problem(letter, order, run)
            case Resolve():
                return self._output_problem(letter.step, order, run)
            case Discard() | Restart():
                return None

    def _replay_problem(self, letter: LetterId, order: Replay, run: RunDocument) -> str | None:
        names = [step.name for step in run.steps]
        first = order.from_step or letter.step
        allowed = names[: names.index(letter.step) + 1]
        if first not in allowed:
            return f"from_step {first!r}: not one of the steps up to the failed one ({', '.join(allowed)})"
        snapshot = run.steps[names.index(first)]
        if order.policy is not None:
            try:
                RetryPolicy.model_validate(snapshot.policy.model_dump() | order.policy)
            except ValidationError as error:
                return f"policy: {validation_sentence(error, self._redactor)}"
        return self._patch_problem(snapshot, order, run) if order.input_patch is not None else None

    def _patch_problem(self, snapshot: StepSnapshot, order: Replay, run: RunDocument) -> str | None:
        module = self._registry.modules.get(snapshot.name)
        if module is None:
            return f"module {snapshot.name!r} is not known to this worker: its input cannot be checked"
        patch = order.input_patch or {}
        earlier = run.run.state.patches.get(snapshot.name, []) if run.run.state else []
        unknown = sorted(patch.keys() - set(module.reads)) if module.reads is not None else []
        if unknown:
            known = ", ".join(module.reads or [])
            return f"input_patch.{unknown[0]}: {snapshot.name!r} reads no such field; it reads {known}"
        try:
            edited = patched(step_input(run.document, module.reads), [*earlier, patch])
            module.validate(edited)
        except ValidationError as error:
            sentence = validation_sentence(error, self._redactor)
            return f"input_patch: the edited input does not fit {snapshot.name!r}: {sentence}"
        return _size_problem("input_patch: the edited input", edited, PAYLOAD_LIMIT)

    def _output_problem(self, step: str, order: Resolve, run: RunDocument) -> str | None:
        module = self._registry.modules.get(step)
        if module is None:
            return f"module {step!r} is not known to this worker: the output cannot be checked"
        try:
            # By way of JSON, as a module's own output goes.
            module.output_model.model_validate_json(to_json(order.output))
        except ValidationError as error:
            return f"output: does not fit what {step!r} returns: {validation_sentence(error, self._redactor)}"
        return _size_problem("output", order.output, RESULT_LIMIT) or _size_problem(
            "payload and outputs together", run.document | {step: order.output}, DOCUMENT_LIMIT
        )


@dataclass(frozen=True)
class _Verdict:
    """What stands against an order, if anything; else what to tell the operator."""

    problem: str | None = None
    orphaned: bool = False
    message: str = ""


def _gone(order: LetterOrder, problem: str) -> _Verdict:
    """Judge an order for a run that is gone: only giving up needs no run."""
    if isinstance(order, Discard):
        return _Verdict(message="the run is gone already; the dead letter is closed")
    return _Verdict(problem, orphaned=True)


def _size_problem(what: str, value: object, limit: int) -> str | None:
    size = json_size(value)
    return f"{what}: {size} bytes; the limit is {limit} (pass a reference to large data)" if size > limit else None


_MESSAGES = {
    Verb.REPLAY: "the run goes on",
    Verb.RESOLVE: "the run goes on with the given output",
    Verb.DISCARD: "the run ends FAILED",
}


def _alert(message: Exhausted, mark: str, count: int) -> Alert:
    return Alert(
        letter=message.letter,
        pipeline=message.pipeline,
        fingerprint=mark,
        category=message.cycle.category.value,
        error_type=message.cycle.error_type,
        message=message.cycle.message[:1000],
        attempts=len(message.cycle.attempts),
        count=count,
    )


def _search_attributes(report: ExhaustedReport) -> TypedSearchAttributes:
    values = {
        SearchAttribute.TENANT: report.letter.tenant,
        SearchAttribute.PIPELINE: report.pipeline,
        SearchAttribute.STATUS: LetterStatus.PENDING,
        SearchAttribute.FAILED_STEP: report.letter.step,
        SearchAttribute.CATEGORY: report.cycle.category,
    }
    pairs = [SearchAttributePair(SearchAttributeKey.for_keyword(name), str(value)) for name, value in values.items()]
    return TypedSearchAttributes(pairs)
