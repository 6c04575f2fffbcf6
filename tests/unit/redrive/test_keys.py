"""Idempotency keys and the ids that are computed from them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import InvalidInput
from redrive.keys import KEY_LIMIT, check_key, new_run_id, run_id_for_key, step_key

TENANTS = st.from_regex(r"[a-z0-9-]{1,64}", fullmatch=True)
VISIBLE = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=KEY_LIMIT)


def test_a_keys_run_id_never_changes() -> None:
    """The id is the same in every version of this code: it is what finds the run again."""
    assert run_id_for_key("acme", "billing:7:invoice:create:v1") == "run-fnmi6c3czayqto4goqlx5sp6mlnpds6t"


@given(*[st.tuples(TENANTS, VISIBLE, st.integers(0, 3))] * 2)
def test_two_runs_share_an_id_only_if_all_is_the_same(one: tuple[str, str, int], other: tuple[str, str, int]) -> None:
    """Tenant, key and generation each make another run."""
    tenant, key, generation = one
    assert (run_id_for_key(*one) == run_id_for_key(*other)) is (one == other)
    assert run_id_for_key(tenant, key, generation + 1) != run_id_for_key(*one)
    assert run_id_for_key(f"{tenant}x", key, generation) != run_id_for_key(*one)
    assert run_id_for_key(tenant, f"{key}x", generation) != run_id_for_key(*one)


@given(TENANTS, VISIBLE)
def test_a_run_id_is_short_and_plain(tenant: str, key: str) -> None:
    """Whatever the key, the id can stand in a URL, a log line and a shell."""
    assert re.fullmatch(r"run-[a-z2-7]{32}", run_id_for_key(tenant, key))


@given(VISIBLE)
def test_visible_characters_make_a_key(key: str) -> None:
    """Any 1 to 255 visible characters are a key, and stay as they are."""
    assert check_key(key) == key


@given(st.text(max_size=300))
def test_a_key_is_accepted_or_refused_with_a_sentence(key: str) -> None:
    """An accepted key can be stored and sent; any other is refused as invalid input."""
    try:
        check_key(key)
    except InvalidInput as refusal:
        sentence = str(refusal)
    else:
        sentence = "key: accepted"
        assert key.encode()
        assert "\n" not in key
        assert 1 <= len(key) <= KEY_LIMIT
    assert sentence.startswith("key: ")


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        ("", "0 characters"),
        ("x" * 256, "256 characters"),
        ("a b", "character 2 is ' '"),
        ("a\n", r"character 2 is '\\n'"),
        ("\0", r"character 1 is '\\x00'"),
        ("a\u00a0b", r"character 2 is '\\xa0'"),
        ("\ud800", "character 1 is"),
        ("a\u200b", "character 2 is"),
    ],
)
def test_a_bad_key_is_refused_with_the_place(key: str, sentence: str) -> None:
    """The sentence says how long it is, or which character cannot be in a key."""
    with pytest.raises(InvalidInput, match=sentence):
        check_key(key)


def test_a_step_key_names_run_step_and_operation() -> None:
    """Every attempt computes the same key."""
    assert step_key("run-1", "charge", "create") == "run-1:charge:create"


def test_new_run_ids_sort_by_time() -> None:
    """Later runs have later ids."""
    ids = [new_run_id() for _ in range(100)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 100
