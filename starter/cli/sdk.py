"""The SDK's client, as the commands use it: imported at the first connection, so that `--help` does not wait for it."""

from typing import TYPE_CHECKING

from redrive.errors import RunNotFound
from redrive.starter.cli.terminal import errors

if TYPE_CHECKING:
    from redrive import Redrive
    from redrive.settings import Settings


async def connect(settings: "Settings | None" = None) -> "Redrive":
    """Connect to Temporal by the settings, by default those of the environment."""
    from redrive.client import Redrive  # noqa: PLC0415

    return await Redrive.connect(settings)


async def connect_to_change(settings: "Settings | None" = None) -> "Redrive":
    """Connect for a command that changes something; a person at a terminal is told where."""
    redrive = await connect(settings)
    if errors.is_terminal:
        errors.print(f"Temporal at {redrive.server}", style="dim", markup=False)
    return redrive


async def named_run(redrive: "Redrive", text: str) -> str:
    """Return the id of the run that was named, or raise if there is none."""
    try:
        return await redrive.find(text)
    except RunNotFound as error:
        raise RunNotFound(f"{error}; `redrive run list` shows those there are") from None
