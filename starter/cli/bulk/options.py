"""The options that all bulk commands share: which dead letters, and the safety limits."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number
from pydantic import ValidationError

from redrive.bulk import BulkCommand, BulkVerb
from redrive.contracts import DEFAULT_TENANT
from redrive.documents import validation_sentence
from redrive.errors import InvalidInput
from redrive.starter.cli.dead_letters.selection import LetterOptions


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BulkLetters(LetterOptions):
    """Which open dead letters of a tenant."""

    tenant: Annotated[str, Parameter(help="The tenant whose dead letters they are.")] = DEFAULT_TENANT


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Care:
    """The safety limits."""

    rate: Annotated[float | None, Parameter(help="Maximum number of commands per second.")] = None
    parallelism: Annotated[
        int, Parameter(validator=Number(gte=1, lte=500), help="How many may be under way at once.")
    ] = 20
    canary: Annotated[
        int, Parameter(validator=Number(gte=0), help="How many go first: the rest waits for their outcome.")
    ] = 0
    stop_percent: Annotated[
        float, Parameter(validator=Number(gte=0, lte=100), help="Stop when more than this share of them fails.")
    ] = 10.0


ALL, USUAL = BulkLetters(), Care()


def bulk_command(verb: BulkVerb, chosen: BulkLetters, care: Care, **fields: Any) -> BulkCommand:
    """Build a command from the options, or raise which one is wrong."""
    selection = chosen.selection(datetime.now(UTC))
    try:
        return BulkCommand(tenant=chosen.tenant, verb=verb, selection=selection, **asdict(care), **fields)
    except ValidationError as error:
        raise InvalidInput(validation_sentence(error)) from error
