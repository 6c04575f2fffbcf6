"""Dead letters for any Temporal workflow: `Client.connect(address, plugins=[DeadLetters(workflows=["Order*"])])`.

An activity, local activity or child workflow that has failed for good parks its workflow at that await; the dead
letter is an ordinary one of Redrive. The users' process needs no PostgreSQL: it signals Redrive's own worker.
"""

from typing import TYPE_CHECKING, Any

from redrive.plugin.options import errors_raised, no_dead_letters

if TYPE_CHECKING:
    from redrive.plugin.plugin import DeadLetters

__all__ = ["DeadLetters", "errors_raised", "no_dead_letters"]


def __getattr__(name: str) -> Any:
    # Workflow files import the other two, also in Temporal's sandbox and after the plugin was removed from a worker.
    if name == "DeadLetters":
        from redrive.plugin.plugin import DeadLetters  # noqa: PLC0415

        return DeadLetters
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
