"""A run of a test, in memory or on a server: what it is started with, how it went, and the commands that it takes."""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from redrive.contracts import DEFAULT_TENANT, Attempt, FailedCycle, RunInput, RunStatus, RunView, StepStatus
from redrive.dead_letters import COMMANDS, Command, Mode, Verb
from redrive.documents import check_payload, validated_run_input
from redrive.input_rules import check_fits
from redrive.modules import Module

Out = TypeVar("Out", bound=BaseModel)
Payload = BaseModel | Mapping[str, Any]


class StartOptions(TypedDict, total=False):
    """What a run may be started with."""

    run_id: str
    tenant: str
    user_id: str
    correlation_id: str
    labels: Mapping[str, str]


class Run(ABC):
    """A run that has come to rest: it has ended, or it is parked at a step and takes commands."""

    view: RunView
    outputs: dict[str, Any]
    failures: dict[str, FailedCycle]
    """How steps were exhausted the last time, by step."""

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.view.run_id

    @property
    def status(self) -> RunStatus:
        """Where the run is."""
        return self.view.status

    @property
    def error(self) -> str | None:
        """Why the run is parked, or has failed."""
        return self.view.error

    @property
    def parked_at(self) -> str | None:
        """The step that waits for a command."""
        return next((step.name for step in self.view.steps if step.status is StepStatus.DLQ), None)

    @property
    def output(self) -> Any:
        """What the last step returned, as JSON; None while it has not."""
        return self.outputs.get(self.view.steps[-1].name)

    def output_of(self, module: Module[Any, Out]) -> Out:
        """Return what a step returned."""
        if module.name not in self.outputs:
            raise LookupError(f"step {module.name!r} has no output; the run is {self.status}: {self.error}")
        return module.output_model.model_validate(self.outputs[module.name])

    def attempts(self, step: str | Module[Any, Any]) -> list[Attempt]:
        """Return the failed attempts of a step's last cycle, each with its category and the delay that followed."""
        name = step if isinstance(step, str) else step.name
        found = next((each for each in self.view.steps if each.name == name), None)
        if found is None:
            raise LookupError(f"no step {name!r}; the run has {', '.join(each.name for each in self.view.steps)}")
        return found.attempts

    async def replay(
        self,
        *,
        input_patch: dict[str, Any] | None = None,
        policy: dict[str, Any] | None = None,
        from_step: str | None = None,
        mode: Mode = Mode.FROM_STEP,
    ) -> None:
        """Replay the parked step, as an operator does. Raises CommandRefused."""
        await self._command(Verb.REPLAY, input_patch=input_patch, policy=policy, from_step=from_step, mode=mode)

    async def resolve(self, output: Payload) -> None:
        """Let the run continue as if the parked step had returned this. Raises CommandRefused."""
        await self._command(Verb.RESOLVE, output=to_jsonable_python(output))

    async def discard(self) -> None:
        """Give the parked step up: the run fails. Raises CommandRefused."""
        await self._command(Verb.DISCARD)

    async def continue_(self) -> None:
        """Let the run continue after a STEP_ONLY replay. Raises CommandRefused."""
        await self._command(Verb.CONTINUE)

    async def _command(self, verb: Verb, **fields: Any) -> None:
        given = {"verb": verb, "request_id": uuid.uuid4().hex, "requested_by": "test", "reason": "a test"}
        await self._send(COMMANDS.validate_python(given | fields))

    @abstractmethod
    async def _send(self, command: Command) -> None:
        """Carry a command out and wait until the run has come to rest again."""


def run_input(pipeline: str, modules: Sequence[Module[Any, Any]], payload: Payload, options: StartOptions) -> RunInput:
    """Return the input of a run, or raise why it cannot start: what a start checks."""
    checked = check_payload(payload.model_dump(mode="json") if isinstance(payload, BaseModel) else payload)
    check_fits([module.shape for module in modules], checked)
    return validated_run_input(
        pipeline=pipeline,
        payload=checked,
        tenant=options.get("tenant", DEFAULT_TENANT),
        user_id=options.get("user_id"),
        correlation_id=options.get("correlation_id"),
        labels=dict(options.get("labels", {})),
    )
