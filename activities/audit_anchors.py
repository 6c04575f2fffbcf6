"""Heads of the audit log, recorded outside of it: in the log output and, if set, in a file and at a webhook."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
from pydantic_core import to_json
from temporalio import activity

from redrive.activities.webhooks import post_signed
from redrive.contracts import Activity, AnchorMark
from redrive.logs import get_logger
from redrive.postgres.database import Database
from redrive.settings import AnchorSettings
from redrive.store.audit.heads import Head, grown_heads

_HEADS_A_POST: Final = 500

log = get_logger(__name__)


class AuditAnchors:
    """Record heads. Recording one twice is harmless."""

    def __init__(self, database: Database, http: httpx.AsyncClient, settings: AnchorSettings) -> None:
        self._database = database
        self._http = http
        self._settings = settings

    @activity.defn(name=Activity.ANCHOR_AUDIT)
    async def anchor_audit(self, last: AnchorMark | None) -> AnchorMark:
        """Record the heads of the logs that have grown since the last time."""
        heads, since = await grown_heads(await self._database.pool(), last.since if last else None)
        at = datetime.now(UTC)
        for head in heads:
            log.info("audit.head", tenant_id=head.tenant, head=str(head))
        lines = [_line(head, at) for head in heads]
        if self._settings.file and lines:
            await asyncio.to_thread(_append, self._settings.file, lines)
        for chunk in _chunks(lines) if self._settings.webhook_url else ():
            body = to_json({"heads": chunk})
            await post_signed(
                self._http, str(self._settings.webhook_url), body, self._settings.webhook_secret, what="audit"
            )
        return AnchorMark(since=since, heads=len(heads))


def _line(head: Head, at: datetime) -> dict[str, Any]:
    return {"at": at, "tenant": head.tenant, "head": str(head)}


def _append(file: Path, lines: list[dict[str, Any]]) -> None:
    """Append lines in one write, so that lines of two processes do not interleave."""
    with file.open("ab", buffering=0) as output:
        output.write(b"".join(to_json(line) + b"\n" for line in lines))


def _chunks(lines: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    return (lines[start : start + _HEADS_A_POST] for start in range(0, len(lines), _HEADS_A_POST))
