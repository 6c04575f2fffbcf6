"""What `up` and the console load: whoever has no broker does not wait for the brokers' clients."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("program", ["redrive.starter.cli.up", "redrive.processes.console"])
def test_no_client_of_a_broker_is_loaded_before_there_is_a_broker(program: str) -> None:
    """They take a sixth of the time in which `up` is loaded."""
    code = f"import sys, {program}; print([name for name in ('aiormq', 'redis') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_a_program_is_imported_without_a_search_for_garbage(tmp_path: Path) -> None:
    """When it runs, garbage is collected as ever, and it sees the words that it was called with."""
    (tmp_path / "shop.py").write_text(
        "import gc, sys\nwhile_imported = gc.isenabled()\n"
        "def main():\n    print(while_imported, gc.isenabled(), gc.get_freeze_count() > 1000, sys.argv)\n"
    )
    words = [sys.executable, "-m", "redrive.processes.start", "shop", "--open"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False True True ['shop', '--open']\n"
