"""The settings of events: their source, their default tenant and their pipelines."""

from datetime import timedelta
from typing import Annotated, Final

from pydantic import Field, SecretStr, StringConstraints, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from redrive.connection import embedded
from redrive.contracts import DEFAULT_TENANT, PAYLOAD_LIMIT, Broker, Name, Text255
from redrive.field_types import LABEL_LIMIT, LabelName
from redrive.logs import FIELDS
from redrive.settings import Settings

# As much as `parse_envelope` reads: a longer entry can never be accepted.
EVENT_LIMIT: Final = PAYLOAD_LIMIT + 16 * 1024
KEPT: Final = 64 * 1024


class EventSettings(BaseSettings):
    """The settings of events."""

    model_config = SettingsConfigDict(extra="ignore", populate_by_name=True)

    redis_url: SecretStr | None = Field(
        default=None, validation_alias="REDIS_URL", description="Redis; none: the stack of this directory"
    )
    stream: Text255 = Field(
        default="redrive.events", validation_alias="REDRIVE_EVENTS_STREAM", description="the stream of events"
    )
    group: Text255 = Field(
        default="redrive",
        validation_alias="REDRIVE_EVENTS_GROUP",
        description="the consumer group; its bridges share the events",
    )
    tenant: Name = Field(
        default=DEFAULT_TENANT,
        validation_alias="REDRIVE_EVENTS_TENANT",
        description="the tenant of events that name none",
    )
    pipelines: dict[Annotated[str, StringConstraints(min_length=1)], Name] = Field(
        default={}, validation_alias="REDRIVE_EVENTS_PIPELINES", description="pipelines by event type; `*` is any other"
    )
    labels: dict[LabelName, Text255] = Field(
        default={},
        max_length=LABEL_LIMIT,
        validation_alias="REDRIVE_EVENTS_LABELS",
        description="labels of the events' runs, and the payload's fields that they are read from",
    )
    held: int = Field(
        default=50,
        ge=1,
        le=10_000,
        validation_alias="REDRIVE_EVENTS_HELD",
        description="entries that a bridge holds at once",
    )
    kept: int = Field(
        default=KEPT,
        ge=0,
        le=EVENT_LIMIT,
        validation_alias="REDRIVE_EVENTS_KEPT",
        description="bytes that are kept of an entry that is too large to be taken",
    )
    claim_idle: timedelta = Field(
        default=timedelta(minutes=1),
        ge=timedelta(seconds=1),
        le=timedelta(days=1),
        validation_alias="REDRIVE_EVENTS_CLAIM_IDLE",
        description="how long a consumer may be silent before its entries are taken over",
    )

    @field_validator("labels")
    @classmethod
    def _not_ours(cls, labels: dict[str, str]) -> dict[str, str]:
        taken = sorted(labels.keys() & FIELDS.keys())
        if taken:
            raise ValueError(f"{taken[0]!r}: every log line has a field of this name; choose another")
        return labels

    def url(self, settings: Settings) -> str:
        """Return the address of Redis: the configured one, or that of this directory's stack."""
        if self.redis_url is not None:
            return self.redis_url.get_secret_value()
        return embedded(settings, "Redis", "REDIS_URL", "brokers", Broker.REDIS)
