"""`redrive audit …`: what was done to dead letters, by whom and why, and the proof that nobody changed it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number
from pydantic_core import from_json

from redrive.connection import read_addresses
from redrive.errors import InvalidInput
from redrive.postgres.paging import LARGEST_PAGE
from redrive.starter.cli.dead_letters.views import audit_facts
from redrive.starter.cli.errors import AuditBroken, HeadCut, WrongUsage
from redrive.starter.cli.records import named_letter, open_records
from redrive.starter.cli.runs.views import larger_limit, print_json, print_list, say_more
from redrive.starter.cli.terminal import Json, Listing, console, errors, plain
from redrive.store import audit
from redrive.store.audit import AuditFilter, AuditLine, Head, Match, Proof, audit_page, compare, read_head

app = App(name="audit")


@app.command
async def verify(
    *, tenant: str | None = None, head: str | None = None, heads: Path | None = None, json: Json = False
) -> None:
    """Verify the audit log's chain of hashes. The exit code is 0 if it is intact, 1 if it was changed.

    A head recorded elsewhere proves that nobody has rewritten the whole chain since. Workers record them every hour.

    **Examples**

    `redrive audit verify --tenant acme --head 1203:9f2c…`

    `redrive audit verify --heads /var/lib/redrive/audit-heads.jsonl`

    Parameters
    ----------
    tenant
        Only the log of this tenant.
    head
        An earlier head of this tenant's log, as it was printed; it needs `--tenant`.
    heads
        A file of heads that workers have written (`file` in `REDRIVE_AUDIT_ANCHOR`); all are compared.
    """
    noted = [*_given_head(tenant, head), *(read_heads(heads, tenant) if heads else [])]
    async with open_records(read_addresses()) as pool:
        proofs = await audit.verify(pool, tenant)
        matches = await compare(pool, noted)
    if tenant is not None and not proofs:
        raise InvalidInput(f"--tenant {tenant!r}: has no audit log, so there is nothing to verify")
    broken = [proof for proof in proofs if not proof.is_whole]
    if json:
        compared = [{"tenant": one.tenant, "head": str(one), "match": match} for one, match in matches]
        print_json({"whole": not broken, "tenants": proofs, "heads": compared})
    elif proofs:
        console.print(_proofs_table(proofs))
    else:
        errors.print("the audit log is empty")
    if broken:
        first = broken[0]
        raise AuditBroken(
            f"the audit log of tenant {first.tenant!r} was changed: row {first.first_broken} is the first that is "
            "missing or does not fit the one before it"
        )
    _check_heads(matches)


def _given_head(tenant: str | None, head: str | None) -> list[Head]:
    if head is None:
        return []
    if tenant is None:
        raise WrongUsage("--head: also needs --tenant, whose head it is")
    return [read_head(tenant, head)]


def read_heads(file: Path, tenant: str | None) -> list[Head]:
    """Return the heads of all tenants, or of one, from a file.

    Each counts: a head recorded after somebody rewrote the log matches it, and only earlier ones do not. A worker that
    was killed may have left half a line at the end of the file; any other line must be complete.
    """
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"--heads {str(file)!r}: cannot be read: {error}") from None
    heads = [_read_line(line, f"--heads {str(file)!r}: line {number}") for number, line in enumerate(lines[:-1], 1)]
    chosen = list(dict.fromkeys(head for head in heads if tenant in {None, head.tenant}))
    if not chosen:
        raise InvalidInput(f"--heads {str(file)!r}: has no head{f' of tenant {tenant!r}' if tenant else ''}")
    return chosen


def _read_line(line: str, where: str) -> Head:
    try:
        document = from_json(line)
        return read_head(str(document["tenant"]), str(document["head"]))
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidInput(f'{where}: not a head; it reads like {{"at": …, "tenant": …, "head": …}}') from error


def _check_heads(matches: list[tuple[Head, Match]]) -> None:
    """Raise for the first head that does not match, and for a tenant whose heads are all older than the last cut."""
    for head, match in matches:
        if match is Match.MISSING:
            raise AuditBroken(f"the audit log of tenant {head.tenant!r} has lost its end: row {head.number} is missing")
        if match is Match.DIFFERS:
            raise AuditBroken(
                f"the audit log of tenant {head.tenant!r} was rewritten: row {head.number} is not the one whose head "
                "was noted"
            )
    fitting = {head.tenant for head, match in matches if match is Match.FITS}
    cut = next((head for head, match in matches if match is Match.CUT and head.tenant not in fitting), None)
    if cut:
        raise HeadCut(
            f"row {cut.number} of tenant {cut.tenant!r} was cut off by retention (an `audit_cut` in the log says up to "
            "where): compare with a head that was noted later"
        )


def _proofs_table(proofs: list[Proof]) -> Listing:
    table = Listing("tenant", "entries", "cut off", "state", "head")
    for proof in proofs:
        state = "whole" if proof.is_whole else f"BROKEN at row {proof.first_broken}"
        table.add_row(proof.tenant, str(proof.entries), str(proof.cut), state, proof.head)
    return table


@app.command(name="list")
async def list_entries(
    *,
    letter: str | None = None,
    tenant: str | None = None,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=LARGEST_PAGE))] = 20,
    json: Json = False,
) -> None:
    """List what was done to dead letters, runs, schedules and the like, the newest first.

    **Example**

    `redrive audit list --letter run-01a1e2177540731697934191006e66dd/charge`

    Parameters
    ----------
    letter
        Only what was done to this dead letter: its id, or its run and step as `run-…/step`.
    tenant
        Only what was done in this tenant.
    limit
        Maximum number of rows.
    """
    async with open_records(read_addresses()) as pool:
        page = await audit_page(pool, AuditFilter(tenant=tenant, dead_letter=letter), limit)
        if letter is not None and not page.rows:
            found = (await named_letter(pool, letter)).id
            page = await audit_page(pool, AuditFilter(tenant=tenant, dead_letter=found), limit)
    print_list(page.rows, _lines_table, none="no entries", json=json)
    if page.cursor:
        say_more(larger_limit(limit, LARGEST_PAGE))


def _lines_table(lines: Sequence[AuditLine]) -> Listing:
    headers = ("no.", "tenant", "at", "action", "by", "reason", "request id", "about")
    table = Listing(*headers)
    for line in lines:
        table.add_row(str(line.number), line.tenant, *audit_facts(line), plain(str(line.subject or "")))
    return table
