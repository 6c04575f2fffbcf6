"""The base of rows as they are read."""

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """The base of what is read: a column of a newer release is no obstacle."""

    model_config = ConfigDict(frozen=True, extra="ignore")
