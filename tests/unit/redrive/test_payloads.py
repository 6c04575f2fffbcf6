"""Payloads that nobody named a type for are decoded if they can be, and kept as they are if not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from redrive.payloads import TolerantPayloadConverter

CONVERTER = TolerantPayloadConverter()


class Order(BaseModel):
    """Anything."""

    n: int


@given(
    st.lists(
        st.builds(
            Payload,
            data=st.binary(max_size=20) | st.sampled_from([b"{}", b"[1]", b"null"]),
            metadata=st.dictionaries(
                st.sampled_from(["encoding", "messageType"]),
                st.sampled_from([b"json/plain", b"binary/plain", b"binary/null", b"json/protobuf", b"binary/protobuf"])
                | st.binary(max_size=12),
            ),
        ),
        max_size=4,
    )
)
def test_any_payloads_are_read_without_types(payloads: list[Payload]) -> None:
    """Whatever the encoding says and the bytes hold: one value for each, and no error."""
    assert len(CONVERTER.from_payloads(payloads)) == len(payloads)


def test_a_payload_that_cannot_be_decoded_comes_as_it_is() -> None:
    """The bytes are not lost."""
    payload = Payload(metadata={"encoding": b"binary/encrypted"}, data=b"x")
    assert CONVERTER.from_payloads([payload, CONVERTER.to_payloads([{"a": 1}])[0]]) == [RawValue(payload), {"a": 1}]


def test_a_named_type_is_still_demanded() -> None:
    """Results of activities must fit: an error there is one of ours."""
    assert CONVERTER.from_payloads(CONVERTER.to_payloads([Order(n=1)]), [Order]) == [Order(n=1)]
    with pytest.raises(ValueError, match="n"):
        CONVERTER.from_payloads(CONVERTER.to_payloads([{"n": "x"}]), [Order])
