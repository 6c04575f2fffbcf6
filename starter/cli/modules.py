"""`redrive modules`: the modules that the workers know."""

from redrive.starter.cli.runs.views import modules_table, print_json
from redrive.starter.cli.sdk import connect
from redrive.starter.cli.terminal import Json, console


async def modules(*, json: Json = False) -> None:
    """List the pipelines and modules that a live worker knows: what can be started, and with which fields.

    **Examples**

    `redrive modules`

    `redrive modules --json` adds the schema of input and output and the whole retry policy of each module.
    """
    catalog = await (await connect()).catalog()
    if json:
        print_json(catalog)
    else:
        console.print(modules_table(catalog))
