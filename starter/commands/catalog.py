"""`redrive modules`: what the workers know."""

from typing import Annotated

from cyclopts import Parameter

from redrive import Redrive
from starter.terminal import console
from starter.views import modules_table, print_json


async def modules(*, json: Annotated[bool, Parameter(name="--json", negative="")] = False) -> None:
    """List the modules and pipelines that a live worker knows.

    Parameters
    ----------
    json
        Print JSON, with the input and output schema and the whole retry policy of each module.
    """
    catalog = await (await Redrive.connect()).catalog()
    if json:
        print_json(catalog)
    else:
        console.print(modules_table(catalog))
