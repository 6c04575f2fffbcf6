"""The demo's story: which runs there are, and what should become of each."""

from dataclasses import dataclass

from redrive.contracts import RunStatus, RunView


@dataclass(frozen=True)
class Scene:
    """One run of the demo."""

    pipeline: str
    payload: dict[str, object]
    about: str
    ends: RunStatus = RunStatus.SUCCESS

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
    Scene("order", {"item": "ghost", "quantity": 1}, "a 400: tried once, fails for good", RunStatus.FAILED),
)


def as_told(views: list[RunView]) -> bool:
    """Tell whether every run ended as its scene says."""
    return all(view.status is scene.ends for scene, view in zip(SCENES, views, strict=True))
