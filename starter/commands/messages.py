"""`redrive messages …`: messages that were given up. The same verbs as for dead letters."""

import sys
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number
from rich.table import Table

from redrive.dead_letters import Discard, Replay
from redrive.settings import read_settings
from starter.message_orders import find_message, order_message
from starter.orders import AssignTo, Giving
from starter.records import open_records
from starter.terminal import Json, console, errors, plain
from starter.views import moment, print_json
from store.dead_messages import DeadMessage, MessageFilter, MessageStatus, list_dead, read_payload
from store.paging import LARGEST_PAGE
from store.tenancy import QUARANTINE

app = App(name="messages", help="Messages that were given up: look at them, replay them, discard them.")

Id = Annotated[str, Parameter(name="ID", help="The message's id, with `message-` before it or without.")]
Tenant = Annotated[str | None, Parameter(help="Whose message; needed when two tenants have one of that id.")]


@app.command(name="list")
async def list_messages(
    *,
    tenant: str | None = None,
    status: MessageStatus | None = None,
    queue: str | None = None,
    quarantined: bool = False,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=LARGEST_PAGE))] = 20,
    cursor: str | None = None,
    json: Json = False,
) -> None:
    """List messages that were given up, the newest failure first.

    **Example**

    `redrive messages list --status pending --queue billing.invoices`

    Parameters
    ----------
    tenant
        Only those of this tenant.
    status
        Only those with this status.
    queue
        Only those that came from this queue.
    quarantined
        Only those of which nobody can tell whose they are.
    limit
        How many at the most.
    cursor
        Where the page before ended, as it was printed there.
    """
    chosen = MessageFilter(tenant=QUARANTINE if quarantined else tenant, status=status, queue=queue)
    async with open_records(read_settings()) as pool:
        page = await list_dead(pool, chosen, limit, cursor)
    if json:
        print_json({"messages": page.rows, "cursor": page.cursor})
        return
    if page.rows:
        console.print(_table(page.rows))
    else:
        errors.print("no dead messages")
    if page.cursor:
        errors.print(f"there are more: add --cursor {page.cursor}", markup=False)


def _table(rows: list[DeadMessage]) -> Table:
    headers = ("id", "tenant", "queue", "kind", "status", "retries", "last failure", "error")
    table = Table(*headers, box=None, header_style="bold")
    for row in rows:
        facts = (row.tenant, plain(row.original_queue), row.kind.value, row.status.value)
        retries = f"{row.retry_count}/{row.max_retries}"
        error = plain(row.error_reason.partition("\n")[0][:100])
        table.add_row(str(row.message_id), *facts, retries, moment(row.last_failed_at), error)
    return table


@app.command
async def show(message: Id, /, *, tenant: Tenant = None, payload: bool = False, json: Json = False) -> None:
    """Show a message that was given up. What it carries is printed only when asked for: it may be secret.

    **Examples**

    `redrive messages show 0b2f6d3e-6c0a-4c53-9d0e-0d2f3a1b4c5d`

    `redrive messages show 0b2f6d3e-6c0a-4c53-9d0e-0d2f3a1b4c5d --payload > message.bin`

    Parameters
    ----------
    payload
        Print the bytes that the message carries, and nothing else.
    """
    async with open_records(read_settings()) as pool:
        found = await find_message(pool, message, tenant)
        if payload:
            sys.stdout.buffer.write(await read_payload(pool, found))
            return
    if json:
        print_json(found)
        return
    for name, value in found.model_dump(mode="json").items():
        console.print(f"{name:<16}", plain(str(value)), soft_wrap=True)


@app.command
async def replay(message: Id, /, *, how: Giving, tenant: Tenant = None, assign_to: AssignTo = None) -> None:
    """Send a message again, now, with its retries counted from the start. One that could not be read goes where it
    came from, as it was.

    **Example**

    `redrive messages replay 0b2f6d3e-6c0a-4c53-9d0e-0d2f3a1b4c5d --reason "billing is back" --yes`
    """
    await order_message(message, tenant, how.order(Replay), how.manner, assign_to)


@app.command(name=["discard", "ignore"])
async def discard(message: Id, /, *, how: Giving, tenant: Tenant = None) -> None:
    """Give a message up for good; its record stays. `redrive messages ignore` is the same.

    **Example**

    `redrive messages discard 0b2f6d3e-6c0a-4c53-9d0e-0d2f3a1b4c5d --reason "sent by hand" --yes`
    """
    await order_message(message, tenant, how.order(Discard), how.manner)
