"""The options that say which dead letters are meant."""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated

from cyclopts import Parameter
from pydantic import ValidationError

from redrive.categories import Category
from redrive.dead_letters import LetterSelection
from redrive.documents import validation_sentence
from redrive.errors import InvalidInput
from redrive.starter.cli.times import parse_moment


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LetterOptions:
    """Which dead letters."""

    pipeline: Annotated[str | None, Parameter(help="Only those of this pipeline.")] = None
    module: Annotated[str | None, Parameter(help="Only those of this module.")] = None
    step: Annotated[str | None, Parameter(help="Only those of this step.")] = None
    category: Annotated[
        Category | None, Parameter(name_transform=str.lower, help="Only failures of this category.")
    ] = None
    fingerprint: Annotated[
        str | None, Parameter(help="Only similar failures; `redrive dlq stats` shows the fingerprints.")
    ] = None
    since: Annotated[
        str | None,
        Parameter(
            help="Only those whose last failure was since then: `2h`, `3d`, or a time such as `2026-05-01T10:00`."
        ),
    ] = None
    until: Annotated[str | None, Parameter(help="Only those whose last failure was before then.")] = None
    text: Annotated[
        str | None, Parameter(help="A run id, correlation id or idempotency key; or a part of the error's text.")
    ] = None
    letters: Annotated[
        list[str] | None,
        Parameter(name="--letter", negative=(), help="This dead letter, by its id; may be given several times."),
    ] = None

    def selection(self, now: datetime) -> LetterSelection:
        """Return the selection, or raise which option is wrong; durations count back from now."""
        given = {name: value for name, value in asdict(self).items() if name in LetterSelection.model_fields}
        moments = {name: parse_moment(f"--{name}", given[name], now) for name in ("since", "until")}
        try:
            return LetterSelection(**given | moments)
        except ValidationError as error:
            raise InvalidInput(validation_sentence(error)) from error
