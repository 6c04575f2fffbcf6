"""`redrive events replay`: the replay script's own options. The event side comes with the bridges."""

from typing import Annotated

from cyclopts import App, Parameter

from redrive.dead_letters import Replay
from starter.errors import WrongUsage
from starter.orders import By, RequestId, made
from starter.replays import Manner, replay_letter
from starter.terminal import Json, Yes

app = App(name="events", help="Replay what failed, by the options of the replay script.")


@app.command
async def replay(
    *,
    dlq: bool = False,
    letter: Annotated[str | None, Parameter(name="--id")] = None,
    status: str | None = None,
    event_id: str | None = None,
    reason: str = "events replay",
    by: By = None,
    request_id: RequestId = None,
    dry_run: bool = False,
    wait: bool = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Replay a dead letter: the same as `redrive dlq replay ID`.

    **Example**

    `redrive events replay --dlq --id run-01a1e2177540731697934191006e66dd/charge --yes`

    Parameters
    ----------
    dlq
        Replay a dead letter; the only form there is now.
    letter
        The dead letter's id, or its run and step as `run-…/step`.
    status
        Not yet: comes with the bridges.
    event_id
        Not yet: comes with the bridges.
    reason
        Why; kept in the audit log.
    dry_run
        Print what would be done and change nothing.
    wait
        Show progress until the run has ended.
    """
    if status is not None or event_id is not None:
        raise WrongUsage("--status and --event-id replay events, which come with the bridges; now: --dlq --id ID")
    if not dlq or letter is None:
        raise WrongUsage("say which dead letter: --dlq --id ID (`redrive dlq list` shows them)")
    order = made(Replay, by=by, reason=reason, request_id=request_id)
    await replay_letter(letter, order, Manner(yes=yes, dry_run=dry_run, wait=wait, json=json))
