"""What the pages say, draw and check, without a page."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.categories import Category
from redrive.console.web.charts import hour_bars, nice_top, policy_curve, shares, strip
from redrive.console.web.edits import check_input, merge_patch_between, schema_problems
from redrive.console.web.render import ago, cause, count, first_line, marked, short, span, templates
from redrive.contracts import Attempt
from redrive.documents import merge_patch
from redrive.policy import PRESETS, STEP
from redrive.store.dead_letters.figures import FailedHour

NOW = datetime(2026, 11, 16, 3, 0, tzinfo=UTC)
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "place": {"$ref": "#/$defs/Place"}},
    "required": ["n"],
    "$defs": {"Place": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
}
VALUES = st.recursive(
    st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.text(max_size=3), VALUES, max_size=4)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.25, "250 ms"), (4.5, "4.5 s"), (60, "1 min"), (150, "2 min 30 s"), (7200, "2 h"), (273_600, "3 d 4 h")],
)
def test_spans_have_two_units(seconds: float, said: str) -> None:
    """A span is said in its two largest units."""
    assert span(timedelta(seconds=seconds)) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "just now"), (5, "5 s ago"), (3599, "59 min ago"), (90_000, "1 d ago"), (-30, "in 30 s")],
)
def test_times_are_said_from_now(seconds: int, said: str) -> None:
    """A moment is said in one unit, before or after now."""
    assert ago(NOW - timedelta(seconds=seconds), NOW) == said


@pytest.mark.parametrize("category", Category)
def test_every_category_has_its_advice(category: Category) -> None:
    """The page of a dead letter says what to do, whatever the category is."""
    assert cause(category).endswith(".")


def test_words_are_short() -> None:
    """Ids, counts and errors fit into a row."""
    assert short("run-0c55f51b662446df8236580e95aa1fd5") == "…95aa1fd5"
    assert short("run-1") == "run-1"
    assert count(1_234_567) == "1\u202f234\u202f567"
    assert first_line("a\n  b\tc") == "a b c"
    assert len(first_line("x" * 500)) == 200


def test_redacted_values_stand_out_and_nothing_else_is_markup() -> None:
    """The mark is an element; what is around it, and looks like one, is text."""
    shown = str(marked({"card": "[redacted]", "note": "<mark>"}))
    assert shown.count("<mark ") == 1
    assert "&lt;mark&gt;" in shown


@pytest.mark.parametrize("name", templates.list_templates())
def test_every_template_can_be_read(name: str) -> None:
    """A mistake in a page that few open is found here."""
    assert templates.get_template(name).name == name


@given(shown=DOCUMENTS, edited=DOCUMENTS)
def test_an_edit_makes_of_what_was_shown_what_was_typed(shown: dict[str, Any], edited: dict[str, Any]) -> None:
    """The patch, applied as the run applies it, gives the typed document; what is the same is not in it."""
    patch = merge_patch_between(shown, edited)
    assert merge_patch(shown, patch) == edited
    assert merge_patch_between(shown, shown) == {}
    assert merge_patch_between({"a": [1]}, {"a": [True]}) == {"a": [True]}


def test_a_redacted_value_is_no_part_of_an_edit() -> None:
    """It stays as it is in the run, and is not held against the schema."""
    shown = {"n": "[redacted]", "place": {"city": "Bonn"}}
    check = check_input(shown, '{"n": "[redacted]", "place": {"city": "Ulm"}}', SCHEMA)
    assert (check.patch, check.changed, check.problems) == ({"place": {"city": "Ulm"}}, ["place.city"], [])


def test_an_edit_never_puts_the_mark_into_the_run() -> None:
    """A list is replaced as a whole: with a redacted value in it, that would be lost."""
    shown = {"cards": [{"number": "[redacted]", "name": "Ada"}]}
    check = check_input(shown, '{"cards": [{"number": "[redacted]", "name": "Bob"}]}', None)
    assert check.patch is None
    assert "cards: would put [redacted]" in check.problems[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"n": ', "not valid JSON"),
        ("[]", "a JSON object is needed"),
        ('{"n": "x"}', "n: "),
        ('{"place": {"city": "Ulm"}}', '"n" is a required property'),
        ('{"n": 1, "place": {"city": 7}}', "place.city: "),
        ('{"n": null}', "n: null cannot be put in"),
        ("{" + '"a":{' * 200 + "}" * 200 + "}", "nested deeper"),
    ],
)
def test_what_does_not_fit_is_named(text: str, said: str) -> None:
    """Each problem names its place."""
    problems = check_input({"n": 1}, text, SCHEMA).problems
    assert said in problems[0]


def test_a_field_that_the_schema_does_not_have_is_named() -> None:
    """It fits, and would do nothing: the nearest known field is offered."""
    check = check_input({"n": 1}, '{"n": 1, "place": {"city": "Ulm", "stret": "x"}, "nn": 2}', SCHEMA)
    assert check.problems == []
    assert [each.partition(":")[0] for each in check.unknown] == ["place.stret", "nn"]
    assert "did you mean 'n'" in check.unknown[1]


def test_a_schema_fetches_nothing() -> None:
    """A reference to elsewhere is not followed; the command is checked by the worker then."""
    assert schema_problems({}, {"$ref": "http://evil.example/schema.json"}) == []


@pytest.mark.parametrize(("largest", "top"), [(0, 4), (4, 4), (5, 5), (7, 10), (11, 20), (21, 50), (4000, 5000)])
def test_charts_end_at_round_numbers(largest: int, top: int) -> None:
    """The upper edge is the next round number."""
    assert nice_top(largest) == top


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000)), max_size=24))
def test_bars_stay_in_the_drawing(values: list[tuple[int, int]]) -> None:
    """Every bar is within the drawing, and none that stands for something is invisible."""
    hours = [
        FailedHour(begin=NOW + timedelta(hours=index), open=still, closed=closed)
        for index, (still, closed) in enumerate(values)
    ]
    for bar, hour in zip(hour_bars(hours).bars, hours, strict=True):
        assert 0 <= bar.x < bar.x + bar.width <= 960
        assert bar.open_height + bar.closed_height <= 154
        assert (bar.open_height > 0) == (hour.open > 0)


def test_shares_have_a_rest() -> None:
    """The largest are named, the others are one."""
    drawn = shares({f"step-{number}": number for number in range(1, 12)}, most=3)
    assert [(share.name, share.amount) for share in drawn] == [
        ("step-11", 11),
        ("step-10", 10),
        ("step-9", 9),
        ("other", 36),
    ]
    assert all(0 < share.length <= 100 for share in drawn)


def test_attempts_lie_on_their_strip() -> None:
    """From the first at the left to the last at the right; one alone lies at the left."""
    attempts = [
        Attempt(attempt=number, at=NOW + timedelta(seconds=at), category=Category.TIMEOUT, error_type="E", error="e")
        for number, at in enumerate((0, 2, 6), start=1)
    ]
    assert [mark.x for mark in strip(attempts)] == [2.0, 34.0, 98.0]
    assert [mark.x for mark in strip(attempts[:1])] == [2.0]


@pytest.mark.parametrize("policy", [*PRESETS.values(), STEP.model_copy(update={"max_attempts": 1})])
def test_every_policy_can_be_drawn(policy: Any) -> None:
    """One point for each wait; none when there is only one try."""
    curve = policy_curve(policy)
    assert len(curve.points) == policy.max_attempts - 1
    assert all(0 <= x <= 300 and 0 <= y <= 72 for x, y, _ in curve.points)
