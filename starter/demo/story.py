"""The demo's runs and their expected outcomes."""

from dataclasses import dataclass

from redrive.contracts import RunStatus, RunView, StepStatus


@dataclass(frozen=True)
class Scene:
    """One run of the demo."""

    pipeline: str
    payload: dict[str, object]
    about: str
    edit: dict[str, object] | None = None

    @property
    def title(self) -> str:
        """The pipeline, and what is ordered."""
        return f"{self.pipeline} {self.payload.get('item', '')}".strip()


SCENES = (
    Scene("hello", {"name": "Ada"}, "one step, no service"),
    Scene("order", {"item": "lamp", "quantity": 1}, "three calls, all well"),
    Scene("order", {"item": "kettle", "quantity": 2}, "two 503s, then it heals"),
    Scene("order", {"item": "violin", "quantity": 1}, "a 429: waits as long as the service asks"),
    Scene("order", {"item": "piano", "quantity": 1}, "a hang: cut off at the deadline, tried again"),
    Scene("order", {"item": "ghost", "quantity": 1}, "a 400: parked, edited, replayed", edit={"item": "lamp"}),
)


def at_rest(view: RunView) -> bool:
    """Tell whether a run has ended, or waits for an operator."""
    return view.status.closed or view.status is RunStatus.DLQ_PENDING


def replayed(view: RunView) -> bool:
    """Tell whether a run succeeded after one of its steps was a dead letter."""
    return view.status is RunStatus.SUCCESS and any(step.cycle > 1 for step in view.steps)


def healed(view: RunView) -> bool:
    """Tell whether a run succeeded after retries alone."""
    tried_again = any(step.attempt > 1 and step.status is StepStatus.SUCCESS for step in view.steps)
    return view.status is RunStatus.SUCCESS and tried_again and not replayed(view)


def as_told(views: list[RunView]) -> bool:
    """Tell whether every run succeeded, and those with an edit by their replay."""
    return all(
        view.status is RunStatus.SUCCESS and replayed(view) is (scene.edit is not None)
        for scene, view in zip(SCENES, views, strict=True)
    )
