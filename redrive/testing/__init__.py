"""A testing kit for module authors: modules and pipelines in unit tests, in memory or on a real Temporal server.

In memory (`run_module`, `run_pipeline`) everything that decides is the product's own: input models, error classes,
retry policies, keys, edits and their checks. Only the waiting is left out. On a server (`Server`) the runs are real
ones; their records are kept in memory, so that no PostgreSQL is needed.

Names are imported on first use, so that pytest's start pays nothing for them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redrive.testing.contexts import Clock, new_context
    from redrive.testing.faults import Faults
    from redrive.testing.memory_runs import run_module, run_pipeline
    from redrive.testing.runs import Run
    from redrive.testing.server import Server
    from redrive.testing.services import Call, FakeServices, UnexpectedCall

__all__ = [
    "Call",
    "Clock",
    "FakeServices",
    "Faults",
    "Run",
    "Server",
    "UnexpectedCall",
    "new_context",
    "run_module",
    "run_pipeline",
]

_HOMES = {
    "redrive.testing.contexts": ("Clock", "new_context"),
    "redrive.testing.faults": ("Faults",),
    "redrive.testing.memory_runs": ("run_module", "run_pipeline"),
    "redrive.testing.runs": ("Run",),
    "redrive.testing.server": ("Server",),
    "redrive.testing.services": ("Call", "FakeServices", "UnexpectedCall"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name on first use."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOME_OF[name]), name)
    return value
