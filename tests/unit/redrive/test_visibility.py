"""The search attributes of runs and dead letters."""

from redrive.contracts import KEYWORD_LIMIT, SearchAttribute
from redrive.visibility import search_attributes, shown_value, updates


def test_values_that_are_missing_are_left_out() -> None:
    """An empty keyword would hide the one that is shown."""
    shown = search_attributes(tenant="acme", pipeline="", status="RUNNING")
    assert {name: shown_value(shown, name) for name in SearchAttribute} == {
        SearchAttribute.TENANT: "acme",
        SearchAttribute.PIPELINE: None,
        SearchAttribute.STATUS: "RUNNING",
        SearchAttribute.FAILED_STEP: None,
        SearchAttribute.CATEGORY: None,
    }


def test_a_value_that_temporal_would_refuse_is_cut() -> None:
    """It would fail the workflow task again and again."""
    shown = search_attributes(tenant="acme", pipeline="p" * (KEYWORD_LIMIT + 1))
    assert shown_value(shown, SearchAttribute.PIPELINE) == "p" * KEYWORD_LIMIT


def test_what_is_shown_is_not_written_again() -> None:
    """Each upsert is an event in the history."""
    shown = search_attributes(tenant="acme", status="pending")
    [update] = updates(search_attributes(tenant="acme", status="replayed"), shown)
    assert (update.key.name, update.value) == (SearchAttribute.STATUS, "replayed")
    assert updates(shown, shown) == []
