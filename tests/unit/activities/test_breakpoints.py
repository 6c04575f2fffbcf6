"""A breakpoint in a module, under a worker's `--debug`: a process of its own, with a person's words on its stdin."""

import subprocess
import sys

PROGRAM = """
import signal

from temporalio.worker._debugger import _install_workflow_breakpoint_hook

from redrive.activities.breakpoints import open_at_modules

_install_workflow_breakpoint_hook()
open_at_modules()


def module(given):
    breakpoint()
    return given * 2


print("returned", module(21))
print("interrupts" if signal.getsignal(signal.SIGINT) is signal.default_int_handler else "opens the debugger")
"""


def test_the_debugger_opens_in_the_module() -> None:
    """The module's names are known at once, the module goes on with `c`, and Ctrl-C ends the worker as before."""
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM], input="p 'seen', given\nc\n", capture_output=True, text=True, check=True
    )
    assert "('seen', 21)" in said.stdout
    assert "returned 42" in said.stdout
    assert "NameError" not in said.stdout
    assert "interrupts" in said.stdout
