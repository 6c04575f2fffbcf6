"""Traces in Temporal's headers. Invalid ones are left out: the SDK's reader would fail a task forever."""

from collections.abc import Sequence
from typing import Any, Final

from temporalio.api.common.v1 import Payload
from temporalio.contrib.opentelemetry import TracingInterceptor, TracingWorkflowInboundInterceptor
from temporalio.converter import DefaultPayloadConverter
from temporalio.worker import WorkflowInboundInterceptor, WorkflowInterceptorClassInput


class CarrierConverter(DefaultPayloadConverter):
    """Reads trace carriers: texts by name, or nothing."""

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """Decode headers; an invalid carrier is an empty one."""
        return [self._carrier(payload, type_hints) for payload in payloads]

    def _carrier(self, payload: Payload, type_hints: list[type] | None) -> dict[str, str]:
        try:
            (value,) = super().from_payloads([payload], type_hints)
        except (KeyError, ValueError, RuntimeError, RecursionError):
            return {}
        is_carrier = isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
        return value if is_carrier else {}


_CARRIERS: Final = CarrierConverter()


class _Inbound(TracingWorkflowInboundInterceptor):
    def __init__(self, next: WorkflowInboundInterceptor) -> None:  # noqa: A002 - the name is the SDK's
        super().__init__(next)
        self.payload_converter = _CARRIERS


class TolerantTracing(TracingInterceptor):
    """Passes traces on, and takes those that can be read."""

    def __init__(self) -> None:
        super().__init__()
        self.payload_converter = _CARRIERS

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[_Inbound]:  # noqa: A002 - see above
        """Return the interceptor of each workflow's headers."""
        super().workflow_interceptor_class(input)
        return _Inbound
