"""`redrive console`: the operators' HTTP API and pages."""

from redrive.bridges.events.settings import EventSettings
from redrive.processes.console import serve
from redrive.processes.program import prepare
from redrive.settings import read_environment, read_settings


async def console(*, address: str | None = None) -> None:
    """Serve the operators' API and pages until SIGTERM or Ctrl-C. Any number may run side by side.

    It uses TEMPORAL_ADDRESS and DATABASE_URL; by default, the stack that `redrive up` runs in this directory. Signing
    in takes a token: `redrive tokens create --role admin --tenant acme --name laptop`.

    **Example**

    `redrive console --address 0.0.0.0:8300`

    Parameters
    ----------
    address
        Where to listen; by default REDRIVE_CONSOLE_ADDRESS, or 127.0.0.1:8300.
    """
    settings = read_settings() if address is None else read_settings(console_address=address)
    prepare(settings)
    await serve(settings, read_environment(EventSettings))
