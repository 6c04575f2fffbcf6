"""`redrive events replay` and `discard`: commands about events, with the options of the replay script."""

from typing import Annotated

from cyclopts import Parameter

from redrive.dead_letters import Discard, Replay
from redrive.errors import EventNotFound
from redrive.settings import read_settings
from redrive.starter.cli.command_options import Giving, finish
from redrive.starter.cli.dead_letters.replays import replay_letter
from redrive.starter.cli.events.replays import NOTHING, USUAL, EventReplay, EventSelection, replay_events
from redrive.starter.cli.messages import command_message
from redrive.starter.cli.records import open_records
from redrive.starter.cli.terminal import confirm
from redrive.store.events.commands import discard
from redrive.store.events.dead import get_dead_event
from redrive.store.messages.dead import parse_id

DEAD_EVENT = "dead-event-"


async def replay(*, chosen: EventSelection = NOTHING, how: EventReplay = USUAL) -> None:
    """Replay events: from the stored payload, with their dedupe key.

    **Examples**

    `redrive events replay --status failed --limit 100` runs projectors that failed for good again, the oldest first;
    each in its own run, which continues.

    `redrive events replay --event-id event-… --projectors qscore,service-session` runs just these projectors again.

    `redrive events replay --dlq --id dead-event-…` tries again to make a run of a message; with the id of a dead
    letter it is `redrive dlq replay`, with that of a dead message `redrive messages replay`. `--dlq --status pending
    --limit 100` takes messages that could not become a run in bulk.
    """
    command, dead_id = how.command(Replay), chosen.dead_id
    if dead_id is not None and parse_id(dead_id):
        await command_message(dead_id, chosen.tenant, command, how, chosen.assign_to)
    elif dead_id is not None and not dead_id.startswith(DEAD_EVENT):
        await replay_letter(dead_id, command, how)
    else:
        chosen.check(wait=how.wait)
        await replay_events(chosen, command, how)


async def discard_event(dead_id: Annotated[str, Parameter(name="ID")], *, how: Giving) -> None:
    """Discard a message that could not become a run. Its record stays; it can no longer be replayed.
    `redrive events ignore` is an alias.

    **Example**

    `redrive events discard dead-event-… --reason "a producer's test"`

    Parameters
    ----------
    dead_id
        The dead event's id; `redrive events dead` shows them.
    """
    command = how.command(Discard)
    async with open_records(read_settings()) as pool:
        found = await get_dead_event(pool, None, dead_id)
        if found is None:
            raise EventNotFound(f"no dead event has the id {dead_id[:200]!r}; `redrive events dead` shows them")
        confirm(f"Discard {dead_id}?", yes=how.yes)
        answer = await discard(pool, found, command)
    finish(answer, json=how.json)
