"""The base of rows as they are read."""

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """The base of what is read: columns of a newer release are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")
