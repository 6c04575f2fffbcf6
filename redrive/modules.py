"""What module authors use: modules, pipelines, a module's context, and the registry."""

import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_type_hints

import structlog
from pydantic import AliasChoices, AliasPath, BaseModel, RootModel
from pydantic_core import to_json

from redrive.contracts import (
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
from redrive.documents import step_input
from redrive.errors import RegistrationError
from redrive.input_rules import input_rules
from redrive.keys import step_key
from redrive.payload_fit import StepShape, check_fits, unknown_pipeline
from redrive.policy import STEP, RetryPolicy

if TYPE_CHECKING:
    # The HTTP client is only loaded where modules run: callers do not need it.
    from redrive.http import ServiceClient

In = TypeVar("In", bound=BaseModel)
Out = TypeVar("Out", bound=BaseModel)


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
    log: structlog.stdlib.BoundLogger
    http: "ServiceClient"
    heartbeat: Callable[[], None]
    version: int = 0

    @property
    def idempotency_key(self) -> str:
        """The key of this step as a whole: the same for every attempt, cycle and replay with the same input."""
        return self.key_for("run")

    def key_for(self, operation: str) -> str:
        """Return the key of one of the step's operations, for a service that is not called through `http`."""
        return step_key(self.run_id, self.step, operation, self.version)


ModuleFunction = Callable[[ModuleContext, In], Awaitable[Out]]


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

    async def __call__(self, ctx: ModuleContext, given: In) -> Out:
        return await self.function(ctx, given)

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
        return StepShape(self.name, self._required, self.validate)

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
        rules, is_complete = input_rules(self.input_model)
        return InputCheck(reads=self.reads, required=self._required, rules=rules, is_complete=is_complete)

    def snapshot(self) -> StepSnapshot:
        """Return what a run remembers of this module."""
        return StepSnapshot(name=self.name, policy=self.policy, reads=self.reads, dedupe=self.dedupe)

    def view(self) -> ModuleView:
        """Describe the module to an operator."""
        return ModuleView(
            name=self.name,
            summary=(inspect.getdoc(self.function) or "").partition("\n")[0],
            policy=self.policy,
            dedupe=self.dedupe,
            effect=self.effect,
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


@dataclass
class Registry:
    """The modules and pipelines of a process. Most programs use the one behind `@module` and `Pipeline`."""

    modules: dict[str, Module[Any, Any]] = field(default_factory=dict)
    pipelines: dict[str, "Pipeline"] = field(default_factory=dict)

    def module(
        self,
        name: str,
        *,
        policy: RetryPolicy = STEP,
        timeout: timedelta | None = None,
        dedupe: bool = False,
        effect: Effect | Literal["none", "keyed", "unsafe"] = Effect.KEYED,
    ) -> Callable[[ModuleFunction[In, Out]], Module[In, Out]]:
        """Make a module of an async function `(ctx, input: Model) -> Model`.

        With `dedupe` its result is stored, and returned if the step is executed again with the same input: two more
        database writes for each execution, which then needs the database.

        `effect` says what running it again means: nothing outside changes (`none`), the called service knows the
        idempotency key (`keyed`, as with every call through `ctx.http`), or the effect happens twice (`unsafe`).
        """
        chosen = policy if timeout is None else policy.model_copy(update={"timeout": timeout})

        def register(function: ModuleFunction[In, Out]) -> Module[In, Out]:
            _check_name("module", name, _origin(function))
            if name in self.modules:
                raise RegistrationError(
                    f"module {name!r} ({_origin(function)}): the name is taken by {self.modules[name].origin}"
                )
            models: tuple[type[In], type[Out]] = _models_of(name, function)
            made = Module(name, function, *models, chosen, dedupe, _effect(name, effect))
            self.modules[name] = made
            return made

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
        return [module.snapshot() for module in found.modules]

    def published(self, build_id: str) -> PublishedCatalog:
        """Describe everything registered to processes without the code."""
        modules, pipelines = self.views()
        catalog = Catalog(modules=modules, pipelines=pipelines, build_id=build_id)
        return PublishedCatalog(
            catalog=catalog, inputs={name: self.modules[name].check() for name in sorted(self.modules)}
        )

    def views(self) -> tuple[list[ModuleView], list[PipelineView]]:
        """Describe everything registered."""
        modules = [self.modules[name].view() for name in sorted(self.modules)]
        pipelines = [self.pipelines[name].view() for name in sorted(self.pipelines)]
        return modules, pipelines


class Pipeline:
    """A named, ordered list of modules. Creating one registers it."""

    def __init__(self, name: str, *modules: Module[Any, Any], registry: Registry | None = None) -> None:
        registry = DEFAULT_REGISTRY if registry is None else registry
        self.name = name
        self.modules = modules
        _check_name("pipeline", name, name)
        if name in registry.pipelines:
            raise RegistrationError(f"pipeline {name!r} is declared twice")
        self._check_modules()
        registry.pipelines[name] = self

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

    def check_fits(self, payload: dict[str, Any]) -> None:
        """Refuse a payload with which a step could never start."""
        check_fits([module.shape for module in self.modules], payload)

    def view(self) -> PipelineView:
        """Describe the pipeline to an operator."""
        return PipelineView(name=self.name, steps=[module.name for module in self.modules])


def _check_name(kind: str, name: str, origin: str) -> None:
    if not re.fullmatch(NAME_PATTERN, name):
        raise RegistrationError(f"{kind} {name!r} ({origin}): a name is 1 to 64 of a-z, 0-9 and -")


def _effect(name: str, effect: str) -> Effect:
    try:
        return Effect(effect)
    except ValueError:
        raise RegistrationError(f"module {name!r}: effect {effect!r} is not one of {', '.join(Effect)}") from None


def _origin(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', repr(function))}"


def _models_of(name: str, function: ModuleFunction[In, Out]) -> tuple[type[In], type[Out]]:
    """Read the input and output model from a module's signature."""
    where = f"module {name!r} ({_origin(function)})"
    shape = "write `async def f(ctx: ModuleContext, input: MyInput) -> MyOutput` with two pydantic models"
    if not inspect.iscoroutinefunction(function):
        raise RegistrationError(f"{where}: not an async function; {shape}")
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
