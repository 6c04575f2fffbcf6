"""`redrive reconcile`: compare the two stores."""

from temporalio.client import Client

from redrive import home
from redrive.connection import connect_temporal, owner_database_url
from redrive.home import check_home
from redrive.missed_ends import MissedEnds
from redrive.postgres.database import connect
from redrive.reconcile import Reconciliation, Report
from redrive.redaction.redactor import Redactor
from redrive.settings import Settings, read_settings
from redrive.starter.cli.errors import StoresDisagree
from redrive.starter.cli.records import open_records
from redrive.starter.cli.runs.views import print_json
from redrive.starter.cli.terminal import Json, Listing, console, plain


async def reconcile(
    *, repair: bool = False, adopt: bool = False, tenant: str | None = None, json: Json = False
) -> None:
    """Compare what Temporal and Postgres both know: runs, keys, dead letters and bulk operations.

    Workers do this every minute, repair what they find, and alert on what they cannot repair; this command is for
    looking, and for tenants one by one. The exit code is 0 if they agree or everything was fixed, 1 otherwise.
    Temporal's list lags behind: changes of the last second may only appear in the next check.

    **Examples**

    `redrive reconcile`

    `redrive reconcile --repair --json`

    Parameters
    ----------
    repair
        Fix them: a parked run without a record gets one, and one whose command was lost takes commands again; a
        record whose step is done is closed; one whose run is gone is marked as orphaned, so that it can be
        restarted or discarded; rows and keys get the end that Temporal tells; a bulk operation whose workflow is
        gone is stopped, which only this command does. Workers of the runs must be up.
    adopt
        First give the database's records to this Temporal namespace: the one that they belong to is gone for good.
    tenant
        Only runs and records of this tenant.
    """
    settings = read_settings()
    client = await connect_temporal(settings)
    async with open_records(settings) as pool:
        if adopt:
            await _adopt(settings, client)
        await check_home(client, pool)
        ends = MissedEnds(client, pool, Redactor())
        report = await Reconciliation(client, pool, ends, repair=repair).run(tenant)
    if json:
        print_json(report)
    else:
        _print(report)
    if report.left:
        advice = "some could not be repaired" if repair else "repair them with `redrive reconcile --repair`"
        raise StoresDisagree(f"{report.left} of {len(report.problems)} problems are left: {advice}")


async def _adopt(settings: Settings, client: Client) -> None:
    connection = await connect(owner_database_url(settings))
    try:
        await home.adopt(client, connection)
    finally:
        await connection.close()


def _print(report: Report) -> None:
    console.print(f"{report.parked_runs} parked runs, {report.open_records} open records")
    if not report.problems:
        console.print("they agree")
        return
    table = Listing("tenant", "run", "step", "what is wrong", "repaired")
    for problem in report.problems:
        repaired = "yes" if problem.repaired else "no"
        table.add_row(problem.tenant, problem.run_id, problem.step, plain(problem.about), repaired)
    console.print(table)
