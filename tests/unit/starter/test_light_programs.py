"""What `up` and the console load: whoever has no broker does not wait for the brokers' clients."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("program", ["redrive.starter.cli.up", "redrive.processes.console"])
def test_no_client_of_a_broker_is_loaded_before_there_is_a_broker(program: str) -> None:
    """They take a sixth of the time in which `up` is loaded."""
    code = f"import sys, {program}; print([name for name in ('aiormq', 'redis') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
