"""Redrive: module runs on Temporal that are never lost. What module authors and callers import.

Names are imported on first use, so that `redrive --help` loads none of them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redrive.categories import Category
    from redrive.client import Redrive
    from redrive.contracts import RunResult, RunStatus, RunView, StartedRun, StepStatus
    from redrive.errors import (
        AttemptEnded,
        IdempotencyMismatch,
        InvalidInput,
        OutcomeUnknown,
        RedriveError,
        RunCanceled,
        RunFailed,
        RunNotFound,
        ServiceError,
        Terminal,
        Transient,
        Unavailable,
    )
    from redrive.events import Event
    from redrive.http import ServiceClient
    from redrive.keys import IdempotencyKey
    from redrive.modules import Hidden, Module, ModuleContext, Pipeline, Registry, module, resource
    from redrive.policy import (
        EVENT,
        MESSAGE,
        SERVICE_CALL,
        STEP,
        AdditiveJitter,
        Curve,
        FullJitter,
        NoJitter,
        RatioJitter,
        RetryPolicy,
    )
    from redrive.resources import Resource
    from redrive.retry import with_retry

__all__ = [
    "EVENT",
    "MESSAGE",
    "SERVICE_CALL",
    "STEP",
    "AdditiveJitter",
    "AttemptEnded",
    "Category",
    "Curve",
    "Event",
    "FullJitter",
    "Hidden",
    "IdempotencyKey",
    "IdempotencyMismatch",
    "InvalidInput",
    "Module",
    "ModuleContext",
    "NoJitter",
    "OutcomeUnknown",
    "Pipeline",
    "RatioJitter",
    "Redrive",
    "RedriveError",
    "Registry",
    "Resource",
    "RetryPolicy",
    "RunCanceled",
    "RunFailed",
    "RunNotFound",
    "RunResult",
    "RunStatus",
    "RunView",
    "ServiceClient",
    "ServiceError",
    "StartedRun",
    "StepStatus",
    "Terminal",
    "Transient",
    "Unavailable",
    "module",
    "resource",
    "with_retry",
]

_HOMES = {
    "redrive.categories": ("Category",),
    "redrive.client": ("Redrive",),
    "redrive.contracts": ("RunResult", "RunStatus", "RunView", "StartedRun", "StepStatus"),
    "redrive.errors": (
        "AttemptEnded",
        "IdempotencyMismatch",
        "InvalidInput",
        "OutcomeUnknown",
        "RedriveError",
        "RunCanceled",
        "RunFailed",
        "RunNotFound",
        "ServiceError",
        "Terminal",
        "Transient",
        "Unavailable",
    ),
    "redrive.events": ("Event",),
    "redrive.http": ("ServiceClient",),
    "redrive.keys": ("IdempotencyKey",),
    "redrive.modules": ("Hidden", "Module", "ModuleContext", "Pipeline", "Registry", "module", "resource"),
    "redrive.policy": (
        "EVENT",
        "MESSAGE",
        "SERVICE_CALL",
        "STEP",
        "AdditiveJitter",
        "Curve",
        "FullJitter",
        "NoJitter",
        "RatioJitter",
        "RetryPolicy",
    ),
    "redrive.resources": ("Resource",),
    "redrive.retry": ("with_retry",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name on first use."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOME_OF[name]), name)
    return value
