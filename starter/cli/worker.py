"""`redrive worker`: a single worker."""

from redrive.processes.program import prepare
from redrive.settings import read_settings
from redrive.worker import serve


async def worker(*, modules: str | None = None) -> None:
    """Run a worker until SIGTERM or Ctrl-C. Any number may run side by side, on any number of machines.

    It uses TEMPORAL_ADDRESS or the Temporal profile of the environment; by default, the stack that `redrive up` runs
    in this directory.

    **Examples**

    `redrive worker --modules greet` runs the modules of your greet.py.

    `REDRIVE_LOG_FORMAT=json redrive worker` logs one JSON object a line.

    Parameters
    ----------
    modules
        Python modules to import, separated by commas; also files of this directory. By default REDRIVE_MODULES, or
        the examples.
    """
    settings = read_settings() if modules is None else read_settings(modules=modules)
    prepare(settings)
    await serve(settings)
