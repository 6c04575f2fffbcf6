"""`redrive outbox install`, `sync`, `replay` and `purge`: what changes an outbox."""

from datetime import timedelta
from typing import Annotated

from cyclopts import Parameter

from redrive.connection import owner_database_url
from redrive.errors import InvalidInput
from redrive.outbox.installation import bridge_grants, install_sql, operator_grants, producer_grants
from redrive.outbox.rows import install as install_outbox
from redrive.settings import read_settings
from redrive.starter.cli.command_options import By, asked_by
from redrive.starter.cli.list_options import parse_duration
from redrive.starter.cli.outbox.lists import RowId, Schema, open_outbox, outbox_settings
from redrive.starter.cli.runs.views import print_json
from redrive.starter.cli.sdk import connect
from redrive.starter.cli.terminal import Json, Yes, confirm, console

Role = Annotated[list[str] | None, Parameter(show_default=False)]


async def install(
    *,
    schema: Schema = None,
    producer: Role = None,
    operator: Role = None,
    bridge: Role = None,
    print_sql: Annotated[bool, Parameter(name="--print")] = False,
) -> None:
    """Make the outbox's table and functions in a schema, or bring them up to date. Rows stay as they are.

    The database is that of OUTBOX_URL, whose login must be able to create them; without it, Redrive's own database, by
    the login that owns its tables.

    **Examples**

    `OUTBOX_URL=postgresql://shop@db.internal/shop redrive outbox install --producer shop_app`

    `redrive outbox install --schema jobs --print > migrations/0042_outbox.sql` for your own migrations.

    Parameters
    ----------
    schema
        The schema; it is made if it is missing. By default REDRIVE_OUTBOX_SCHEMA, or `redrive`.
    producer
        A role that may enqueue, and nothing else. May be given several times.
    operator
        A role that may read rows and replay them, for people with psql.
    bridge
        A role that bridges and the console use.
    print_sql
        Print the SQL, and change nothing.
    """
    chosen = outbox_settings(schema)
    name = chosen.schema_name
    grants = [
        *(producer_grants(name, role) for role in producer or []),
        *(operator_grants(name, role) for role in operator or []),
        *(bridge_grants(name, role) for role in bridge or []),
    ]
    if print_sql:
        # Plainly: it is a file of SQL.
        print("\n".join([install_sql(name), *grants]), end="")
        return
    url = chosen.database.get_secret_value() if chosen.database else owner_database_url(read_settings())
    await install_outbox(url, name, *grants)
    console.print(f"the outbox is in the schema {name}", markup=False)


async def sync(*, schema: Schema = None, json: Json = False) -> None:
    """Store the JSON schemas of the pipelines, so that enqueue() refuses payloads that do not fit.

    The schemas are those that the workers have published. Do it after each release that changes an input; a pipeline
    that has no schema takes any payload, and the bridge finds out.

    **Example**

    `redrive outbox sync`
    """
    async with await connect(read_settings()) as redrive:
        catalog = await redrive.catalog()
    shapes = {module.name: module.input_schema for module in catalog.modules}
    schemas = {pipeline.name: shapes[pipeline.steps[0]] for pipeline in catalog.pipelines if pipeline.steps}
    async with open_outbox(outbox_settings(schema)) as outbox:
        await outbox.put_schemas(schemas)
    if json:
        print_json({"pipelines": sorted(schemas)})
    else:
        console.print(f"schemas of {len(schemas)} pipelines: {', '.join(sorted(schemas))}", markup=False)


async def replay(
    event: RowId,
    *,
    reason: Annotated[str, Parameter(help="Why; kept in the audit log.")],
    generation: int | None = None,
    by: By = None,
    yes: Yes = False,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Replay a failed row: its parked run continues in place, with the same id and key.

    It does what `select redrive.outbox_replay(…)` does; a bridge carries it out.

    **Example**

    `redrive outbox replay 5f0c8a1e-0c7b-4c58-9c5e-0d8b9f5f2a11 --reason "the shop is open again"`

    Parameters
    ----------
    generation
        The row's new generation; by default the next one.
    """
    async with open_outbox(outbox_settings(schema)) as outbox:
        row = await outbox.get(None, event)
        confirm(f"Replay the row of {row.pipeline} with the key {row.key}?", yes=yes)
        chosen = row.generation + 1 if generation is None else generation
        await outbox.replay(row.event_id, chosen, asked_by(by), reason)
    if json:
        print_json({"event_id": str(row.event_id), "status": "pending", "generation": chosen})
    else:
        console.print(f"pending: a bridge replays it; `redrive outbox show {row.event_id}` follows it", markup=False)


async def purge(
    *,
    older_than: str = "30d",
    tenant: str | None = None,
    dry_run: bool = False,
    yes: Yes = False,
    schema: Schema = None,
    json: Json = False,
) -> None:
    """Delete rows whose runs have ended, or that were withdrawn, this long ago. Pending and parked ones stay.

    **Example**

    `redrive outbox purge --older-than 7d --yes`

    Parameters
    ----------
    older_than
        How long ago, as 12h or 30d.
    tenant
        Only rows of this tenant.
    dry_run
        Count what would be deleted, and delete nothing.
    """
    age = parse_duration("--older-than", older_than)
    if age < timedelta(0):
        raise InvalidInput(f"--older-than {older_than!r}: must not be negative")
    if not dry_run:
        confirm(f"Delete rows of {tenant or 'all tenants'} that ended more than {older_than} ago?", yes=yes)
    async with open_outbox(outbox_settings(schema)) as outbox:
        count = await outbox.purge(tenant, age, dry_run=dry_run)
    if json:
        print_json({"dry_run": dry_run, "rows": count})
    else:
        console.print(f"{count} rows {'would be deleted' if dry_run else 'deleted'}", markup=False)
