"""What messages are made of: their base, the types of their fields, and a failed attempt, which records have as well.

Apart from the messages: who reads records loads none of those. `contracts.py` offers these with everything else that
crosses a process.
"""

from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from redrive.categories import Category
from redrive.names import NAME_PATTERN

FIELD_LIMIT: Final = 1000

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
# Left out of a message unless it says something: releases that do not know the field can still read the message.
Flag = Annotated[bool, Field(exclude_if=lambda value: not value)]
Text255 = Annotated[str, StringConstraints(min_length=1, max_length=255)]


class Message(BaseModel):
    """The base of what crosses a process: unknown fields are refused by name."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _bound_fields(cls, given: Any) -> Any:
        """Refuse very many fields as one problem: listing a hundred thousand takes 70 MB and half a second."""
        if isinstance(given, dict) and len(given) > FIELD_LIMIT:
            raise ValueError(f"{len(given)} fields; at most {FIELD_LIMIT} are read")
        return given


class Attempt(Message):
    """One failed attempt of a step."""

    attempt: int
    at: datetime
    category: Category
    error_type: str
    error: str
    delay: timedelta | None = Field(default=None, description="the wait that followed; none after the last attempt")
