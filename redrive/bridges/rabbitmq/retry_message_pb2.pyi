from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class RetryMessage(_message.Message):
    __slots__ = ("message_id", "original_payload", "original_queue", "error_reason", "retry_count", "max_retries", "next_retry_at_ms")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_QUEUE_FIELD_NUMBER: _ClassVar[int]
    ERROR_REASON_FIELD_NUMBER: _ClassVar[int]
    RETRY_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_RETRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_RETRY_AT_MS_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    original_payload: bytes
    original_queue: str
    error_reason: str
    retry_count: int
    max_retries: int
    next_retry_at_ms: int
    def __init__(self, message_id: _Optional[str] = ..., original_payload: _Optional[bytes] = ..., original_queue: _Optional[str] = ..., error_reason: _Optional[str] = ..., retry_count: _Optional[int] = ..., max_retries: _Optional[int] = ..., next_retry_at_ms: _Optional[int] = ...) -> None: ...
