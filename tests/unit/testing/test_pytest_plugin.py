"""The pytest plugin costs those nothing who do not use it."""

import subprocess
import sys

HEAVY = ("temporalio", "pydantic", "httpx", "asyncpg", "structlog")


def printed(code: str) -> str:
    """Run code in a new interpreter and return what it prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_redrive_does_not_import_pytest() -> None:
    """Neither the package nor the testing kit needs it."""
    code = "import sys, redrive, redrive.testing; redrive.testing.run_pipeline; print('pytest' in sys.modules)"
    assert printed(code) == "False"


def test_the_plugin_imports_nothing_heavy() -> None:
    """What fixtures need is imported when a test asks for them."""
    code = f"import sys, redrive.testing.pytest_plugin; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert printed(code) == "[]"


def test_pytest_finds_the_plugin() -> None:
    """The entry point names it."""
    code = (
        "from importlib.metadata import entry_points\n"
        "[found] = [each for each in entry_points(group='pytest11') if each.name == 'redrive']\n"
        "print(found.load().__name__)"
    )
    assert printed(code) == "redrive.testing.pytest_plugin"
