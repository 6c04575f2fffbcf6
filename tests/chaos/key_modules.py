"""The keyed pipeline, for workers that are real processes."""

from redrive.modules import DEFAULT_REGISTRY
from tests.chaos.key_caller import keyed_registry

_ours = keyed_registry()
DEFAULT_REGISTRY.modules.update(_ours.modules)
DEFAULT_REGISTRY.pipelines.update(_ours.pipelines)
