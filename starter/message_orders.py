"""Orders to messages that were given up, from the words of a command to the answer."""

from redrive.dead_letters import Discard, Replay
from redrive.errors import MessageNotFound
from redrive.settings import read_settings
from starter.errors import WrongUsage
from starter.orders import Manner, finish
from starter.records import open_records
from starter.terminal import confirm, console
from starter.views import print_json
from store.dead_messages import DeadMessage, find_dead, parse_id
from store.message_orders import assigned, give_order
from store.tenancy import Pool


async def order_message(
    text: str, tenant: str | None, order: Replay | Discard, manner: Manner, assign_to: str | None = None
) -> None:
    """Replay or discard a message, or say which one that would be."""
    if manner.wait:
        raise WrongUsage("--wait: a message has no run to wait for; `redrive messages show` tells what became of it")
    async with open_records(read_settings()) as pool:
        found = await find_message(pool, text, tenant)
        if manner.dry_run:
            _print_plan(found, json=manner.json)
            return
        confirm(f"{order.verb.value.capitalize()} {found.id} ({found.original_queue})?", yes=manner.yes)
        owner = await assigned(pool, found, assign_to, order) if isinstance(order, Replay) else found.tenant
        answer = await give_order(pool, owner, found.message_id, order)
    if answer is None:
        raise _not_found(text)
    finish(answer, json=manner.json)


async def find_message(pool: Pool, text: str, tenant: str | None) -> DeadMessage:
    """Return a dead message's record, or say that there is none."""
    message_id = parse_id(text)
    found = await find_dead(pool, tenant, message_id) if message_id else []
    if not found:
        raise _not_found(text)
    if len(found) > 1:
        tenants = ", ".join(each.tenant for each in found)
        raise WrongUsage(f"message {text!r}: more than one tenant has it ({tenants}); add --tenant")
    return found[0]


def _not_found(text: str) -> MessageNotFound:
    return MessageNotFound(f"no dead message has the id {text[:200]!r}; `redrive messages list` shows those there are")


def _print_plan(found: DeadMessage, *, json: bool) -> None:
    if json:
        print_json({"dry_run": True, "would_replay": [found.id]})
    else:
        console.print(f"{found.id} to {found.original_queue}", markup=False)
        console.print("a dry run: nothing was changed; 1 would be replayed")
