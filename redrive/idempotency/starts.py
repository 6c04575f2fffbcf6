"""Starts with an idempotency key: one run for one key, whoever asks, whenever, and whichever process crashes.

Two locks. The key's row in the store, created before the run is started, lasts as long as the key. The run id, computed
from the key, is the second: Temporal starts it once, and only Temporal decides who was first. So every caller that
finds a key without an end may try to start the run: at most one of them does.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.service import RPCError, RPCStatusCode

from redrive.contracts import (
    ClaimRequest,
    KeyStatus,
    RunInput,
    RunResult,
    RunStatus,
    StartedRun,
    Workflow,
)
from redrive.errors import IdempotencyMismatch, OutcomeUnknown, RedriveError, Unavailable
from redrive.fairness import turn_of
from redrive.idempotency.claims import Claim, ClaimResult, Claims, Settlement
from redrive.keys import check_ttl, request_hash, run_id_for_key
from redrive.starts import START_TIMEOUT, start_run
from redrive.visibility import execution_status

# Another caller may take the generation that this one asks for: then its row can be found.
_TRIES: Final = 5
# Temporal was not reached, or refused: this start has no run. After any other error there may be one.
_REFUSALS: Final = frozenset(
    {
        RPCStatusCode.INVALID_ARGUMENT,
        RPCStatusCode.NOT_FOUND,
        RPCStatusCode.PERMISSION_DENIED,
        RPCStatusCode.UNAUTHENTICATED,
        RPCStatusCode.FAILED_PRECONDITION,
        RPCStatusCode.RESOURCE_EXHAUSTED,
        RPCStatusCode.UNIMPLEMENTED,
        RPCStatusCode.OUT_OF_RANGE,
    }
)
_RELEASED_ON: Final = _REFUSALS | {RPCStatusCode.UNAVAILABLE}


@dataclass(frozen=True)
class KeyedStarts:
    """Start runs with their keys."""

    client: Client
    task_queue: str
    claims: Claims | None
    check: Callable[[RunInput], Awaitable[None]]
    eager: bool = False

    async def start(self, run: RunInput, ttl: timedelta) -> StartedRun:
        """Start the run of the request's key, or answer with the run that it has."""
        run.request_hash = request_hash(run.pipeline, run.payload)
        run.key_expires_at = datetime.now(UTC) + check_ttl(ttl)
        if self.claims:
            await self.claims.check_home(self.client)
        claim = await self._claim(run) if self.claims else None
        if claim is None:
            return await self._start_by_second_lock(run)
        _refuse_another(run, claim.request_hash)
        if claim.status is not KeyStatus.PROCESSING:
            return _answer(run, claim)
        if claim.verdict is ClaimResult.CLAIMED:
            return await self._start_or_release(run)
        description = await self._describe(claim.run_id)
        # Not there: whoever claimed the key died before the start, or is about to make it.
        return await self._start(run) if description is None else await self._existing(run, description)

    async def _claim(self, run: RunInput) -> Claim | None:
        """Claim the key; if its last generation is over, claim the next one."""
        for _ in range(_TRIES):
            claim = await self.claims.claim(_request(run)) if self.claims else None
            if claim is None and run.generation == 0:
                return None
            if claim is None:
                break
            if claim.verdict is not ClaimResult.FREE:
                run.generation = claim.generation
                return claim
            run.generation = claim.generation + 1
        raise OutcomeUnknown(
            f"key {run.key!r} is being claimed concurrently, or the database stopped answering: try the same key again"
        )

    async def _start_or_release(self, run: RunInput) -> StartedRun:
        """Start the run of a key that is ours; give the key back if it surely, or very likely, has no run.

        Giving it back is safe even if there is one: the next claim computes the same run id, and finds it. It is also
        given back if Temporal has a run of another request with the key: the row would have the wrong fingerprint.
        """
        try:
            return await self._start(run)
        except RedriveError as error:
            cause = error.__cause__
            if self.claims and (not isinstance(cause, RPCError) or cause.status in _RELEASED_ON):
                await self.claims.release(_request(run))
            raise

    async def _start_by_second_lock(self, run: RunInput) -> StartedRun:
        """Start on Temporal's lock alone. A worker writes the row of the key, at the latest when the run ends."""
        await self._have_key_recorded(run)
        started = await self._start(run)
        if self.claims and started.is_cached and started.status.closed:
            # It may have been reset, or have expired, since: only the store knows.
            raise OutcomeUnknown(
                f"key {run.key!r} has a run that ended ({started.run_id}), and the database that knows whether "
                "it may be started again does not answer: try the same key again"
            )
        return started

    async def _have_key_recorded(self, run: RunInput) -> None:
        """Have the key's row written when the database is back: a short run ends before that, and cannot write it."""
        if self.claims is None:
            return
        try:
            await record_key_later(self.client, self.task_queue, _request(run))
        except RPCError as error:
            raise _not_started(run, error) from error
        except RuntimeError as error:
            raise _never_connected(error) from error

    async def _start(self, run: RunInput) -> StartedRun:
        run_id = _run_id(run)
        await self.check(run)
        try:
            if await start_run(self.client, self.task_queue, run_id, run, eager=self.eager):
                return StartedRun(run_id=run_id, is_cached=False, status=RunStatus.RUNNING)
        except RPCError as error:
            raise _not_started(run, error) from error
        except RuntimeError as error:
            raise _never_connected(error) from error
        description = await self._describe(run_id)
        if description is None:
            raise OutcomeUnknown(f"the run of key {run.key!r} was there and is gone: try the same key again")
        _refuse_another(run, await known_hash(self.client, run_id))
        return await self._existing(run, description)

    async def _describe(self, run_id: str) -> WorkflowExecutionDescription | None:
        try:
            return await self.client.get_workflow_handle(run_id).describe(rpc_timeout=START_TIMEOUT)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise _unknown(run_id, error) from error

    async def _existing(self, run: RunInput, description: WorkflowExecutionDescription) -> StartedRun:
        """Answer with the run that Temporal has, and fix the row of its key if it lacks the end."""
        status = execution_status(description)
        if not status.closed:
            return StartedRun(run_id=description.id, is_cached=True, status=status)
        settlement = await outcome_of(self.client, description.id, status)
        if self.claims:
            await self.claims.settle(_request(run), settlement)
        return StartedRun(
            run_id=description.id, is_cached=True, status=status, response=settlement.output, error=settlement.error
        )


async def record_key_later(client: Client, task_queue: str, request: ClaimRequest) -> None:
    """Have a key's row written, by a workflow that waits for the database. Asked for twice, it is done once."""
    await client.start_workflow(
        Workflow.RECORD_KEY,
        request,
        id=f"record-key-{request.run_id}",
        task_queue=task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        priority=turn_of(request.tenant),
        rpc_timeout=START_TIMEOUT,
    )


async def known_hash(client: Client, run_id: str) -> str:
    """Return the fingerprint of the request that started a run, from the run itself: no store knows it."""
    history = client.get_workflow_handle(run_id).fetch_history_events(page_size=1, rpc_timeout=START_TIMEOUT)
    try:
        begin = await anext(history)
    except RPCError as error:
        raise _unknown(run_id, error) from error
    payloads = begin.workflow_execution_started_event_attributes.input.payloads
    (given,) = await client.data_converter.decode(payloads[:1]) or [None]
    # A run that was started by hand may have any input.
    return str(given.get("request_hash") or "") if isinstance(given, dict) else ""


def _never_connected(error: RuntimeError) -> Unavailable:
    """Return what a lazy client that was never connected means; the SDK's own error says little."""
    return Unavailable(f"Temporal cannot be reached ({str(error)[:200]}): try the same key again")


async def outcome_of(client: Client, run_id: str, status: RunStatus) -> Settlement:
    """Return the outcome of a run that has ended."""
    handle = client.get_workflow_handle(run_id, result_type=RunResult)
    try:
        result = await handle.result(rpc_timeout=START_TIMEOUT)
    except WorkflowFailureError as error:
        return Settlement(status=status, error=_reason(error.cause))
    except RPCError as error:
        raise _unknown(run_id, error) from error
    return Settlement(status=status, output=result.output)


def _reason(cause: BaseException) -> str:
    if isinstance(cause, CancelledError):
        return "the run was canceled"
    return cause.message if isinstance(cause, ApplicationError) else str(cause)


def _run_id(run: RunInput) -> str:
    return run_id_for_key(run.tenant, run.key or "", run.generation)


def _request(run: RunInput) -> ClaimRequest:
    return ClaimRequest(
        tenant=run.tenant,
        key=run.key or "",
        generation=run.generation,
        run_id=_run_id(run),
        pipeline=run.pipeline,
        request_hash=run.request_hash or "",
        expires_at=run.key_expires_at or datetime.now(UTC),
    )


def _refuse_another(run: RunInput, known: Any) -> None:
    """Refuse a request that is not the one that the key belongs to."""
    if known and known != run.request_hash:
        raise IdempotencyMismatch(run.key or "", known=str(known), given=run.request_hash or "")


def _answer(run: RunInput, claim: Claim) -> StartedRun:
    """Answer from the row alone."""
    done = claim.status is KeyStatus.COMPLETED
    elsewhere = done and not claim.has_response
    return StartedRun(
        run_id=claim.run_id,
        is_cached=True,
        status=claim.run_status or (RunStatus.SUCCESS if done else RunStatus.FAILED),
        response=claim.response,
        response_at=_response_at(run, claim) if elsewhere else None,
        error=claim.error,
    )


def _response_at(run: RunInput, claim: Claim) -> str:
    if claim.response_size is None:
        return f"redrive run status {claim.run_id} --json"
    return f"redrive keys show '{run.key}' --tenant {run.tenant} --json"


def _not_started(run: RunInput, error: RPCError) -> Unavailable:
    if error.status in _REFUSALS:
        return Unavailable(f"Temporal refused the start ({error.status.name.lower()}): {error.message[:300]}")
    return _unknown(_run_id(run), error)


def _unknown(run_id: str, error: RPCError) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"Temporal did not answer ({error.status.name.lower()}: {error.message[:200]}): whether {run_id} was started "
        "is not known; try the same key again, it starts at most one run"
    )
