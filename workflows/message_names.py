"""The names of the signals and updates that a workflow takes, for Temporal's Web UI.

Each workflow takes all of its messages in one dynamic handler, which has no name: what cannot be read is then answered,
not dropped. Asked for its messages, it would offer one entry without a name.
"""

from collections.abc import Mapping
from typing import Any, Final

from temporalio.api.sdk.v1 import WorkflowInteractionDefinition, WorkflowMetadata
from temporalio.worker import (
    HandleQueryInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from redrive.bulk import BulkControl
from redrive.contracts import Workflow
from redrive.dead_letters import Verb

_METADATA: Final = "__temporal_workflow_metadata"
_LETTER: Final[Mapping[str, str]] = {
    Verb.REPLAY: "run the failed step again",
    Verb.RESOLVE: "go on with a given output",
    Verb.DISCARD: "give it up: the run fails",
}
_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    Workflow.MODULE_RUN: {**_LETTER, Verb.CONTINUE: "go on with the later steps, after a replay of one step"},
    Workflow.DEAD_LETTER_QUEUE: _LETTER,
    Workflow.DEAD_LETTER: _LETTER,
    Workflow.BULK_REPLAY: {
        BulkControl.PAUSE: "send nothing more for now",
        BulkControl.RESUME: "continue after a pause",
        BulkControl.STOP: "end it: the rest is skipped",
    },
}


class MessageNames(Interceptor):
    """Name the messages that Redrive's own workflows take."""

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:  # noqa: A002, ARG002
        """Return the interceptor that answers which messages there are."""
        return _MessageNames


class _MessageNames(WorkflowInboundInterceptor):
    async def handle_query(self, input: HandleQueryInput) -> Any:  # noqa: A002 - the name is the SDK's
        answer = await super().handle_query(input)
        if input.query == _METADATA and isinstance(answer, WorkflowMetadata):
            _name(answer)
        return answer


def _name(answer: WorkflowMetadata) -> None:
    names = _NAMES.get(answer.definition.type)
    if names is None:
        return
    named = [WorkflowInteractionDefinition(name=name, description=text) for name, text in sorted(names.items())]
    for found in (answer.definition.signal_definitions, answer.definition.update_definitions):
        del found[:]
        found.extend(named)
