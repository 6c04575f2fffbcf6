"""The options that say which dead letters are meant."""

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redrive.dead_letters import LetterSelection
from redrive.errors import InvalidInput
from redrive.starter.cli.bulk.commands import BulkLetters
from redrive.starter.cli.dead_letters.lists import LetterOptions

NOW = datetime(2026, 11, 16, 3, 0, tzinfo=UTC)


def test_every_filter_is_an_option() -> None:
    """A filter that a list can be asked for can be asked for on the command line."""
    assert {each.name for each in fields(LetterOptions)} == LetterSelection.model_fields.keys()


def test_times_are_counted_back_from_now() -> None:
    """The same options of a list and of a bulk operation are the same selection."""
    given: dict[str, Any] = {"step": "charge", "since": "2h", "text": "key-1", "letters": ["dead-letter-run-1-charge"]}
    expected = LetterSelection(**given | {"since": NOW - timedelta(hours=2)})
    assert LetterOptions(**given).selection(NOW) == BulkLetters(tenant="acme", **given).selection(NOW) == expected


def test_what_does_not_fit_is_named() -> None:
    """A sentence, not a stack trace."""
    with pytest.raises(InvalidInput, match="letters"):
        LetterOptions(letters=[""]).selection(NOW)
