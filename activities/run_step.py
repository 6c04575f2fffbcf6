"""Attempt a step once: validate, call the module within its deadline, serialise, classify.

All of that happens inside the activity, because Temporal blindly retries what fails outside of it (its own decoding,
encoding and timeouts).
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import structlog
from pydantic import ValidationError
from pydantic_core import from_json
from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from redrive.activities.attempts import (
    earlier_attempts,
    failure_message,
    packed_result,
    plain_result,
    redacted_stack,
    redacted_text,
    to_details,
    validated_input,
    with_attempt,
)
from redrive.activities.fast_attempts import check_may_be_fast, is_unreported, reported_again
from redrive.activities.module_threads import ModuleThreads
from redrive.activities.run_records import StepRecords
from redrive.activities.step_slots import StepSlots
from redrive.categories import Category
from redrive.classify import Classification, classify
from redrive.contracts import (
    DEBUG_TIMEOUT,
    Activity,
    Attempt,
    AttemptError,
    StepInput,
)
from redrive.documents import validation_sentence
from redrive.errors import Terminal
from redrive.http import ServiceClient
from redrive.keys import step_key
from redrive.logs import get_logger
from redrive.metrics import Metrics
from redrive.modules import Module, ModuleContext, Registry
from redrive.redaction.redactor import Redactor
from redrive.resources import Started
from redrive.retry import next_delay
from redrive.settings import ServiceSettings
from redrive.store.runs import Execution
from redrive.threads import on_loop
from redrive.tracing import labelled, mark_failed, note

HEARTBEAT_INTERVAL = timedelta(seconds=2)

log = get_logger(__name__)


@dataclass(frozen=True)
class _Try:
    """One attempt: the step input, the attempt's number and what came before it."""

    given: StepInput
    number: int
    earlier: list[Attempt]
    cycle_ends: datetime | None

    @property
    def time_left(self) -> timedelta:
        """How long this attempt may take: its timeout, or what is left for all attempts."""
        timeout = self.given.step.policy.timeout
        return timeout if self.cycle_ends is None else min(timeout, self.cycle_ends - datetime.now(UTC))

    def unhurried(self) -> "_Try":
        """Return the same attempt with a day's time."""
        policy = self.given.step.policy.model_copy(update={"timeout": DEBUG_TIMEOUT, "deadline": None})
        step = self.given.step.model_copy(update={"policy": policy})
        return replace(self, given=self.given.model_copy(update={"step": step}), cycle_ends=None)

    @property
    def max_attempts(self) -> int:
        return self.given.step.policy.max_attempts

    def log_fields(self) -> dict[str, Any]:
        given = self.given
        return {
            # Ours are last: a label cannot take the place of a field.
            **given.labels,
            "run_id": given.run_id,
            "tenant_id": given.tenant,
            "pipeline": given.pipeline,
            "module_id": given.step.name,
            "step": given.place,
            "cycle": given.cycle,
            "attempt": self.number,
            "max_attempts": self.max_attempts,
            "correlation_id": given.correlation_id,
            "request_id": given.correlation_id,
            "user_id": given.user_id,
            **({"event_id": given.event_id} if given.event_id else {}),
            "idempotency_key": self.key_for("run"),
        }

    def key_for(self, operation: str) -> str:
        """Return the key of one of the step's operations."""
        return step_key(self.given.scope, self.given.place, operation, self.given.version)

    @property
    def execution(self) -> Execution:
        """The key of a stored result."""
        given = self.given
        # One inside a lost workflow task is followed by an ordinary first attempt, which is newer.
        fence = 0 if activity.info().is_local else self.number
        return Execution(given.tenant, self.key_for("run"), given.run_id, given.step.name, given.cycle, fence)


class StepActivities:
    """Run modules of a registry as Temporal activities."""

    def __init__(
        self,
        registry: Registry,
        http: httpx.AsyncClient,
        *,
        services: Mapping[str, ServiceSettings],
        user_header: str,
        private_addresses: bool,
        build_id: str,
        redactor: Redactor,
        metrics: Metrics,
        records: StepRecords,
        slots: StepSlots,
        threads: ModuleThreads,
        resources: Started,
        keeps_ends: bool = False,
        debug: bool = False,
    ) -> None:
        """`keeps_ends`: this worker's runs hand it their end themselves, if their last step is fast."""
        self._slots = slots
        self._threads = threads
        self._resources = resources
        self._keeps_ends = keeps_ends
        self._debug = debug
        self._registry = registry
        self._http = http
        self._services = services
        self._user_header = user_header
        self._private_addresses = private_addresses
        self._build_id = build_id
        self._redactor = redactor
        self._metrics = metrics
        self._records = records

    @activity.defn(name=Activity.RUN_STEP)
    async def run_step(self, raw: RawValue) -> RawValue:
        """Attempt a step once and return its serialised result, or raise a classified error."""
        this = _read_try(raw)
        if self._debug:
            this = this.unhurried()
        info = activity.info()
        if info.is_local:
            await check_may_be_fast(this.given)
        elif this.given.failed and is_unreported(this.given.failed):
            raise reported_again(this.given.failed)
        with self._slots.held(this.given.tenant, info.task_queue, this.earlier, is_local=info.is_local):
            return await self._try(this)

    async def _try(self, this: _Try) -> RawValue:
        # A run that was started past our client may have anything in them. Log lines are redacted elsewhere.
        labels = {name: self._redactor.text(value) for name, value in this.given.labels.items()}
        fields = this.log_fields()
        with structlog.contextvars.bound_contextvars(**fields), labelled(labels), _heartbeats(this.earlier):
            log.debug("step.started")
            note(**fields)
            self._metrics.attempted(this.given.pipeline, this.given.step.name)
            began = time.monotonic()
            try:
                result = await self._attempt(this)
            except asyncio.CancelledError as error:
                if _was_canceled():
                    log.info("step.canceled")
                    raise
                raise await self._failure(this, error) from None
            except BaseException as error:  # a module may raise anything; sys.exit must not end the worker
                raise await self._failure(this, error) from None
            took = time.monotonic() - began
            log.info("step.succeeded", latency_ms=round(took * 1000, 1))
            await self._records.ended(this.given, this.number)
            if this.given.event_id:
                await self._records.projected(this.given, this.number, timedelta(seconds=took))
            keeps_end = self._keeps_ends and activity.info().is_local
            return packed_result(result, this.number, this.earlier, keeps_end=keeps_end)

    async def _attempt(self, this: _Try) -> Any:
        """Call the module within its time and return its output as plain JSON."""
        module = self._module(this.given.step.name)
        given = validated_input(module, this.given.document, self._redactor)
        if this.time_left <= timedelta(0):
            raise TimeoutError

        async def call() -> Any:
            return plain_result(module, await self._threads.call(module, self._context(this), given))

        async with asyncio.timeout(this.time_left.total_seconds()):
            return await self._records.once(this.execution, call) if module.dedupe else await call()

    def _module(self, name: str) -> Module[Any, Any]:
        try:
            return self._registry.modules[name]
        except KeyError:
            known = ", ".join(sorted(self._registry.modules)) or "none"
            raise Terminal(
                f"module {name!r} is not known to this worker; known: {known}", category=Category.UNKNOWN_MODULE
            ) from None

    def _context(self, this: _Try) -> ModuleContext:
        given = this.given
        return ModuleContext(
            run_id=given.run_id,
            step=given.place,
            pipeline=given.pipeline,
            tenant=given.tenant,
            attempt=this.number,
            max_attempts=this.max_attempts,
            correlation_id=given.correlation_id,
            user_id=given.user_id,
            deadline=datetime.now(UTC) + this.time_left,
            log=get_logger(f"module.{given.step.name}"),
            http=ServiceClient(
                self._http,
                services=self._services,
                user_id=given.user_id,
                user_header=self._user_header,
                private_addresses=self._private_addresses,
                request_id=given.correlation_id,
                key_for=this.key_for,
            ),
            heartbeat=on_loop(_beat(this.earlier)),
            version=given.version,
            labels=given.labels,
            counters=self._records.counters(given),
            resources=self._resources,
            execution=given.execution,
        )

    async def _failure(self, this: _Try, error: BaseException) -> ApplicationError:
        """Turn a module's error into what Temporal needs: retry after a delay, or not."""
        policy = this.given.step.policy
        found = classify(error, policy)
        delay = _delay(this, found)
        module = self._registry.modules.get(this.given.step.name)
        message = redacted_text(
            failure_message(error, found, policy, this.time_left, module=module, redactor=self._redactor),
            self._redactor,
        )
        entry = Attempt(
            attempt=this.number,
            at=datetime.now(UTC),
            category=found.category,
            error_type=type(error).__name__,
            error=message,
            delay=delay,
        )
        attempts = with_attempt(this.earlier, entry)
        _log_failure(entry, found)
        mark_failed(category=entry.category, error_type=entry.error_type)
        if delay is None:
            await self._records.ended(this.given, this.number)
        else:
            self._metrics.retried(this.given.pipeline, this.given.step.name, found.category.value)
            await self._records.retried(this.given, entry, delay)
            # The last heartbeat before the error: one in between would tell the next attempt less.
            _beat(attempts)()
        details = AttemptError(
            attempts=attempts,
            error_type=entry.error_type,
            stack=redacted_stack(error, self._redactor),
            build_id=self._build_id,
        )
        return ApplicationError(
            message,
            details,
            type=found.category,
            non_retryable=delay is None,
            # On a local activity, the SDK logs it as a panic. The run takes the delay from the details.
            next_retry_delay=None if activity.info().is_local else delay,
            # Logged by us, with fields; Temporal's warning would repeat it with a traceback.
            category=ApplicationErrorCategory.BENIGN,
        )


def _read_try(raw: RawValue) -> _Try:
    info = activity.info()
    try:
        given = StepInput.model_validate(from_json(raw.payload.data))
    except ValueError as error:
        sentence = validation_sentence(error) if isinstance(error, ValidationError) else str(error)
        raise ApplicationError(
            f"the step's input cannot be read: {sentence}", type=Category.VALIDATION, non_retryable=True
        ) from None
    prior = given.failed.attempts if given.failed else given.prior
    # Only some of many earlier attempts are logged; the last one always is.
    number = info.attempt + (prior[-1].attempt if prior and not given.failed else 0)
    earlier = earlier_attempts(prior, info.heartbeat_details, number, info.current_attempt_scheduled_time)
    return _Try(given, number, earlier, _cycle_end(info, given))


def _cycle_end(info: activity.Info, given: StepInput) -> datetime | None:
    """Return when the time for all attempts ends, by this machine's clock."""
    deadline = given.step.policy.deadline
    if deadline is None:
        return None
    # Both times are the server's, so that a wrong local clock changes nothing.
    return datetime.now(UTC) + deadline - given.spent - (info.started_time - info.scheduled_time)


def _delay(this: _Try, found: Classification) -> timedelta | None:
    """Return the delay before the next attempt, or None if there is none."""
    left = None if this.cycle_ends is None else this.cycle_ends - datetime.now(UTC)
    return next_delay(found, this.number, this.given.step.policy, left)


def _log_failure(entry: Attempt, found: Classification) -> None:
    fields = {
        "category": entry.category.value,
        "error_type": entry.error_type,
        "error": entry.error,
        "http_status": found.http_status,
    }
    if entry.delay is None:
        log.warning("step.exhausted", retryable=False, **fields)
    else:
        log.warning("step.failed", retryable=True, delay_ms=round(entry.delay.total_seconds() * 1000), **fields)


def _was_canceled() -> bool:
    """Distinguish a cancellation of this attempt from one that the module caused itself."""
    return activity.is_cancelled()


def _beat(earlier: list[Attempt]) -> Callable[[], None]:
    if activity.info().is_local:
        return lambda: None
    details = to_details(earlier)

    def beat() -> None:
        activity.heartbeat(details)

    return beat


@contextlib.contextmanager
def _heartbeats(earlier: list[Attempt]) -> Iterator[None]:
    """Heartbeat while the attempt runs, so that a cancellation reaches it and a dead worker is noticed early."""
    loop = asyncio.get_running_loop()
    beat = _beat(earlier)
    handle: asyncio.TimerHandle

    def beat_again() -> None:
        nonlocal handle
        beat()
        handle = loop.call_later(HEARTBEAT_INTERVAL.total_seconds(), beat_again)

    handle = loop.call_later(HEARTBEAT_INTERVAL.total_seconds(), beat_again)
    try:
        yield
    finally:
        handle.cancel()
