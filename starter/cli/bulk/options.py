"""The options that all bulk commands share: which dead letters, and the safety limits."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number
from pydantic import ValidationError

from redrive.bulk import BulkOrder, BulkSelection, BulkVerb
from redrive.contracts import DEFAULT_TENANT
from redrive.documents import validation_sentence
from redrive.errors import Category, InvalidInput
from redrive.starter.cli.times import parse_moment


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Which open dead letters."""

    tenant: Annotated[str, Parameter(help="The tenant whose dead letters they are.")] = DEFAULT_TENANT
    fingerprint: Annotated[
        str | None, Parameter(help="Those that look alike; `redrive dlq stats` shows the fingerprints.")
    ] = None
    pipeline: Annotated[str | None, Parameter(help="Those of this pipeline.")] = None
    module: Annotated[str | None, Parameter(help="Those of this module.")] = None
    step: Annotated[str | None, Parameter(help="Those of this step.")] = None
    category: Annotated[Category | None, Parameter(name_transform=str.lower, help="Failures of this category.")] = None
    since: Annotated[str | None, Parameter(help="Those that failed last since then: `2h`, or `2026-05-01T10:00`.")] = (
        None
    )
    until: Annotated[
        str | None, Parameter(help="Those that failed last before then; a plan prints the moment it was made.")
    ] = None
    text: Annotated[str | None, Parameter(help="A part of the error's text, or of an id.")] = None
    letter: Annotated[
        list[str] | None, Parameter(negative=(), help="This dead letter, by its id; may be given several times.")
    ] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Care:
    """The safety limits."""

    rate: Annotated[float | None, Parameter(help="How many orders to send per second at the most.")] = None
    parallelism: Annotated[
        int, Parameter(validator=Number(gte=1, lte=500), help="How many may be under way at once.")
    ] = 20
    canary: Annotated[
        int, Parameter(validator=Number(gte=0), help="How many go first: the rest waits for their outcome.")
    ] = 0
    stop_percent: Annotated[
        float, Parameter(validator=Number(gte=0, lte=100), help="Stop when more than this share of them fails.")
    ] = 10.0


ALL, USUAL = Chosen(), Care()


def bulk_order(verb: BulkVerb, chosen: Chosen, care: Care, **fields: Any) -> BulkOrder:
    """Build a command from the options, or raise which one is wrong."""
    now = datetime.now(UTC)
    try:
        return BulkOrder(
            tenant=chosen.tenant,
            verb=verb,
            selection=BulkSelection(
                pipeline=chosen.pipeline,
                module=chosen.module,
                step=chosen.step,
                category=chosen.category,
                fingerprint=chosen.fingerprint,
                since=parse_moment("--since", chosen.since, now),
                until=parse_moment("--until", chosen.until, now),
                text=chosen.text,
                letters=chosen.letter or None,
            ),
            rate=care.rate,
            parallelism=care.parallelism,
            canary=care.canary,
            stop_percent=care.stop_percent,
            **fields,
        )
    except ValidationError as error:
        raise InvalidInput(validation_sentence(error)) from error
