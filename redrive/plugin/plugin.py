"""The plugin itself: what it adds to the users' clients, workers and replayers."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from temporalio.plugin import SimplePlugin
from temporalio.worker import Interceptor, Plugin, WorkerConfig, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from redrive.contracts import DEFAULT_TENANT, TASK_QUEUE
from redrive.plugin.classification import ClassifyingInterceptor
from redrive.plugin.interceptors import ParkingInterceptor
from redrive.plugin.options import Options, TenantFunction
from redrive.plugin.reports import ReportActivities
from redrive.redaction.redactor import Redactor


class DeadLetters(SimplePlugin):
    """Let workflows park at what has failed for good, with a dead letter. For a client, or for a single worker.

    `workflows` and `activities` are names or patterns (`"Order*"`, `"*"`) of what parks; child workflows count by their
    workflow type. The tenant comes from a search attribute, else from a memo, else from `tenant`, a name or a function
    of `workflow.Info`. `classify` gives plain activities Redrive's classes of errors. `task_queue` is that of Redrive's
    own worker, in the same namespace.
    """

    def __init__(
        self,
        workflows: Sequence[str],
        *,
        except_workflows: Sequence[str] = (),
        activities: Sequence[str] = ("*",),
        except_activities: Sequence[str] = (),
        children: bool = True,
        whole_workflows: bool = False,
        tenant: str | TenantFunction = DEFAULT_TENANT,
        tenant_attribute: str | None = None,
        tenant_memo: str | None = None,
        classify: bool = False,
        redacted_keys: Iterable[str] = (),
        task_queue: str = TASK_QUEUE,
    ) -> None:
        options = Options(
            workflows=_names("workflows", workflows),
            except_workflows=_names("except_workflows", except_workflows),
            activities=_names("activities", activities),
            except_activities=_names("except_activities", except_activities),
            children=children,
            whole_workflows=whole_workflows,
            tenant=tenant,
            tenant_attribute=tenant_attribute,
            tenant_memo=tenant_memo,
            task_queue=task_queue,
        )
        keys = frozenset(redacted_keys)
        self._reports = ReportActivities(task_queue=task_queue, redactor=lambda hidden: Redactor(keys.union(hidden)))
        self._parking = ParkingInterceptor(options)
        interceptors: list[Interceptor] = [self._parking]
        if classify:
            interceptors.append(ClassifyingInterceptor())
        super().__init__("redrive.DeadLetters", interceptors=interceptors, workflow_runner=_passing_through)

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Add the plugin to a worker, once."""
        earlier = [each for each in config.get("interceptors") or () if isinstance(each, ParkingInterceptor)]
        if self._parking in earlier:
            # Given to the client, whose workers have it, and to the worker as well.
            return config
        if earlier:
            raise ValueError("a worker has one DeadLetters: it has its client's; give one to either, with all patterns")
        following = self._with_following(config)
        config = super().configure_worker(config)
        if following.get("workflows"):
            config["activities"] = [*(config.get("activities") or []), *self._reports.functions]
            if not following.get("activities"):
                # A worker for workflows alone must not take, and fail, the activities of others.
                config["no_remote_activities"] = True
        return config

    def _with_following(self, config: WorkerConfig) -> WorkerConfig:
        """Return what the plugins after this one make of a configuration: they may bring workflows and activities."""
        plugins = [*config["client"].config()["plugins"], *config["plugins"]]
        changed: WorkerConfig = config.copy()
        for name, value in config.items():
            if isinstance(value, list):
                # They may add to a list in place; the real one is given to them later.
                changed[name] = list(value)  # type: ignore[literal-required]
        own = plugins.index(self) if self in plugins else len(plugins)
        for plugin in plugins[own + 1 :]:
            if isinstance(plugin, Plugin) and not isinstance(plugin, DeadLetters):
                changed = plugin.configure_worker(changed)
        return changed


def _names(option: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise TypeError(f"{option}={names!r}: a list of names is needed, such as [{names!r}]")
    return tuple(names)


def _passing_through(runner: WorkflowRunner | None) -> Any:
    """Pass our own modules through the sandbox: workflow code must see the same `errors_raised` as the plugin."""
    if isinstance(runner, SandboxedWorkflowRunner):
        return replace(runner, restrictions=runner.restrictions.with_passthrough_modules("redrive"))
    return runner
