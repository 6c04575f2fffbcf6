"""Events: how a producer writes one, and how a projector reads it. Pure.

A producer puts one JSON document on a stream (`Envelope`). It is stored once for each dedupe key, and becomes a run
whose payload is `{"event": ...}`; the run's steps are the event's projectors:

    class Answers(BaseModel):
        score: int

    class Given(BaseModel):
        event: Event[Answers]

    @module("qscore")
    async def qscore(ctx: ModuleContext, given: Given) -> Score: ...
"""

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from redrive.contracts import MESSAGE_ELEMENT_LIMIT, PAYLOAD_LIMIT, Name, Text255
from redrive.documents import check_payload, json_problem, parse_json, validation_sentence
from redrive.errors import InvalidInput, TooLarge
from redrive.field_types import HeaderText, LabelValue, Moment
from redrive.keys import check_identifiers, check_key, shown_identifier

ANY_TYPE: Final = "*"
_ENVELOPE_LIMIT: Final = PAYLOAD_LIMIT + 16 * 1024
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9]+")
_LABEL: Final[TypeAdapter[str]] = TypeAdapter(LabelValue)
_LARGEST_NUMBER: Final = 10**30


def _key(value: str) -> str:
    try:
        return check_key(value)
    except InvalidInput as error:
        raise ValueError(str(error)) from None


class Envelope(BaseModel):
    """What a producer writes: camel case as in `dedupeKey`. Unknown fields are left out."""

    model_config = ConfigDict(extra="ignore", alias_generator=to_camel, populate_by_name=True, frozen=True)

    dedupe_key: Annotated[str, AfterValidator(_key)]
    type: Text255
    source: Text255
    payload: dict[str, Any] = Field(default_factory=dict)
    tenant: Name | None = None
    user_id: HeaderText | None = None
    correlation_id: HeaderText | None = None
    occurred_at: Moment | None = None


Payload = TypeVar("Payload")


class Event(BaseModel, Generic[Payload]):
    """An event as a projector reads it. `Event[MyPayload]` has a validated payload."""

    id: str
    dedupe_key: str
    type: str
    source: str
    user_id: str | None = None
    occurred_at: Moment | None = None
    payload: Payload


def parse_envelope(body: bytes) -> Envelope:
    """Read what a producer wrote, or raise what is wrong with it."""
    if len(body) > _ENVELOPE_LIMIT:
        raise TooLarge(f"event: {len(body)} bytes; the limit is {_ENVELOPE_LIMIT} (pass a reference to large data)")
    try:
        value = parse_json(body, MESSAGE_ELEMENT_LIMIT)
    except TooLarge as error:
        raise TooLarge(f"event: {error}") from None
    except ValueError as error:
        raise InvalidInput(f"event: not valid JSON: {error}") from None
    problem = json_problem(value, MESSAGE_ELEMENT_LIMIT)
    if problem:
        raise InvalidInput(f"event{problem}")
    try:
        envelope = Envelope.model_validate(value)
    except ValidationError as error:
        raise InvalidInput(f"event: {validation_sentence(error)}") from None
    check_payload(envelope.payload)
    check_identifiers(
        dedupeKey=envelope.dedupe_key,
        type=envelope.type,
        source=envelope.source,
        userId=envelope.user_id,
        correlationId=envelope.correlation_id,
    )
    return envelope


def event_document(event_id: str, event: BaseModel) -> dict[str, Any]:
    """Return the document that an event's projectors read."""
    return {"event": Event[Any].model_validate(event.model_dump() | {"id": event_id}).model_dump(mode="json")}


def event_id_for(tenant: str, dedupe_key: str) -> str:
    """Return the id of the event with this dedupe key."""
    return "event-" + _digest(tenant, dedupe_key)


def dead_event_id_for(tenant: str, stream: str, message_id: str, body: bytes) -> str:
    """Return the id of a message that could not become a tenant's run."""
    return "dead-event-" + _digest(tenant, stream, message_id, hashlib.sha256(body).hexdigest())


def pipeline_for(event_type: str, pipelines: Mapping[str, str]) -> str:
    """Return the pipeline of an event type: the one set for it, or for `*`, or the one of the same name.

    Names of pipelines have hyphens: `interview.completed` is `interview-completed`.
    """
    by_name = _NOT_IN_NAMES.sub("-", event_type.lower()).strip("-")
    return pipelines.get(event_type) or pipelines.get(ANY_TYPE) or by_name


def event_labels(payload: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of an event's run: the fields of its payload by the names of the labels.

    What is missing, cannot be a label, or looks like a secret is left out: no event is refused for it.
    """
    found = {name: _label(payload.get(field)) for name, field in fields.items()}
    return {name: value for name, value in found.items() if value is not None}


def _label(value: object) -> str | None:
    is_number = isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST_NUMBER
    if not is_number and not isinstance(value, str):
        return None
    try:
        text = _LABEL.validate_python(str(value))
    except ValidationError:
        return None
    return text if shown_identifier(text) == text else None


def _digest(*parts: str) -> str:
    # Lengths first, so that no two lists of parts share a text.
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return base64.b32encode(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:20]).decode().lower()
