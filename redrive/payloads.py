"""How values travel through Temporal: as JSON, by Pydantic. What cannot be decoded stays raw."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.contrib.pydantic import PydanticPayloadConverter, pydantic_data_converter
from temporalio.converter import CompositePayloadConverter, DataConverter

# Shared: Temporal's worker makes several converters for each workflow task, and each of Pydantic's takes long to make.
_CONVERTERS: Final = tuple(PydanticPayloadConverter().converters.values())


class TolerantPayloadConverter(CompositePayloadConverter):
    """Pydantic's converter, except that a payload without a type may have any encoding.

    Temporal gives no types when a workflow is started with more inputs than it takes, and for the details of errors.
    There, one payload that cannot be decoded would fail the workflow task again and again.
    """

    def __init__(self) -> None:
        super().__init__(*_CONVERTERS)

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """Decode payloads; without types, return those that cannot be decoded unchanged."""
        if type_hints:
            return super().from_payloads(payloads, type_hints)
        return [self._decoded(payload) for payload in payloads]

    def _decoded(self, payload: Payload) -> Any:
        try:
            return super().from_payloads([payload])[0]
        except (KeyError, ValueError, RuntimeError):
            return RawValue(payload)


data_converter: Final[DataConverter] = replace(
    pydantic_data_converter, payload_converter_class=TolerantPayloadConverter
)
