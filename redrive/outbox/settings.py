"""The settings of the outbox: where its table is, and how much a bridge takes at once."""

from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from redrive.connection import database_url
from redrive.errors import InvalidInput
from redrive.outbox.installation import DEFAULT_SCHEMA, checked_schema
from redrive.settings import Settings


def _schema(name: str) -> str:
    try:
        return checked_schema(name)
    except InvalidInput as error:
        raise ValueError(str(error)) from None


class OutboxSettings(BaseSettings):
    """The settings of the outbox."""

    model_config = SettingsConfigDict(extra="ignore", populate_by_name=True)

    database: SecretStr | None = Field(
        default=None,
        validation_alias="OUTBOX_URL",
        description="the database that has the table; by default Redrive's own",
    )
    schema_name: Annotated[str, AfterValidator(_schema)] = Field(
        default=DEFAULT_SCHEMA, validation_alias="REDRIVE_OUTBOX_SCHEMA"
    )
    batch: int = Field(
        default=25, ge=1, le=1000, validation_alias="REDRIVE_OUTBOX_BATCH", description="rows in one transaction"
    )
    lanes: int = Field(
        default=8, ge=1, le=32, validation_alias="REDRIVE_OUTBOX_LANES", description="transactions side by side"
    )
    poll_interval: timedelta = Field(
        default=timedelta(seconds=1),
        ge=timedelta(milliseconds=50),
        le=timedelta(minutes=1),
        validation_alias="REDRIVE_OUTBOX_POLL_INTERVAL",
        description="how often to look for rows that no notification told of",
    )

    def url(self, settings: Settings) -> str:
        """Return the address of the database that has the table."""
        return self.database.get_secret_value() if self.database else database_url(settings)
