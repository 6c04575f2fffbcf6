"""The modules and pipelines that this worker knows."""

from temporalio import activity

from redrive.contracts import ERROR_TEXT_LIMIT, Activity, Catalog, Resolution, ResolveRequest
from redrive.documents import check_payload
from redrive.errors import InvalidInput
from redrive.modules import Registry
from redrive.redaction.redactor import Redactor


class CatalogActivities:
    """Answer queries about a registry."""

    def __init__(self, registry: Registry, build_id: str) -> None:
        self._registry = registry
        self._build_id = build_id

    @activity.defn(name=Activity.DESCRIBE_MODULES)
    async def describe_modules(self) -> Catalog:
        """List all modules and pipelines."""
        modules, pipelines = self._registry.views()
        return Catalog(modules=modules, pipelines=pipelines, build_id=self._build_id)

    @activity.defn(name=Activity.RESOLVE_PIPELINE)
    async def resolve_pipeline(self, request: ResolveRequest) -> Resolution:
        """Return a pipeline's steps, or why this payload cannot start it."""
        try:
            return Resolution(steps=self._registry.resolve(request.pipeline, check_payload(request.payload)))
        except InvalidInput as error:
            return Resolution(problem=str(error), code=error.code)
        except Exception as error:  # a module's input validator may raise anything, and Temporal would retry it forever
            why = Redactor().beginning(f"{type(error).__name__}: {error}", ERROR_TEXT_LIMIT)
            return Resolution(problem=f"payload cannot be checked: {why}", code=InvalidInput.code)
