"""The terminal, or the file that output is redirected to."""

import sys
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

# Without a terminal there is no width to respect; tables are easier to read, and to grep, unwrapped.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 240)
errors = Console(stderr=True, highlight=False, soft_wrap=True)

Json = Annotated[bool, Parameter(name="--json", help="Print JSON, for scripts.")]
