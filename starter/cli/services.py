"""`redrive services`: whether the services that steps call can be used."""

from rich.text import Text

from redrive.connection import connect_temporal
from redrive.service_states import ServiceStates
from redrive.settings import read_settings
from redrive.starter.cli.runs.views import print_json
from redrive.starter.cli.terminal import Json, Listing, console, plain
from redrive.worker_queries import service_states

STYLES = {"available": "green", "degraded": "yellow", "unavailable": "bold red", "misconfigured": "bold red"}


async def services(*, json: Json = False) -> None:
    """Ask a worker how the services do that have a `health` path in its REDRIVE_SERVICES.

    `available`, `degraded` and `unavailable` are results; `misconfigured` is a wrong address, token or health path.

    **Example**

    `redrive services`
    """
    settings = read_settings()
    found = await service_states(await connect_temporal(settings), settings.task_queue)
    if json:
        print_json(found)
    elif found.services:
        console.print(_table(found))
    else:
        console.print('no service has a health path: add "health": "/health" to it in REDRIVE_SERVICES', markup=False)


def _table(found: ServiceStates) -> Listing:
    table = Listing("service", "state", "latency", "reason")
    for row in found.services:
        latency = "" if row.latency_ms is None else f"{row.latency_ms:.0f} ms"
        table.add_row(row.name, Text(row.status, style=STYLES[row.status]), latency, plain(row.reason))
    return table
