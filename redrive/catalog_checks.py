"""Checks by published catalogs: what a process without the modules' code can say about a start. Pure.

Builds differ while a release rolls out. What one of them takes is not refused, and neither is what cannot be checked:
the run itself decides, and fails with the same sentence.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import SchemaError, to_json

from redrive.contracts import Catalog, InputCheck, ModuleView, PipelineView, PublishedCatalog, StepSnapshot
from redrive.documents import step_input
from redrive.errors import InvalidInput, UnknownPipeline
from redrive.input_rules import rules_validator
from redrive.payload_fit import StepShape, check_fits, unknown_pipeline


class BuildCatalog:
    """The catalog of one build."""

    def __init__(self, published: PublishedCatalog) -> None:
        self.catalog = published.catalog
        self._inputs = published.inputs
        self._modules = {module.name: module for module in published.catalog.modules}
        self._shapes: dict[str, StepShape] = {}
        self.pipelines = {pipeline.name: pipeline.steps for pipeline in published.catalog.pipelines}

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
        return [self._snapshot(self._modules[name], self._inputs[name]) for name in names]

    def _snapshot(self, module: ModuleView, check: InputCheck) -> StepSnapshot:
        return StepSnapshot(name=module.name, policy=module.policy, reads=check.reads, dedupe=module.dedupe)

    def _shape(self, module: str) -> StepShape:
        if module not in self._shapes:
            self._shapes[module] = _shape(module, self._inputs[module])
        return self._shapes[module]


def _shape(module: str, check: InputCheck) -> StepShape:
    validator = rules_validator(check.rules)

    def validate(document: dict[str, Any]) -> object:
        return validator.validate_json(to_json(step_input(document, check.reads)))

    return StepShape(module, check.required, validate)


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
