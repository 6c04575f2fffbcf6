"""What module authors use: modules, pipelines, a module's context, the registry, and the import of their files."""

import functools
import importlib
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Protocol, TypeVar, get_type_hints, overload

from pydantic import AliasChoices, AliasPath, BaseModel, Field, RootModel, ValidationError
from pydantic_core import to_json
from temporalio.workflow import unsafe

from redrive.categories import Category
from redrive.contracts import (
    FAST_TIMEOUT,
    NAME_PATTERN,
    STEP_LIMIT,
    Catalog,
    Effect,
    InputCheck,
    ModuleView,
    PipelineView,
    PublishedCatalog,
    StepSnapshot,
)
from redrive.documents import step_input, validation_sentence
from redrive.errors import RegistrationError, Terminal
from redrive.input_rules import StepShape, check_fits, model_rules, unknown_pipeline
from redrive.keys import step_key
from redrive.policy import STEP, RetryPolicy
from redrive.resources import Resource, ResourceFunction, Started, declared
from redrive.step_types import StepTypes, misfits
from redrive.threads import run_in_thread, wait

if TYPE_CHECKING:
    # Only loaded where modules run: callers do not need them.
    import structlog

    from redrive.http import ServiceClient

In = TypeVar("In", bound=BaseModel)
Out = TypeVar("Out", bound=BaseModel)
T = TypeVar("T")
# `writeOnly` is JSON schema's own word for what is taken and not shown again; pydantic's SecretStr has it.
_WRITE_ONLY = "writeOnly"
Hidden = Annotated[T, Field(json_schema_extra={_WRITE_ONLY: True})]
"""A field whose value is in no record: `prompt: Hidden[str]`. Its name is hidden in all records of the worker."""


class RunCounters(Protocol):
    """Numbers that a run keeps over all its steps, attempts and replays: what it has used of a budget."""

    async def add(self, name: str, amount: int, *, limit: int | None = None) -> int | None:
        """Add to a counter and return its value. None: it would exceed the limit, and nothing was added."""
        ...


@dataclass
class MemoryCounters:
    """Counters of one process, for a module that is called without a run."""

    values: dict[str, int] = field(default_factory=dict)

    async def add(self, name: str, amount: int, *, limit: int | None = None) -> int | None:
        """Add to a counter."""
        value = self.values.get(name, 0) + amount
        if limit is not None and value > limit:
            return None
        self.values[name] = value
        return value


@dataclass(frozen=True, kw_only=True)
class ModuleContext:
    """What a module knows about its run, and its access to the outside."""

    run_id: str
    step: str
    pipeline: str
    tenant: str
    attempt: int
    max_attempts: int
    correlation_id: str
    user_id: str | None
    deadline: datetime
    log: "structlog.stdlib.BoundLogger"
    http: "ServiceClient"
    heartbeat: Callable[[], None]
    version: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    counters: RunCounters = field(default_factory=MemoryCounters)
    resources: Started = field(default_factory=dict)
    execution: str | None = None

    def resource(self, wanted: Resource[T]) -> T:
        """Return the value of a resource, which the worker has started."""
        if wanted not in self.resources:
            raise Terminal(
                f"resource ({wanted.origin}) is not started: is it in another registry than its module?",
                category=Category.MISSING_CONFIG,
            )
        value: T = self.resources[wanted]
        return value

    def wait(self, awaitable: Awaitable[T]) -> T:
        """Wait for an async call, in a module that is a plain function: `ctx.wait(ctx.http.service("s").get("/"))`."""
        return wait(awaitable)

    @property
    def idempotency_key(self) -> str:
        """The key of this step as a whole: the same for every attempt, cycle and replay with the same input."""
        return self.key_for("run")

    def key_for(self, operation: str) -> str:
        """Return the key of one of the step's operations, for a service that is not called through `http`."""
        return step_key(self.execution or self.run_id, self.step, operation, self.version)


AsyncFunction = Callable[[ModuleContext, In], Awaitable[Out]]
PlainFunction = Callable[[ModuleContext, In], Out]
ModuleFunction = AsyncFunction[In, Out] | PlainFunction[In, Out]


@dataclass(frozen=True)
class Module(Generic[In, Out]):
    """A named unit of work. Call it like the function it was made from, for example in a test."""

    name: str
    function: ModuleFunction[In, Out]
    input_model: type[In]
    output_model: type[Out]
    policy: RetryPolicy
    dedupe: bool = False
    effect: Effect = Effect.KEYED
    fast: bool = False

    async def __call__(self, ctx: ModuleContext, given: In) -> Out:
        if self.is_async:
            answer: Awaitable[Out] = self.function(ctx, given)  # type: ignore[assignment]  # `is_async` says so
            return await answer
        result: Out = await run_in_thread(self.function, ctx, given)
        return result

    @functools.cached_property
    def is_async(self) -> bool:
        """Whether the function runs on the event loop; a plain one runs in a thread."""
        return inspect.iscoroutinefunction(self.function)

    @property
    def origin(self) -> str:
        """Where the function is defined, for messages."""
        return _origin(self.function)

    def validate(self, document: dict[str, Any]) -> In:
        """Take the step input from a run's document. Raises pydantic's ValidationError."""
        # Through JSON, so that dates, bytes and strict models behave as on the wire.
        return self.input_model.model_validate_json(to_json(step_input(document, self.reads)))

    @functools.cached_property
    def reads(self) -> list[str] | None:
        """The names in a run's document that the input model can read; None if it may read any."""
        model = self.input_model
        if model.model_config.get("extra") == "allow" or issubclass(model, RootModel):
            return None
        names: set[str] = set()
        for name, info in model.model_fields.items():
            names.add(name)
            names.update(_first_names(info.validation_alias or info.alias))
        return sorted(names)

    @functools.cached_property
    def shape(self) -> StepShape:
        """What decides whether a payload fits."""
        return StepShape(self.name, self._required, self.validate, self.reads)

    @property
    def _required(self) -> list[list[str]]:
        if issubclass(self.input_model, RootModel):
            return []
        return [
            list(dict.fromkeys([name, *_first_names(info.validation_alias or info.alias)]))
            for name, info in self.input_model.model_fields.items()
            if info.is_required()
        ]

    def check(self) -> InputCheck:
        """Return what a process without this code can check of the input."""
        rules, is_complete = model_rules(self.input_model)
        return InputCheck(reads=self.reads, required=self._required, rules=rules, is_complete=is_complete)

    def snapshot(self, *, fast: bool = False) -> StepSnapshot:
        """Return what a run remembers of this module; `fast`: whether it is, in the run's pipeline."""
        return StepSnapshot(
            name=self.name, policy=self.policy, reads=self.reads, dedupe=self.dedupe, fast=fast or self.fast
        )

    @property
    def not_fast(self) -> str | None:
        """Why the module cannot be fast; None if it can."""
        return _not_fast(self.policy, self.effect)

    def view(self) -> ModuleView:
        """Describe the module to an operator."""
        return ModuleView(
            name=self.name,
            summary=(inspect.getdoc(self.function) or "").partition("\n")[0],
            policy=self.policy,
            dedupe=self.dedupe,
            effect=self.effect,
            fast=self.fast,
            input_schema=self.input_model.model_json_schema(),
            output_schema=self.output_model.model_json_schema(mode="serialization"),
        )


def _first_names(alias: str | AliasPath | AliasChoices | None) -> Iterable[str]:
    match alias:
        case str():
            return [alias]
        case AliasPath():
            return [str(alias.path[0])]
        case AliasChoices():
            return [name for choice in alias.choices for name in _first_names(choice)]
        case None:
            return []


class Register(Protocol):
    """Makes a module of a function, async or plain."""

    @overload
    def __call__(self, function: AsyncFunction[In, Out]) -> Module[In, Out]: ...

    @overload
    def __call__(self, function: PlainFunction[In, Out]) -> Module[In, Out]: ...


@dataclass
class Registry:
    """What a process runs, and its resources. Most programs use the one behind `@module` and `Pipeline`."""

    modules: dict[str, Module[Any, Any]] = field(default_factory=dict)
    pipelines: dict[str, "Pipeline"] = field(default_factory=dict)
    resources: list[Resource[Any]] = field(default_factory=list)
    workflows: list[type] = field(default_factory=list)

    def resource(self, function: ResourceFunction[T]) -> Resource[T]:
        """Make a resource of a generator function without parameters that yields once.

        The worker starts it before it takes work, and stops it after its last step. `ctx.resource(…)` returns it.
        """
        made = declared(function)
        self.resources.append(made)
        return made

    def module(
        self,
        name: str,
        *,
        policy: RetryPolicy = STEP,
        timeout: timedelta | None = None,
        dedupe: bool = False,
        effect: Effect | Literal["none", "keyed", "unsafe"] = Effect.KEYED,
        fast: bool = False,
    ) -> Register:
        """Make a module of a function `(ctx, input: Model) -> Model`.

        An async function runs on the worker's event loop, and must not block it. A plain one runs in a thread, which
        cannot be stopped: after the deadline the attempt has failed, and the function continues beside the next one.

        With `dedupe` its result is stored, and returned if the step is executed again with the same input: two more
        database writes for each execution, which then needs the database.

        `effect` says what running it again means: nothing outside changes (`none`), the called service knows the
        idempotency key (`keyed`, as with every call through `ctx.http`), or the effect happens twice (`unsafe`).

        `fast` is for short work, with a timeout of at most 5 s: the first attempt of a step runs inside the workflow
        task, and fast steps in a row share one task. Temporal has their results only when the task is over. If the
        worker dies before that, all fast steps since the last task run again, with the same keys; with `dedupe`, their
        stored results answer instead. A failed first attempt goes on as an ordinary one. See docs/fast_steps.md.
        """
        chosen = policy if timeout is None else policy.model_copy(update={"timeout": timeout})

        def register(function: ModuleFunction[In, Out]) -> Module[In, Out]:
            _check_name("module", name, _origin(function))
            if name in self.modules and not unsafe.in_sandbox():
                raise RegistrationError(
                    f"module {name!r} ({_origin(function)}): the name is taken by {self.modules[name].origin}"
                )
            models: tuple[type[In], type[Out]] = _models_of(name, function)
            made = Module(name, function, *models, chosen, dedupe, _effect(name, effect), fast)
            if fast and made.not_fast:
                raise RegistrationError(f"module {name!r} ({made.origin}) cannot be fast: {made.not_fast}")
            # Temporal's sandbox loads a workflow's files again for each run: what they declare is known.
            return made if unsafe.in_sandbox() else self.modules.setdefault(name, made)

        return register

    def pipeline(self, name: str) -> "Pipeline":
        """Return the pipeline with that name, or raise which ones exist."""
        if name not in self.pipelines:
            raise unknown_pipeline(name, self.pipelines)
        return self.pipelines[name]

    def resolve(self, pipeline: str, payload: dict[str, Any]) -> list[StepSnapshot]:
        """Return the steps of a pipeline, or raise why this payload, a checked one, cannot start it."""
        found = self.pipeline(pipeline)
        found.check_fits(payload)
        return found.snapshots()

    def published(self, build_id: str) -> PublishedCatalog:
        """Describe everything registered to processes without the code."""
        modules, pipelines = self.views()
        catalog = Catalog(modules=modules, pipelines=pipelines, build_id=build_id)
        return PublishedCatalog(
            catalog=catalog,
            inputs={name: self.modules[name].check() for name in sorted(self.modules)},
            outputs={name: model_rules(self.modules[name].output_model)[0] for name in sorted(self.modules)},
        )

    def misfits(self) -> Iterator[tuple[str, str]]:
        """Yield each pipeline with a step that cannot read what an earlier one returns, and why."""
        for pipeline in self.pipelines.values():
            views = [module.view() for module in pipeline.modules]
            steps = [StepTypes(view.name, view.input_schema, view.output_schema) for view in views]
            yield from ((pipeline.name, problem) for problem in misfits(steps))

    def hidden_names(self) -> set[str]:
        """Return the names of all `Hidden` fields of the modules' inputs and outputs."""
        modules, _ = self.views()
        return hidden_names(modules)

    def views(self) -> tuple[list[ModuleView], list[PipelineView]]:
        """Describe everything registered."""
        modules = [self.modules[name].view() for name in sorted(self.modules)]
        pipelines = [self.pipelines[name].view() for name in sorted(self.pipelines)]
        return modules, pipelines


def hidden_names(modules: Iterable[ModuleView]) -> set[str]:
    """Return the names of all `Hidden` fields of these modules' inputs and outputs."""
    return {name for view in modules for schema in (view.input_schema, view.output_schema) for name in _hidden(schema)}


def _hidden(schema: Any) -> Iterator[str]:
    """Yield the names of a JSON schema's properties that are not to be shown."""
    if isinstance(schema, list):
        for item in schema:
            yield from _hidden(item)
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    if isinstance(properties, dict):
        yield from (name for name, each in properties.items() if isinstance(each, dict) and each.get(_WRITE_ONLY))
    for each in schema.values():
        yield from _hidden(each)


class Pipeline:
    """A named, ordered list of modules. Creating one registers it.

    With `fast`, every step that can be fast is (see `module`): its timeout is at most 5 s, its effect is not `unsafe`.
    """

    def __init__(
        self, name: str, *modules: Module[Any, Any], fast: bool = False, registry: Registry | None = None
    ) -> None:
        registry = DEFAULT_REGISTRY if registry is None else registry
        self.name = name
        self.modules = modules
        self._fast = fast
        _check_name("pipeline", name, name)
        if name in registry.pipelines and not unsafe.in_sandbox():
            raise RegistrationError(f"pipeline {name!r} is declared twice")
        self._check_modules()
        registry.pipelines.setdefault(name, self)

    def _check_modules(self) -> None:
        if not 1 <= len(self.modules) <= STEP_LIMIT:
            raise RegistrationError(
                f"pipeline {self.name!r} has {len(self.modules)} steps; 1 to {STEP_LIMIT} are allowed"
            )
        seen: set[str] = set()
        for module in self.modules:
            if not isinstance(module, Module):
                raise RegistrationError(f"pipeline {self.name!r}: {module!r} is not a module; decorate it with @module")
            if module.name in seen:
                raise RegistrationError(f"pipeline {self.name!r}: module {module.name!r} stands in it twice")
            seen.add(module.name)
        if self._fast and not self.view().fast:
            why = "; ".join(f"{module.name}: {module.not_fast}" for module in self.modules)
            raise RegistrationError(f"pipeline {self.name!r}: none of its steps can be fast: {why}")

    def snapshots(self) -> list[StepSnapshot]:
        """Return what a run remembers of the steps."""
        return [module.snapshot(fast=self._fast and not module.not_fast) for module in self.modules]

    def check_fits(self, payload: dict[str, Any]) -> None:
        """Refuse a payload with which a step could never start."""
        check_fits([module.shape for module in self.modules], payload)

    def view(self) -> PipelineView:
        """Describe the pipeline to an operator."""
        return PipelineView(
            name=self.name,
            steps=[module.name for module in self.modules],
            fast=[step.name for step in self.snapshots() if step.fast],
        )


def _check_name(kind: str, name: str, origin: str) -> None:
    if not re.fullmatch(NAME_PATTERN, name):
        raise RegistrationError(f"{kind} {name!r} ({origin}): a name is 1 to 64 of a-z, 0-9 and -")


def _effect(name: str, effect: str) -> Effect:
    try:
        return Effect(effect)
    except ValueError:
        raise RegistrationError(f"module {name!r}: effect {effect!r} is not one of {', '.join(Effect)}") from None


def _not_fast(policy: RetryPolicy, effect: Effect) -> str | None:
    if effect is Effect.UNSAFE:
        return "its effect is unsafe, and a fast step runs again when its worker dies; make the effect keyed"
    if policy.timeout > FAST_TIMEOUT:
        allowed, given = FAST_TIMEOUT.total_seconds(), policy.timeout.total_seconds()
        return (
            f"its timeout is {given:g} s, and a fast step has at most {allowed:g} s; add timeout=timedelta(seconds=5)"
        )
    return None


def _origin(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', repr(function))}"


def _models_of(name: str, function: ModuleFunction[In, Out]) -> tuple[type[In], type[Out]]:
    """Read the input and output model from a module's signature."""
    where = f"module {name!r} ({_origin(function)})"
    shape = "write `async def f(ctx: ModuleContext, input: MyInput) -> MyOutput` with two pydantic models"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise RegistrationError(f"{where}: a generator, not a function that returns once; {shape}")
    if not inspect.isroutine(function):
        raise RegistrationError(f"{where}: not a function; {shape}")
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) != 2 or any(p.kind is not p.POSITIONAL_OR_KEYWORD for p in parameters):
        raise RegistrationError(f"{where}: takes {len(parameters)} parameters, not 2; {shape}")
    try:
        hints = get_type_hints(function)
    except NameError as error:
        raise RegistrationError(f"{where}: {error}; define its models at the top level of the file") from error
    models = hints.get(parameters[1].name), hints.get("return")
    for what, model in zip(("input", "return type"), models, strict=True):
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            raise RegistrationError(f"{where}: its {what} is {model!r}, not a pydantic model; {shape}")
    return models  # type: ignore[return-value]  # the loop above has checked both


DEFAULT_REGISTRY = Registry()


module = DEFAULT_REGISTRY.module
resource = DEFAULT_REGISTRY.resource


# Python's own files, installed packages, and code without a file.
_LIBRARIES = (*(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")), "<")


def is_authors(module: str, file: str, home: str = "") -> bool:
    """Tell whether a file is a module author's own: not Python's, Redrive's or an installed package's.

    `home` is a module that is the author's in any case, with all of its package.
    """
    package = module.partition(".")[0]
    return package == home.partition(".")[0] or (package != "redrive" and not file.startswith(_LIBRARIES))


def authors_files() -> list[str]:
    """Return the author's own files that are loaded."""
    files = ((name, getattr(loaded, "__file__", None)) for name, loaded in list(sys.modules.items()))
    return sorted({file for name, file in files if file and name != "__main__" and is_authors(name, file)})


def error_place(error: BaseException, home: str = "") -> str:
    """Return the last line of the author's code that an error went through, as `invoice.py:31 in charge`."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if is_authors(frame.f_globals.get("__name__") or "", code.co_filename, home):
            place = f"{_shown_file(code.co_filename)}:{line} in {code.co_name}"
    return place


def _shown_file(name: str) -> str:
    """Return a file's path below the working directory; of others the name alone: paths are the machine's own."""
    path = Path(name)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name


def load_modules(names: Iterable[str]) -> None:
    """Import each: a module by its name, also one of the current directory, or a file: `shop` or `shop.py`."""
    here = Path.cwd()
    if str(here) not in sys.path:
        sys.path.insert(0, str(here))
    for name in names:
        module = _module_of_file(name, here) if name.endswith(".py") else name
        try:
            importlib.import_module(module)
        except RegistrationError:
            raise
        except Exception as error:
            text = validation_sentence(error) if isinstance(error, ValidationError) else str(error)
            place = error_place(error, module)
            raise RegistrationError(
                f"cannot import {name!r} (REDRIVE_MODULES): {type(error).__name__}: {text}" + (place and f" ({place})")
            ) from error


def _module_of_file(name: str, here: Path) -> str:
    """Return the name by which a file is imported, as other files import it: it would be loaded twice otherwise."""
    file = Path(os.path.normpath(here / name))
    if not file.is_file() or not file.is_relative_to(here):
        raise RegistrationError(f"there is no file {name!r} in {str(here)!r} (REDRIVE_MODULES)")
    return ".".join(file.relative_to(here).with_suffix("").parts)
