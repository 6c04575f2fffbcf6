"""Keys that say what they are for, how long they live, and the keys of steps."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import IdempotencyKey, InvalidInput
from redrive.keys import KEY_LIMIT, check_key, check_ttl, step_key

# Three characters, so that no key is too long with all of them escaped.
FIELDS = st.tuples(*[st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=3)] * 5)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("workflow:user_123:run_456:module:resume:v1", ("workflow", "user_123", "run_456", "module:resume", "v1")),
        ("mission:user_123:instance_456:start:v1", ("mission", "user_123", "instance_456", "start", "v1")),
        (
            "service:user_123:interview:configure:session_abc",
            ("service", "user_123", "interview", "configure", "session_abc"),
        ),
        ("event:user_123:growEventId:project:qscore:v1", ("event", "user_123", "growEventId", "project:qscore", "v1")),
        (
            "opencode:user_123:run_456:interview-plan:prompt-v4",
            ("opencode", "user_123", "run_456", "interview-plan", "prompt-v4"),
        ),
    ],
)
def test_the_examples_of_the_convention_are_built_and_parsed(text: str, fields: tuple[str, ...]) -> None:
    """Each example is the key of its fields, and has these fields."""
    assert IdempotencyKey.build(*fields) == text
    assert IdempotencyKey.parse(text) == IdempotencyKey(*fields)


@given(FIELDS)
def test_any_fields_come_back_as_they_were(fields: tuple[str, str, str, str, str]) -> None:
    """Separators, spaces and what is invisible are escaped: the key is one, and says the same again."""
    key = IdempotencyKey.build(*fields)
    assert check_key(key) == key
    assert IdempotencyKey.parse(key) == IdempotencyKey(*fields)


@given(FIELDS, FIELDS)
def test_two_keys_are_the_same_only_for_the_same_fields(
    one: tuple[str, str, str, str, str], other: tuple[str, str, str, str, str]
) -> None:
    """No field can reach into its neighbour."""
    assert (IdempotencyKey.build(*one) == IdempotencyKey.build(*other)) is (one == other)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("order:4711", "not of the form"),
        ("", "0 characters"),
        ("a:b:c:d:%ff", "not UTF-8"),
        ("a b:c:d:e:f", "' '"),
    ],
)
def test_what_is_no_such_key_is_said(text: str, sentence: str) -> None:
    """A text that does not follow the convention is refused with the reason."""
    with pytest.raises(InvalidInput, match=sentence):
        IdempotencyKey.parse(text)


def test_an_empty_field_is_refused_by_its_name() -> None:
    """A key with a hole in it is a mistake of its caller."""
    with pytest.raises(InvalidInput, match="its entity is empty"):
        IdempotencyKey.build("order", "ann", "", "pay", "v1")
    with pytest.raises(InvalidInput, match="not valid text"):
        IdempotencyKey.build("order", "\ud800", "4711", "pay", "v1")
    with pytest.raises(InvalidInput, match=f"has 1 to {KEY_LIMIT}"):
        IdempotencyKey.build("order", "ann", "x" * KEY_LIMIT, "pay", "v1")


@pytest.mark.parametrize("ttl", [timedelta(0), timedelta(seconds=-1), timedelta(days=4000)])
def test_a_time_to_live_is_a_time(ttl: timedelta) -> None:
    """Nothing, less than nothing and a lifetime are refused."""
    with pytest.raises(InvalidInput, match="ttl: "):
        check_ttl(ttl)


@given(*[st.tuples(st.text("ab:v12%é ", min_size=1, max_size=6), st.integers(0, 3))] * 2)
def test_calls_of_a_step_share_a_key_only_if_they_are_the_same(one: tuple[str, int], other: tuple[str, int]) -> None:
    """An operation named like another one's version does not get its key."""
    assert (step_key("run-1", "charge", *one) == step_key("run-1", "charge", *other)) is (one == other)


def test_an_edit_gives_a_steps_keys_a_version() -> None:
    """The first call has none; each edit of the input gives the next."""
    assert [step_key("run-1", "charge", "create", version) for version in (0, 1, 2)] == [
        "run-1:charge:create",
        "run-1:charge:create:v2",
        "run-1:charge:create:v3",
    ]
