"""Signals from a run to the workflows of its dead letters; a missing one is started."""

from temporalio import activity
from temporalio.client import Client
from temporalio.common import (
    RawValue,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)

from redrive.contracts import Activity, Workflow
from redrive.dead_letters import (
    SNAPSHOT_LIMIT,
    Exhausted,
    ExhaustedReport,
    LetterId,
    LetterInput,
    LetterSignal,
    LetterStatus,
)
from redrive.documents import json_size
from redrive.fairness import turn_of
from redrive.redaction.redactor import Redactor
from redrive.visibility import search_attributes

_OMITTED = {"omitted": f"larger than {SNAPSHOT_LIMIT} bytes; the run has it"}


class LetterSignals:
    """Signal dead letters. Signalling one twice is harmless."""

    def __init__(self, client: Client, redactor: Redactor, *, task_queue: str) -> None:
        self._client = client
        self._redactor = redactor
        self._task_queue = task_queue

    @activity.defn(name=Activity.REPORT_EXHAUSTED)
    async def report_exhausted(self, report: ExhaustedReport) -> None:
        """Report to the dead letter that its step is exhausted: the facts, redacted."""
        message = report.redacted(await self._snapshot(report), self._redactor.text)
        summary = f"{report.letter.step} of {report.pipeline}, tenant {report.letter.tenant}"
        attributes = search_attributes(
            tenant=report.letter.tenant,
            pipeline=report.pipeline,
            status=LetterStatus.PENDING,
            failed_step=report.letter.step,
            category=report.cycle.category,
        )
        await self._signal(report.letter, LetterSignal.EXHAUSTED, message, attributes=attributes, summary=summary)

    @activity.defn(name=Activity.SIGNAL_LETTER)
    async def signal_letter(self, letter: LetterId, signal: str, raw: RawValue) -> None:
        """Signal the dead letter: one that was closed or terminated reads its record and answers."""
        await self._signal(letter, signal, raw)

    async def _signal(
        self,
        letter: LetterId,
        signal: str,
        message: Exhausted | RawValue,
        *,
        attributes: TypedSearchAttributes | None = None,
        summary: str | None = None,
    ) -> None:
        await self._client.start_workflow(
            Workflow.DEAD_LETTER,
            LetterInput(letter=letter),
            id=letter.workflow_id,
            task_queue=self._task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            start_signal=signal,
            start_signal_args=[message],
            search_attributes=attributes,
            static_summary=summary,
            priority=turn_of(letter.tenant),
        )

    async def _snapshot(self, report: ExhaustedReport) -> object:
        # Measured first: what is not kept is not redacted.
        if json_size(report.document) > SNAPSHOT_LIMIT:
            return _OMITTED
        payload = await self._redactor.value_aside(report.document)
        return _OMITTED if json_size(payload) > SNAPSHOT_LIMIT else payload
