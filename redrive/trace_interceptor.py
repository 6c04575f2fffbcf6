"""Traces in Temporal's headers. What names no trace is left out: read by the SDK, it would fail a task for ever."""

from collections.abc import Sequence
from typing import Any, Final

from temporalio.api.common.v1 import Payload
from temporalio.contrib.opentelemetry import TracingInterceptor, TracingWorkflowInboundInterceptor
from temporalio.converter import DefaultPayloadConverter
from temporalio.worker import WorkflowInboundInterceptor, WorkflowInterceptorClassInput


class CarrierConverter(DefaultPayloadConverter):
    """Reads what names a trace: texts by name, or nothing."""

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """Decode headers; what is no carrier is an empty one."""
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
    """Hands traces on, and takes those that can be read."""

    def __init__(self) -> None:
        super().__init__()
        self.payload_converter = _CARRIERS

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[_Inbound]:  # noqa: A002 - see above
        """Return what looks at the headers of each workflow."""
        super().workflow_interceptor_class(input)
        return _Inbound
