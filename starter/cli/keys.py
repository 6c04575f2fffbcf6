"""`redrive keys …`: the run of an idempotency key, and resetting the key."""

from collections.abc import Sequence
from datetime import UTC, datetime

from cyclopts import App

from redrive.connection import read_addresses
from redrive.contracts import DEFAULT_TENANT, KeyStatus
from redrive.errors import KeyInUse, KeyNotFound
from redrive.postgres.tenancy import Pool
from redrive.starter.cli.command_options import By, Reason, asked_by
from redrive.starter.cli.list_options import FIRST_PAGE, PageOptions, page_cursor, parse_moment, read_page_cursor
from redrive.starter.cli.records import open_records
from redrive.starter.cli.runs.views import moment, print_json, print_page
from redrive.starter.cli.sdk import connect
from redrive.starter.cli.terminal import Facts, Json, Listing, Yes, confirm, console, plain
from redrive.store.keys import KeyFilter, KeyRecord, KeyRow, get_key, list_keys, reset_key

app = App(name="keys")


@app.command(name="list")
async def list_all(
    *,
    tenant: str | None = None,
    status: KeyStatus | None = None,
    since: str | None = None,
    until: str | None = None,
    shown: PageOptions = FIRST_PAGE,
) -> None:
    """List keys, the most recently claimed first.

    **Example**

    `redrive keys list --tenant acme --status failed --since 1d`

    Parameters
    ----------
    tenant
        Only those of this tenant.
    status
        Only those with this status.
    since
        Only those that were claimed since then: `2h`, `3d`, or a time such as `2026-05-01T10:00`.
    until
        Only those that were claimed before then.
    """
    place, now = read_page_cursor(shown.cursor, datetime.now(UTC))
    chosen = KeyFilter(
        tenant=tenant,
        status=status,
        since=parse_moment("--since", since, now),
        until=parse_moment("--until", until, now),
    )
    async with open_records(read_addresses()) as pool:
        page = await list_keys(pool, chosen, shown.limit, place)
    following = page_cursor(page.cursor, now) if page.cursor else None
    print_page("keys", page.rows, following, _table, none="no keys", json=shown.json)


def _table(rows: Sequence[KeyRow]) -> Listing:
    table = Listing("key", "tenant", "status", "run", "pipeline", "claimed", "expires")
    for row in rows:
        times = (moment(row.created_at), moment(row.expires_at))
        table.add_row(plain(row.key), row.tenant, row.status.value, row.run_id, row.pipeline, *times)
    return table


@app.command
async def show(key: str, /, *, tenant: str = DEFAULT_TENANT, json: Json = False) -> None:
    """Show a key: its run, and its stored response or error.

    **Examples**

    `redrive keys show order:4711 --tenant acme`

    `redrive keys show order:4711 --json | jq .response`

    Parameters
    ----------
    key
        The key, as it was given to `run start`.
    tenant
        The organisation that the key belongs to.
    """
    async with open_records(read_addresses()) as pool:
        record = await _find(pool, tenant, key)
    if json:
        print_json(record)
        return
    facts = record.model_dump(mode="json", exclude_none=True)
    console.print(Facts({name.replace("_", " "): str(value) for name, value in facts.items()}))


async def _find(pool: Pool, tenant: str, key: str) -> KeyRecord:
    record = await get_key(pool, tenant, key)
    if record is None:
        raise KeyNotFound(f"tenant {tenant!r} has no key {key[:300]!r}; `redrive keys list` shows those there are")
    return record


@app.command
async def reset(
    key: str,
    /,
    *,
    reason: Reason,
    tenant: str = DEFAULT_TENANT,
    force: bool = False,
    by: By = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Let the next start with KEY create a new run, with any payload. The effects of the old run remain.

    **Example**

    `redrive keys reset order:4711 --tenant acme --reason "charged the wrong card"`

    Parameters
    ----------
    key
        The key, as it was given to `run start`.
    tenant
        The organisation that the key belongs to.
    force
        Also while the key's run is open: then two runs of the key can run at the same time.
    """
    from redrive.settings import read_settings  # noqa: PLC0415

    settings = read_settings()
    async with open_records(settings) as pool:
        record = await _find(pool, tenant, key)
        if not force and await (await connect(settings)).is_open(record.run_id):
            raise KeyInUse(
                f"key {key!r}: its run {record.run_id} is open; wait for its end, cancel it, or reset with --force"
            )
        confirm(f"Let key {key} of tenant {tenant} start a new run, beside {record.run_id}?", yes=yes)
        fresh = await reset_key(pool, record, actor=asked_by(by), reason=reason, forced=force)
    if json:
        print_json(fresh)
    else:
        console.print(f"the next start with it makes {fresh.run_id}", markup=False, soft_wrap=True)
