"""`redrive run list`. It is called often and has to start at once: what it imports is held by a test."""

from typing import Annotated

from cyclopts import Parameter

from redrive.connection import connect_service
from redrive.names import RunStatus
from redrive.starter.cli.runs.views import print_first, runs_table
from redrive.starter.cli.terminal import LABEL_HELP, Json, Limit


async def list_runs(
    *,
    status: RunStatus | None = None,
    pipeline: str | None = None,
    tenant: str | None = None,
    label: Annotated[list[str] | None, Parameter(negative=(), help=LABEL_HELP)] = None,
    limit: Limit = 20,
    json: Json = False,
) -> None:
    """List runs, newest first. The list may lag behind by a second.

    **Examples**

    `redrive run list --status failed --pipeline order`

    `redrive run list --label mission_id=42 --label stage_id=2`

    `redrive run list --limit 1000 --json | jq -r '.[].run_id'`

    Parameters
    ----------
    status
        Only runs with this status.
    pipeline
        Only runs of this pipeline.
    tenant
        Only runs of this tenant.
    """
    # Here: `--help` does not wait for Temporal's SDK.
    from redrive.run_lists import list_runs as find_runs  # noqa: PLC0415
    from redrive.visibility import runs_query  # noqa: PLC0415

    query = runs_query(status=status, pipeline=pipeline, tenant=tenant, label=_chosen(label))
    service, namespace = await connect_service()
    rows = [row async for row in find_runs(service.workflow_service, namespace, query, limit + 1)]
    print_first(rows, runs_table, limit=limit, none="no runs", json=json)


def _chosen(label: list[str] | None) -> str | None:
    """Return the filter by labels, if there is one."""
    if not label:
        return None
    # Here: only this option needs models.
    from redrive.field_types import checked_label_filter  # noqa: PLC0415

    return checked_label_filter(",".join(label))
