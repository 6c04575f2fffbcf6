"""`redrive purge`: delete old closed records, as the schedule does daily."""

from collections import Counter
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table

from redrive.errors import InvalidInput
from redrive.postgres.tenancy import Pool
from redrive.settings import RecordKind, RetentionSettings, read_settings
from redrive.starter.cli.command_options import By, asked_by
from redrive.starter.cli.records import open_records
from redrive.starter.cli.runs.views import print_json
from redrive.starter.cli.terminal import Json, Yes, confirm, console, errors
from redrive.store.retention import Purge, purge_tenant, tenants

Kinds = Annotated[
    list[RecordKind] | None, Parameter(name="--kind", help="Only this kind; may be given more than once.")
]


async def purge(
    *,
    tenant: str | None = None,
    kind: Kinds = None,
    dry_run: bool = False,
    by: By = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete closed records that are older than `REDRIVE_RETENTION` allows, in small batches. Open ones stay.

    It may be interrupted at any moment; the next purge continues. Each batch is a line in the audit log. A run stays as
    long as its dead letters and its event: a dry run counts it once these are gone.

    **Examples**

    `redrive purge --dry-run`

    `redrive purge --tenant acme --kind runs --kind dead_letters --yes`

    Parameters
    ----------
    tenant
        Only what belongs to this tenant.
    dry_run
        Count what would be deleted, and delete nothing.
    """
    keep = read_settings().retention
    keep = keep.only(set(kind)) if kind else keep
    if not dry_run:
        confirm(f"Delete {_wording(keep)} of {tenant or 'all tenants'}?", yes=yes)
    async with open_records(read_settings()) as pool:
        wanted = Purge(keep=keep, who=asked_by(by), dry_run=dry_run)
        counts = {name: await _purge(pool, name, wanted) for name in await _chosen(pool, tenant)}
    if json:
        print_json({"dry_run": dry_run, "tenants": counts})
    else:
        _print(counts, dry_run=dry_run)


def _wording(keep: RetentionSettings) -> str:
    kept = {kind.value: keep.of(kind) for kind in RecordKind}
    return ", ".join(f"{name} older than {age.days} days" for name, age in kept.items() if age) or "nothing"


async def _chosen(pool: Pool, tenant: str | None) -> list[str]:
    known = await tenants(pool)
    if tenant is not None and tenant not in known:
        raise InvalidInput(f"--tenant {tenant!r}: has no records, so there is nothing to purge")
    return [tenant] if tenant is not None else known


async def _purge(pool: Pool, tenant: str, wanted: Purge) -> Counter[str]:
    counts: Counter[str] = Counter({kind.value: 0 for kind in RecordKind})
    async for batch in purge_tenant(pool, tenant, wanted):
        counts[batch.kind.value] += batch.count
    return counts


def _print(counts: dict[str, Counter[str]], *, dry_run: bool) -> None:
    table = Table("tenant", *(kind.value for kind in RecordKind), box=None, header_style="bold")
    for tenant, own in counts.items():
        if own.total():
            table.add_row(tenant, *(str(own[kind.value]) for kind in RecordKind))
    if not table.rows:
        errors.print("there is nothing to delete")
        return
    console.print(table)
    errors.print("this is what would be deleted" if dry_run else "deleted")
