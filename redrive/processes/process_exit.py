"""How our processes end. It imports little: `redrive --help` ends this way as well."""

import os
import sys
from typing import NoReturn

from redrive.tracing import finish_tracing


def leave(code: int) -> NoReturn:
    """End this process."""
    finish_tracing()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = code or 1
    # Interpreter shutdown with Temporal's native threads alive can crash; there is nothing left to clean up.
    os._exit(code)
