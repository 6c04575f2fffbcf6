"""What Redrive looks for in the working directory. Plain Python: who lists runs loads no settings."""

from pathlib import Path
from typing import Final

ENV_FILE: Final = Path(".env")
STATE_DIR: Final = Path(".redrive")
"""Where an embedded stack keeps its state, unless REDRIVE_STATE_DIR says otherwise."""
