"""Modules as steps of any workflow: run, and run again, by the same code as a pipeline's steps. Deterministic.

The step's activity is that of Redrive's worker: policy, deadline, classes of errors, attempts and keys are its own.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

from redrive.categories import Category
from redrive.contracts import FailedCycle, StepInput, StepSnapshot, StepState
from redrive.dead_letters import OperationKind, OperationOptions, ReplayOptions
from redrive.documents import check_payload, json_size, step_input, validation_sentence
from redrive.errors import InvalidInput
from redrive.field_types import header_problem
from redrive.module_edits import completed_output, edited_input
from redrive.modules import Module, hidden_names
from redrive.plugin.operations import Misfit, Operation, canceled_activity
from redrive.plugin.options import Options, are_errors_raised, errors_raised
from redrive.plugin.parking import Parking
from redrive.policy import RetryPolicy
from redrive.redaction.redactor import Redactor
from redrive.workflows.failures import failed_cycle
from redrive.workflows.step_execution import StepExecution


class ModuleSteps:
    """The modules that one workflow run calls."""

    def __init__(self, parking: Parking, options: Options) -> None:
        self._parking = parking
        self._options = options
        self._execution = StepExecution()
        self._calls: Counter[str] = Counter()

    async def run(
        self, module: Module[Any, Any], given: BaseModel | Mapping[str, Any], policy: RetryPolicy | None, **asked: Any
    ) -> Any:
        """Run a module until it has succeeded, or somebody has decided about it."""
        self._calls[module.name] += 1
        step = self._step(module, policy, asked)
        operation = ModuleOperation(module, step, self._execution, self._options)
        raised = are_errors_raised()
        try:
            return await operation.run(given)
        except FailureError as error:
            rescue = None if raised else self._parking.rescue(operation, error)
            if rescue is None:
                raise
        return await rescue

    def _step(self, module: Module[Any, Any], policy: RetryPolicy | None, asked: dict[str, Any]) -> StepInput:
        info = workflow.info()
        snapshot = module.snapshot()
        changes = {"policy": policy or snapshot.policy, "fast": snapshot.fast and self._options.has_modules}
        return StepInput(
            run_id=info.workflow_id,
            tenant=self._options.tenant_of(info),
            pipeline=info.workflow_type,
            step=snapshot.model_copy(update=changes),
            document={},
            execution=info.original_execution_run_id,
            call=self._calls[module.name],
            **_sendable(asked, info),
        )


CURRENT: Final[ContextVar[ModuleSteps]] = ContextVar("redrive_module_steps")


class ModuleOperation(Operation):
    """One call of a module."""

    kind = OperationKind.MODULE
    # Whoever calls `run_module` has the plugin.
    is_marked = False

    def __init__(self, module: Module[Any, Any], step: StepInput, execution: StepExecution, options: Options) -> None:
        self._module = module
        self._step = step
        self._execution = execution
        self._queue = options.task_queue
        self.name = module.name

    async def run(self, given: BaseModel | Mapping[str, Any]) -> Any:
        """Run the module for the first time."""
        try:
            document = given.model_dump(mode="json", by_alias=True) if isinstance(given, BaseModel) else dict(given)
            self._change(document=step_input(document, self._module.reads))
            check_payload(self._step.document)
        except InvalidInput as error:
            raise ApplicationError(str(error), type=Category.VALIDATION, non_retryable=True) from None
        return await self._run()

    async def run_again(self, options: ReplayOptions) -> Any:
        """Run it again: the next cycle. Another input has other keys; another policy is for this cycle."""
        usual = self._step.step
        self._change(cycle=self._step.cycle + 1)
        if options.input_patch is not None:
            self._change(document=self._edited(options.input_patch), version=self._step.version + 1)
        self._change(step=self._with_policy(options.policy))
        try:
            return await self._run()
        finally:
            self._change(step=usual)

    async def _run(self) -> Any:
        with errors_raised():
            result = await self._execution.run(self._step, self._queue or workflow.info().task_queue)
        try:
            return self._module.output_model.model_validate(result.output)
        except ValidationError as error:
            sentence = f"{self.name!r} returned what its own model does not read: {validation_sentence(error)}"
            raise ApplicationError(sentence, type=Category.SERIALIZATION, non_retryable=True) from None

    @property
    def options(self) -> OperationOptions:
        """The module's policy."""
        policy = self._step.step.policy
        return OperationOptions(
            kind=self.kind,
            task_queue=self._queue,
            base=policy.base,
            factor=policy.factor,
            cap=policy.cap,
            max_attempts=policy.max_attempts,
            timeout=policy.timeout,
            deadline=policy.deadline,
        )

    @property
    def document(self) -> dict[str, Any]:
        """The module's input."""
        return self._step.document

    @property
    def size(self) -> int:
        """The size of its input."""
        return json_size(self._step.document)

    @property
    def hidden(self) -> Sequence[str]:  # type: ignore[override]  # found only when it has failed
        """The names of its `Hidden` fields."""
        return sorted(hidden_names([self._module.view()]))

    def is_unexpected(self, error: BaseException) -> bool:
        """Tell whether it is a failure. The step's activity calls all of its errors benign: it logs them itself."""
        return not is_cancelled_exception(error)

    def failed_cycle(self, error: BaseException, cycle: int) -> FailedCycle:
        """Return how it failed, with each attempt."""
        if not isinstance(error, ActivityError):
            return super().failed_cycle(error, cycle)
        step = StepState(name=self.name, cycle=cycle, max_attempts=self._step.step.policy.max_attempts)
        return failed_cycle(error, step, workflow.now())

    def check(self, options: ReplayOptions) -> None:
        """Raise Misfit if the edited input or the policy does not fit."""
        self._with_policy(options.policy)
        if options.input_patch is not None:
            self._edited(options.input_patch)

    def result(self, value: Any) -> Any:
        """Return a value as the module's output. Raise Misfit if it does not fit its model."""
        try:
            return self._module.output_model.model_validate(completed_output(self._module, value, self._redactor()))
        except InvalidInput as error:
            raise Misfit(str(error)) from None

    def canceled(self, error: BaseException) -> BaseException:
        """Return what is raised when it is canceled while it is parked."""
        return canceled_activity(error)

    def _edited(self, patch: dict[str, Any]) -> dict[str, Any]:
        try:
            return edited_input(self._module, self._step.document, [patch], self._redactor())
        except InvalidInput as error:
            raise Misfit(str(error)) from None

    def _with_policy(self, fields: dict[str, Any] | None) -> StepSnapshot:
        step = self._step.step
        try:
            policy = RetryPolicy.model_validate(step.policy.model_dump() | (fields or {}))
        except ValidationError as error:
            raise Misfit(f"policy: {validation_sentence(error)}") from None
        return step.model_copy(update={"policy": policy})

    def _redactor(self) -> Redactor:
        return Redactor(self.hidden)

    def _change(self, **changes: Any) -> None:
        self._step = self._step.model_copy(update=changes)


def _sendable(asked: dict[str, Any], info: workflow.Info) -> dict[str, Any]:
    """Return who asked, and the id that all calls send. A workflow's id may be anything; a header may not."""
    for name, value in asked.items():
        problem = header_problem(value) if value is not None else None
        if problem:
            raise ApplicationError(
                f"{name}: it is sent as an HTTP header and {problem}", type=Category.VALIDATION, non_retryable=True
            )
    own = info.workflow_id if header_problem(info.workflow_id) is None else info.original_execution_run_id
    return asked | {"correlation_id": asked.get("correlation_id") or own}
