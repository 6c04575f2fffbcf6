"""Which failures park: by the plugin's patterns, and by what workflow code says. Pure."""

import contextlib
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, TypeVar

from temporalio import workflow
from temporalio.common import SearchAttributeKey

from redrive.contracts import DEFAULT_TENANT, NAME_PATTERN, TASK_QUEUE

Workflow = TypeVar("Workflow", bound=type)
TenantFunction = Callable[[workflow.Info], str | None]

_OFF: Final = "__redrive_no_dead_letters__"
_errors_raised: ContextVar[bool] = ContextVar("redrive_errors_raised", default=False)


@contextlib.contextmanager
def errors_raised() -> Iterator[None]:
    """Let what is started in here raise its error, as without the plugin: for a fallback or a poll."""
    token = _errors_raised.set(True)
    try:
        yield
    finally:
        # Code of a workflow that leaves its worker's memory is closed from another context, which never had it.
        with contextlib.suppress(ValueError):
            _errors_raised.reset(token)


def are_errors_raised() -> bool:
    """Tell whether the code that runs now wants errors."""
    return _errors_raised.get()


def no_dead_letters(workflow_class: Workflow) -> Workflow:
    """Leave a whole workflow alone."""
    setattr(workflow_class, _OFF, True)
    return workflow_class


def has_no_dead_letters(workflow_class: type) -> bool:
    """Tell whether a workflow is left alone."""
    return bool(getattr(workflow_class, _OFF, False))


@dataclass(frozen=True, kw_only=True)
class Options:
    """What parks, and for which tenant."""

    workflows: tuple[str, ...]
    except_workflows: tuple[str, ...] = ()
    activities: tuple[str, ...] = ("*",)
    except_activities: tuple[str, ...] = ()
    children: bool = True
    whole_workflows: bool = False
    tenant: str | TenantFunction = DEFAULT_TENANT
    tenant_attribute: str | None = None
    tenant_memo: str | None = None
    task_queue: str | None = TASK_QUEUE
    """That of Redrive's own worker, which runs modules; None: this is it."""

    @property
    def has_modules(self) -> bool:
        """Whether the workflows' worker has the code of modules: then they can be fast."""
        return self.task_queue is None

    def takes(self, workflow_type: str, name: str) -> bool:
        """Tell whether a failure of this name parks in workflows of this type."""
        return (
            _matches(workflow_type, self.workflows)
            and not _matches(workflow_type, self.except_workflows)
            and _matches(name, self.activities)
            and not _matches(name, self.except_activities)
        )

    def tenant_of(self, info: workflow.Info) -> str:
        """Return the tenant of the workflow that runs now; one that cannot be a tenant's name is the default one."""
        for name in self._tenant_names(info):
            if name and re.fullmatch(NAME_PATTERN, name):
                return name
            if name:
                workflow.logger.warning("dead_letter.no_tenant_name: %r", name[:64])
        return DEFAULT_TENANT

    def _tenant_names(self, info: workflow.Info) -> Iterator[str | None]:
        if self.tenant_attribute:
            yield info.typed_search_attributes.get(SearchAttributeKey.for_keyword(self.tenant_attribute))
        if self.tenant_memo:
            found = workflow.memo_value(self.tenant_memo, None)
            yield found if isinstance(found, str) else None
        yield self.tenant if isinstance(self.tenant, str) else _told(self.tenant, info)


def _told(function: TenantFunction, info: workflow.Info) -> str | None:
    """Return what the users' function says. A mistake in it must not cost the dead letter."""
    try:
        name: Any = function(info)
    except Exception:
        workflow.logger.warning("dead_letter.no_tenant_name: the function failed", exc_info=True)
        return None
    return None if name is None else str(name)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
