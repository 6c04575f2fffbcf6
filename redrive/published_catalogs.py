"""The catalogs that workers publish in PostgreSQL: written by workers, read by callers without the modules' code.

Fast, or not at all: a start never waits long for the database, and never fails because a catalog is not known. Builds
differ while a release rolls out. What one of them takes is not refused, and neither is what cannot be checked: the run
itself decides, and fails with the same sentence.
"""

import asyncio
import hashlib
import math
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import SchemaError, to_json

from redrive.contracts import Catalog, InputCheck, ModuleView, PipelineView, PublishedCatalog, StepSnapshot
from redrive.documents import step_input, validation_sentence
from redrive.errors import InvalidInput, UnknownPipeline
from redrive.input_rules import StepShape, check_fits, rules_validator, unknown_pipeline
from redrive.logs import get_logger
from redrive.modules import Registry
from redrive.postgres.database import DATABASE_ERRORS, CircuitBreaker, DeadlinePool
from redrive.postgres.tenancy import Session

LONGEST: Final = timedelta(seconds=3)
# A catalog that accepts a start is used this long before it is read again; one that refuses is read again at once.
MEMORY: Final = 60.0
# A worker says this often that it is there.
INTERVAL: Final = timedelta(minutes=1)
RETRY_INTERVAL: Final = timedelta(seconds=5)
# The builds that were there when the last worker was seen: without any worker, the last ones are still known.
_READ: Final = """
    SELECT digest, CASE WHEN digest <> ALL ($3::text[]) THEN document END AS document
    FROM catalogs
    WHERE namespace = $1 AND task_queue = $2 AND seen_at > (
        SELECT max(seen_at) - interval '5 minutes' FROM catalogs WHERE namespace = $1 AND task_queue = $2
    )
    ORDER BY published_at DESC, build_id DESC
"""
_SEEN: Final = """
    UPDATE catalogs SET seen_at = now() WHERE namespace = $1 AND task_queue = $2 AND build_id = $3 AND digest = $4
    RETURNING true
"""
_PUBLISH: Final = """
    INSERT INTO catalogs (namespace, task_queue, build_id, digest, document) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (namespace, task_queue, build_id, digest) DO UPDATE SET seen_at = now(), published_at = now()
"""
_FORGET: Final = """
    DELETE FROM catalogs WHERE namespace = $1 AND task_queue = $2 AND seen_at < now() - interval '30 days'
"""

log = get_logger(__name__)


class BuildCatalog:
    """The catalog of one build."""

    def __init__(self, published: PublishedCatalog) -> None:
        self.catalog = published.catalog
        self._inputs = published.inputs
        self._outputs = published.outputs
        self._modules = {module.name: module for module in published.catalog.modules}
        self._shapes: dict[str, StepShape] = {}
        self.pipelines = {pipeline.name: pipeline.steps for pipeline in published.catalog.pipelines}
        self._fast = {pipeline.name: pipeline.fast for pipeline in published.catalog.pipelines}

    @classmethod
    def read(cls, document: str) -> "BuildCatalog | None":
        """Read a stored catalog; None for one of a release that writes it in another way."""
        try:
            return cls(PublishedCatalog.model_validate_json(document))
        except ValidationError:
            return None

    def refusal(self, pipeline: str, payload: dict[str, Any]) -> InvalidInput | None:
        """Return why this build would refuse a payload, a checked one."""
        if pipeline not in self.pipelines:
            return unknown_pipeline(pipeline, self.pipelines)
        try:
            check_fits([self._shape(step) for step in self.pipelines[pipeline]], payload)
        except InvalidInput as error:
            return error
        except (KeyError, SchemaError):
            # Another release's, or another version's of pydantic.
            return None
        return None

    def steps(self, pipeline: str) -> list[StepSnapshot] | None:
        """Return the steps of a run whose payload is not refused; None if the code may still refuse it."""
        names = self.pipelines.get(pipeline, [])
        if not all(name in self._inputs for name in names) or not self._inputs[names[0]].is_complete:
            return None
        return [
            _snapshot(self._modules[name], self._inputs[name], is_fast=name in self._fast[pipeline]) for name in names
        ]

    def has(self, module: str) -> bool:
        """Tell whether this build has a module."""
        return module in self._modules

    def input_problem(self, module: str, document: dict[str, Any]) -> str | None:
        """Return why the step of a module would refuse its input; None if it takes it, or may."""
        try:
            self._shape(module).validate(document)
        except ValidationError as error:
            return validation_sentence(error)
        except (KeyError, SchemaError):
            return None
        return None

    def output_problem(self, module: str, output: object) -> str | None:
        """Return why a module could not have returned an output; None if it could, or may."""
        try:
            rules_validator(self._outputs[module]).validate_json(to_json(output))
        except ValidationError as error:
            return validation_sentence(error)
        except (KeyError, SchemaError):
            return None
        return None

    def _shape(self, module: str) -> StepShape:
        if module not in self._shapes:
            self._shapes[module] = _shape(module, self._inputs[module])
        return self._shapes[module]


def _snapshot(module: ModuleView, check: InputCheck, *, is_fast: bool) -> StepSnapshot:
    return StepSnapshot(name=module.name, policy=module.policy, reads=check.reads, dedupe=module.dedupe, fast=is_fast)


def _shape(module: str, check: InputCheck) -> StepShape:
    validator = rules_validator(check.rules)

    def validate(document: dict[str, Any]) -> object:
        return validator.validate_json(to_json(step_input(document, check.reads)))

    return StepShape(module, check.required, validate, check.reads)


Builds = Sequence[BuildCatalog | None]


"""The builds whose workers are there, the newest first; None for one whose catalog cannot be read."""


def refusal(builds: Builds, pipeline: str, payload: dict[str, Any]) -> InvalidInput | None:
    """Return why all builds refuse a payload; None if one takes it, or may."""
    refusals: list[InvalidInput] = []
    for build in builds:
        refused = build.refusal(pipeline, payload) if build else None
        if refused is None:
            return None
        refusals.append(refused)
    known = [each for each in refusals if not isinstance(each, UnknownPipeline)]
    names = {name for build in builds if build for name in build.pipelines}
    return known[0] if known else unknown_pipeline(pipeline, names) if refusals else None


def steps_of(builds: Builds, pipeline: str, payload: dict[str, Any]) -> list[StepSnapshot] | None:
    """Return the steps that the newest build that takes the payload would run; None if only a worker knows them."""
    for build in builds:
        if build is None:
            return None
        if build.refusal(pipeline, payload) is None:
            return build.steps(pipeline)
    return None


def input_problem(builds: Builds, module: str, document: dict[str, Any]) -> str | None:
    """Return why all builds with a module refuse the input of its step; None if one takes it, or may."""
    return _common_problem(builds, module, lambda build: build.input_problem(module, document))


def output_problem(builds: Builds, module: str, output: object) -> str | None:
    """Return why, by all builds with a module, it could not have returned an output; None if by one it could."""
    return _common_problem(builds, module, lambda build: build.output_problem(module, output))


def _common_problem(builds: Builds, module: str, problem: Callable[[BuildCatalog], str | None]) -> str | None:
    problems = [problem(build) if build else None for build in builds if build is None or build.has(module)]
    return problems[0] if problems and all(problems) else None


def merged(builds: Builds) -> Catalog | None:
    """Return what all builds know together, each module as the newest one has it; None if nothing is known."""
    readable = [build.catalog for build in builds if build]
    if not readable:
        return None
    modules: dict[str, ModuleView] = {}
    pipelines: dict[str, PipelineView] = {}
    for catalog in readable:
        for module in catalog.modules:
            modules.setdefault(module.name, module)
        for pipeline in catalog.pipelines:
            pipelines.setdefault(pipeline.name, pipeline)
    return Catalog(
        modules=[modules[name] for name in sorted(modules)],
        pipelines=[pipelines[name] for name in sorted(pipelines)],
        build_id=readable[0].build_id,
    )


class PublishedCatalogs:
    """What the workers of a task queue have published."""

    def __init__(self, pool: DeadlinePool, namespace: str, task_queue: str) -> None:
        self._breaker = CircuitBreaker(pool, LONGEST)
        self._place = (namespace, task_queue)
        self._builds: Builds = ()
        self._known: dict[str, BuildCatalog | None] = {}
        self._asked_at = -math.inf
        self._reading = asyncio.Lock()

    async def refusal(self, pipeline: str, payload: dict[str, Any]) -> InvalidInput | None:
        """Return why all workers would refuse a payload; None if one takes it, or if that is not known."""
        if refusal(await self._read(MEMORY), pipeline, payload) is None:
            return None
        return refusal(await self._read(0), pipeline, payload)

    async def steps(self, pipeline: str, payload: dict[str, Any]) -> list[StepSnapshot] | None:
        """Return the steps that a run would have; None if only a worker knows whether the payload fits."""
        return steps_of(await self._read(MEMORY), pipeline, payload)

    async def input_problem(self, module: str, document: dict[str, Any]) -> str | None:
        """Return why all workers would refuse a step's input; None if one takes it, or if that is not known."""
        return input_problem(await self._read(0), module, document)

    async def output_problem(self, module: str, output: object) -> str | None:
        """Return why no worker would let a module return an output; None if one would, or if that is not known."""
        return output_problem(await self._read(0), module, output)

    async def catalog(self) -> Catalog | None:
        """Return what all workers know together; None if nothing was published, or the database does not answer."""
        return merged(await self._read(0))

    async def _read(self, age: float) -> Builds:
        """Return the builds as of so many seconds ago at most; none if the database does not answer."""
        wanted = time.monotonic() - age
        if self._asked_at >= wanted:
            return self._builds
        async with self._reading:
            # Another caller may have read them while this one waited.
            if self._asked_at < wanted:
                await self._read_again()
            return self._builds

    async def _read_again(self) -> None:
        asked_at = time.monotonic()
        rows = await self._breaker.ask(self._rows, _tell)
        if rows is None:
            self._builds, self._asked_at = (), -math.inf
            return
        for digest, document in rows:
            if document is not None:
                self._known[digest] = BuildCatalog.read(document)
        self._known = {digest: self._known[digest] for digest, _ in rows}
        self._builds = list(self._known.values())
        self._asked_at = asked_at

    async def _rows(self, session: Session) -> list[tuple[str, str | None]]:
        return [(row["digest"], row["document"]) for row in await session.fetch(_READ, *self._place, list(self._known))]


def _tell(error: Exception) -> None:
    log.warning("catalog.not_read", error_type=type(error).__name__, error=str(error))


class Publication:
    """A worker's catalog in the database."""

    def __init__(
        self, pool: DeadlinePool, registry: Registry, *, namespace: str, task_queue: str, build_id: str
    ) -> None:
        self._pool = pool
        self._place = (namespace, task_queue)
        self._build_id = build_id
        self._document = _document(registry, build_id)
        self._digest = hashlib.sha256(self._document.encode()).hexdigest()
        self._is_published = False
        self.tried = asyncio.Event()

    async def keep(self) -> None:
        """Publish the catalog, and say that the worker is there, until this is canceled."""
        while True:
            interval = INTERVAL
            try:
                await self._pool.ask(self._publish, LONGEST)
            except DATABASE_ERRORS as error:
                log.warning("worker.catalog_not_published", error_type=type(error).__name__, error=str(error))
                interval = RETRY_INTERVAL
            finally:
                # A worker waits for this before it takes its first task.
                self.tried.set()
            await asyncio.sleep(interval.total_seconds())

    async def _publish(self, session: Session) -> None:
        row = (*self._place, self._build_id, self._digest)
        if self._is_published and await session.fetchval(_SEEN, *row):
            return
        await session.execute(_PUBLISH, *row, self._document)
        await session.execute(_FORGET, *self._place)
        self._is_published = True


def _document(registry: Registry, build_id: str) -> str:
    try:
        return registry.published(build_id).model_dump_json()
    except Exception as error:  # a model's own schema may raise anything
        log.warning("worker.catalog_not_published", error_type=type(error).__name__, error=str(error))
        # A catalog that cannot be read: nothing is refused by it.
        return "null"
