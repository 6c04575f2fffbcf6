"""`redrive messages …`: dead messages. The same commands as for dead letters."""

import sys
from collections.abc import Sequence
from typing import Annotated

from cyclopts import App, Parameter

from redrive.connection import read_addresses
from redrive.dead_letters import Discard, Replay
from redrive.errors import MessageNotFound
from redrive.postgres.tenancy import QUARANTINE, Pool
from redrive.starter.cli.command_options import AssignTo, Giving, finish
from redrive.starter.cli.errors import WrongUsage
from redrive.starter.cli.list_options import FIRST_PAGE, PageOptions
from redrive.starter.cli.records import open_records
from redrive.starter.cli.runs.views import moment, print_json, print_page
from redrive.starter.cli.terminal import Json, Listing, confirm, console, plain
from redrive.store.messages.dead import (
    DeadMessage,
    MessageFilter,
    MessageStatus,
    find_dead,
    give,
    list_dead,
    read_payload,
    whole_id,
)

app = App(name="messages")
app.command("redrive.starter.cli.trial_messages:send_message", name="send", help="Send a message, to try a bridge out.")

Id = Annotated[str, Parameter(name="ID", help="The message's id or a beginning of it, with `message-` or without.")]
Tenant = Annotated[str | None, Parameter(help="Whose message; needed when two tenants have one of that id.")]


@app.command(name="list")
async def list_messages(
    *,
    tenant: str | None = None,
    status: MessageStatus | None = None,
    queue: str | None = None,
    quarantined: bool = False,
    shown: PageOptions = FIRST_PAGE,
) -> None:
    """List dead messages, the newest failure first.

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
        Only those whose tenant is unknown.
    """
    chosen = MessageFilter(tenant=QUARANTINE if quarantined else tenant, status=status, queue=queue)
    async with open_records(read_addresses()) as pool:
        page = await list_dead(pool, chosen, shown.limit, shown.cursor)
    print_page("messages", page.rows, page.cursor, _table, none="no dead messages", json=shown.json)


def _table(rows: Sequence[DeadMessage]) -> Listing:
    headers = ("id", "tenant", "queue", "kind", "status", "retries", "last failure", "error")
    table = Listing(*headers)
    for row in rows:
        facts = (row.tenant, plain(row.original_queue), row.kind.value, row.status.value)
        retries = f"{row.retry_count}/{row.max_retries}"
        error = plain(row.error_reason.partition("\n")[0][:100])
        table.add_row(str(row.message_id), *facts, retries, moment(row.last_failed_at), error)
    return table


@app.command
async def show(message: Id, /, *, tenant: Tenant = None, payload: bool = False, json: Json = False) -> None:
    """Show a dead message. Its content is printed only when asked for: it may be secret.

    **Examples**

    `redrive messages show 0b2f6d3e-6c0a-4c53-9d0e-0d2f3a1b4c5d`

    `redrive messages show 0b2f6d3e-6c0a-4c53-9d0e-0d2f3a1b4c5d --payload > message.bin`

    Parameters
    ----------
    payload
        Print only the message's bytes.
    """
    async with open_records(read_addresses()) as pool:
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
    """Send a message again, now, with its retry count reset. One that could not be read goes back to its queue,
    unchanged.

    **Example**

    `redrive messages replay 0b2f6d3e-6c0a-4c53-9d0e-0d2f3a1b4c5d --reason "billing is back" --yes`
    """
    await command_message(message, tenant, how.command(Replay), how, assign_to)


@app.command(name=["discard", "ignore"])
async def discard(message: Id, /, *, how: Giving, tenant: Tenant = None) -> None:
    """Discard a message for good; its record stays. `redrive messages ignore` is an alias.

    **Example**

    `redrive messages discard 0b2f6d3e-6c0a-4c53-9d0e-0d2f3a1b4c5d --reason "sent by hand" --yes`
    """
    await command_message(message, tenant, how.command(Discard), how)


async def command_message(
    text: str, tenant: str | None, command: Replay | Discard, how: Giving, assign_to: str | None = None
) -> None:
    """Replay or discard a message, or show which one that would be."""
    if how.wait:
        raise WrongUsage("--wait: a message has no run to wait for; `redrive messages show` shows its outcome")
    async with open_records(read_addresses()) as pool:
        found = await find_message(pool, text, tenant)
        if how.dry_run:
            _print_plan(found, json=how.json)
            return
        confirm(f"{command.verb.value.capitalize()} {found.id} ({found.original_queue})?", yes=how.yes)
        answer = await give(pool, found, command, assign_to=assign_to)
    finish(answer, json=how.json)


async def find_message(pool: Pool, text: str, tenant: str | None) -> DeadMessage:
    """Return a dead message's record, or raise if there is none."""
    message_id = await whole_id(pool, tenant, text)
    found = await find_dead(pool, tenant, message_id) if message_id else []
    if not found:
        raise MessageNotFound(
            f"no dead message has the id {text[:200]!r}; `redrive messages list` shows those there are"
        )
    if len(found) > 1:
        tenants = ", ".join(each.tenant for each in found)
        raise WrongUsage(f"message {text!r}: more than one tenant has it ({tenants}); add --tenant")
    return found[0]


def _print_plan(found: DeadMessage, *, json: bool) -> None:
    if json:
        print_json({"dry_run": True, "would_replay": [found.id]})
    else:
        console.print(f"{found.id} to {found.original_queue}", markup=False)
        console.print("a dry run: nothing was changed; 1 would be replayed")
