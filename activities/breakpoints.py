"""`breakpoint()` in a module opens the debugger at its own line, in a worker with `--debug`.

The SDK has a hook for breakpoints in workflows. It passes all others on, from a function of its own: the debugger would
open there, and know none of the module's names.
"""

import importlib
import os
import pdb
import sys


def open_at_modules() -> None:
    """Have the SDK's hook pass breakpoints of modules on to a debugger at the module's line."""
    hooks = importlib.import_module("temporalio.worker._debugger")
    hooks._ORIGINAL_BREAKPOINTHOOK = _open  # type: ignore[attr-defined]


def _open(*arguments: object, **options: object) -> object:
    if os.environ.get("PYTHONBREAKPOINT"):
        return sys.__breakpointhook__(*arguments, **options)
    # Two frames up: past the SDK's hook. After `c`, Ctrl-C still ends the worker.
    pdb.Pdb(nosigint=True).set_trace(sys._getframe(2))
    return None
