"""`ETag` and `If-Match`: an order may hold only for the version of a record that was looked at."""

from typing import Annotated

from fastapi import Depends, Header

IfMatch = Annotated[
    str | None, Header(alias="If-Match", description="the ETag of the record that was looked at; changed since: 412")
]


def etag(version: object) -> str:
    """Return the tag of a version."""
    return f'"{version}"'


def versions(given: IfMatch = None) -> frozenset[str] | None:
    """Return the versions that an order may meet; None: any."""
    tags = [tag.strip() for tag in (given or "*").split(",")]
    return None if "*" in tags else frozenset(tag.strip('"') for tag in tags)


Versions = Annotated[frozenset[str] | None, Depends(versions)]
