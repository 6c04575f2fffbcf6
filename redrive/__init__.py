"""Redrive: module runs on Temporal that are never lost. What module authors and callers import."""

from redrive.client import Redrive
from redrive.contracts import RunResult, RunStatus, RunView, StartedRun, StepStatus
from redrive.errors import (
    Category,
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
from redrive.http import ServiceClient
from redrive.keys import IdempotencyKey
from redrive.modules import Module, ModuleContext, Pipeline, Registry, module
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
from redrive.retry import with_retry

__all__ = [
    "EVENT",
    "MESSAGE",
    "SERVICE_CALL",
    "STEP",
    "AdditiveJitter",
    "Category",
    "Curve",
    "FullJitter",
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
    "with_retry",
]
