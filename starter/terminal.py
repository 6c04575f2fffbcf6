"""The terminal, or the file that output is redirected to."""

import sys

from rich.console import Console

# Without a terminal there is no width to respect; tables are easier to read, and to grep, unwrapped.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
