"""Import the Python files that hold a team's modules, so that the registry knows them."""

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path

from redrive.errors import RegistrationError


def load_modules(names: Iterable[str]) -> None:
    """Import each name; it may also be a file of the current directory."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    for name in names:
        try:
            importlib.import_module(name)
        except RegistrationError:
            raise
        except Exception as error:
            raise RegistrationError(
                f"cannot import {name!r} (REDRIVE_MODULES): {type(error).__name__}: {error}"
            ) from error
