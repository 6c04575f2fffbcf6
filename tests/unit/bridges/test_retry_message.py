"""The schema of RetryMessage: what protoc makes of it is what we read, and the code beside it is its code."""

import subprocess
import sys
from pathlib import Path

import pytest

from redrive.bridges.rabbitmq.retry_message_pb2 import RetryMessage

ROOT = Path(__file__).parents[3]
HOME = "redrive/bridges/rabbitmq"
SCHEMA = f"{HOME}/retry_message.proto"
TEXT = """
message_id: "0b2f6d3e-6c0a-4c53-9d0e-0d2f3a1b4c5d"
original_payload: "\\000\\377 anything"
original_queue: "billing.invoices"
error_reason: "timed out"
retry_count: 2
max_retries: 5
next_retry_at_ms: 1794787200000
"""
# The specification's own numbers: a sender in another language has no other contract.
NUMBERS = {
    "message_id": 1,
    "original_payload": 2,
    "original_queue": 3,
    "error_reason": 4,
    "retry_count": 5,
    "max_retries": 6,
    "next_retry_at_ms": 7,
}


def protoc(*words: str, given: bytes = b"") -> bytes:
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *words, SCHEMA]
    return subprocess.run(command, input=given, cwd=ROOT, capture_output=True, check=True).stdout


def test_bytes_of_protoc_are_read_field_by_field() -> None:
    """What protoc encodes from a text is read with every field as it was written."""
    message = RetryMessage.FromString(protoc("--encode=RetryMessage", given=TEXT.encode()))
    assert message.message_id == "0b2f6d3e-6c0a-4c53-9d0e-0d2f3a1b4c5d"
    assert message.original_payload == b"\x00\xff anything"
    assert (message.original_queue, message.error_reason) == ("billing.invoices", "timed out")
    assert (message.retry_count, message.max_retries, message.next_retry_at_ms) == (2, 5, 1794787200000)


def test_field_numbers_are_those_of_the_specification() -> None:
    """The names and numbers of the wire are fixed."""
    assert {field.name: field.number for field in RetryMessage.DESCRIPTOR.fields} == NUMBERS


@pytest.mark.parametrize("name", ["retry_message_pb2.py", "retry_message_pb2.pyi"])
def test_generated_code_fits_the_schema(name: str, tmp_path: Path) -> None:
    """The code in the repository is what protoc makes of the schema in the repository."""
    protoc(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}")
    made = (tmp_path / HOME / name).read_text()
    assert _code(made) == _code((ROOT / HOME / name).read_text())


def _code(text: str) -> list[str]:
    """Leave out the compiler's version, which may differ where it makes the same code."""
    lines = text.splitlines()
    starts = [index for index, line in enumerate(lines) if "ValidateProtobufRuntimeVersion(" in line]
    for start in starts:
        del lines[start : start + 8]
    return [line for line in lines if not line.startswith("# Protobuf Python Version")]
