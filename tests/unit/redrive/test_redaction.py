"""No secret is left, everything else is, and no text takes long."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.contracts import DEPTH_LIMIT
from redrive.redaction.redactor import MARK, Redactor

REDACTOR = Redactor(extra_keys=["date_of_birth"])
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIEow==\n-----END RSA PRIVATE KEY-----"

SENSITIVE = ["password", "db_password", "passwordHash", "X-Api-Key", "apikey", "access_token", "Authorization"]
SENSITIVE += ["Set-Cookie", "PRIVATE_KEY", "aws.access-key", "clientSecret", "credentials", "cvv", "cardNumber", "ssn"]
SENSITIVE += ["dateOfBirth", "refreshToken"]
HARMLESS = [
    "user",
    "key",
    "idempotency_key",
    "max_tokens",
    "token_count",
    "session",
    "passenger",
    "classname",
    "author",
]

# Pieces of what the patterns look for, so that random texts come near to them.
PIECES = [
    "password",
    "token",
    "cookie",
    "=",
    ":",
    '"',
    "'",
    "\\",
    " ",
    "\n",
    "&",
    "://",
    "@",
    "/",
    "u",
    "bearer ",
    "eyJ",
]
PIECES += [".", "4111", "1111", "-", MARK, "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "%3D", "api_key"]
PIECES += ["redacted", "[", "]", "4111111111111111", "basic ", "cvv", ",", "}", "ab", "sk-", "\r", "date of birth"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=25).map("".join) | st.text()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(SENSITIVE + HARMLESS), inner),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("password=hunter2 next", f"password={MARK} next"),
        ("db_password: hunter2, user: bob", f"db_password: {MARK}, user: bob"),
        ('{"password": "a\\"b", "user": "bob"}', f'{{"password": "{MARK}", "user": "bob"}}'),
        ("{'api_key': 'abc', 'n': 1}", f"{{'api_key': '{MARK}', 'n': 1}}"),
        ('{\\"token\\":\\"abc\\",\\"n\\":1}', f'{{\\"token\\":\\"{MARK}\\",\\"n\\":1}}'),
        ("Settings(cvv=123)", f"Settings(cvv={MARK})"),
        ("client_secret => 'x'", f"client_secret => '{MARK}'"),
        ('password="never closed', f'password="{MARK}'),
        ("GET /pay?token=abc&page=2", f"GET /pay?token={MARK}&page=2"),
        ("next%3Dx token%3Dabc", f"next%3Dx token%3D{MARK}"),
        ("Authorization: Bearer abc.def", f"Authorization: {MARK}"),
        ("Authorization: Custom a b c\nHost: x", f"Authorization: {MARK}\nHost: x"),
        ('Cookie: a="1"; b=2', f"Cookie: {MARK}"),
        ("sent bearer abcd-1234.", f"sent bearer {MARK}"),
        ("sent Basic dXNlcjpwYXNz ok", f"sent Basic {MARK} ok"),
        (f"jwt was {JWT}!", f"jwt was {MARK}!"),
        (f"key: {PEM} end", f"key: {MARK} end"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE", MARK),
        ("http://u:token=a/b&x@h", f"http://u:{MARK}@h"),
        ("postgres://app:p@ss@db:5432/x", f"postgres://app:{MARK}@db:5432/x"),
        ("paid with 4111 1111 1111 1111 12/28", f"paid with {MARK} 12/28"),
        ("ids 12 4111-1111-1111-1111.", f"ids 12 {MARK}."),
        ("378282246310005", MARK),
        ("sk_live_abcdefgh1234", MARK),
        ("date-of-birth: 1990-01-01", f"date-of-birth: {MARK}"),
    ],
)
def test_secret_is_taken_out_of_text(text: str, expected: str) -> None:
    """Secrets go by name or by shape, and what stands around them stays."""
    assert REDACTOR.text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "step 'charge' failed after 3 attempts",
        "Bearer token is missing",
        "basic authentication failed",
        "max_tokens=512 tokens: 7",
        "at 1700000000000 and 1700000000000000",
        "run 550e8400-e29b-41d4-a716-446655440000",
        "order 4111111111111112",
        "0.4111111111111111",
        "http://host:8080/a@b",
        "idempotency_key=run-1:charge:create",
        "",
    ],
)
def test_harmless_text_stays(text: str) -> None:
    """Words, ids, times and numbers that only resemble a secret are kept."""
    assert REDACTOR.text(text) == text


@pytest.mark.parametrize("key", SENSITIVE)
@pytest.mark.parametrize("item", ["x", 7, ["x"], {"y": "x"}, ""])
def test_value_under_a_sensitive_name_is_taken_out(key: str, item: Any) -> None:
    """Names count in any case and with any separator, and hide whatever stands under them."""
    assert REDACTOR.value([{key: item, "n": 1}]) == [{key: MARK, "n": 1}]


@pytest.mark.parametrize("key", HARMLESS)
def test_value_under_a_harmless_name_stays(key: str) -> None:
    """Names that only resemble a sensitive one are kept."""
    assert REDACTOR.value({key: "x"}) == {key: "x"}


def test_absence_of_a_secret_is_kept() -> None:
    """None and booleans say whether there is a secret, not what it is."""
    assert REDACTOR.value({"password": None, "secret": True}) == {"password": None, "secret": True}


def test_value_keeps_json_types() -> None:
    """Numbers stay numbers, save card numbers; other objects become their redacted text."""
    assert REDACTOR.value([1, 1.5, None, True, 10**30]) == [1, 1.5, None, True, 10**30]
    assert REDACTOR.value(4111111111111111) == MARK
    assert REDACTOR.value((ValueError("token=abc"), b"x")) == [f"token={MARK}", "b'x'"]
    assert REDACTOR.value({"Bearer abcdef": 1}) == {f"Bearer {MARK}": 1}


def test_value_deeper_than_any_payload_is_cut() -> None:
    """Nesting without end is cut off, not followed until the stack is full."""
    deep: Any = "password=x"
    for _ in range(10_000):
        deep = [deep]
    text = json.dumps(REDACTOR.value(deep))
    assert text.count("[") == DEPTH_LIMIT + 2
    assert MARK in text


@given(TEXTS)
def test_redacting_text_twice_is_redacting_once(text: str) -> None:
    """What was redacted is left as it is."""
    once = REDACTOR.text(text)
    assert REDACTOR.text(once) == once


@given(JSON)
def test_redacting_json_twice_is_redacting_once(value: Any) -> None:
    """What was redacted is left as it is, and stays JSON."""
    once = REDACTOR.value(value)
    assert REDACTOR.value(once) == once
    assert json.loads(json.dumps(once)) == once


SECRETS = st.text("abcdefghij0123456789", min_size=12, max_size=30).map(lambda text: f"Zq{text}")


@given(SECRETS, st.sampled_from(SENSITIVE), TEXTS)
def test_no_secret_survives_in_json(secret: str, key: str, noise: str) -> None:
    """A value under a sensitive name is nowhere in the outcome, as a value or inside a text."""
    document = {"a": [{key: {"b": secret}}], "log": noise.replace("\\", "") + "\n" + json.dumps({key: secret})}
    assert secret not in json.dumps(REDACTOR.value(document))


@pytest.mark.parametrize(
    "identifier",
    [
        "41234567-1234-4124-8bfc-9a075230a712",
        "OUTBOX:41234567-1234-4124-8BFC-9A075230A712",
        "order:9e2b4c1d-0f3a-4b5c-8412-345678901237:place",
    ],
)
def test_digits_of_a_uuid_are_no_card(identifier: str) -> None:
    """It is the most usual key: one in twenty thousand has digits that pass for a card's."""
    assert Redactor().text(identifier) == identifier


def test_card_beside_a_uuid_is_found() -> None:
    """Only what stands inside is part of it."""
    text = "9e2b4c1d-0f3a-4b5c-8412-345678901237 4111-1111-1111-1111 41234567-1234-4124"
    assert Redactor().text(text) == f"9e2b4c1d-0f3a-4b5c-8412-345678901237 {MARK} {MARK}"


@given(st.integers(10**11, 10**17 - 1), st.sampled_from(["", " ", "-"]), st.sampled_from("3456"))
def test_every_card_number_is_found(digits: int, separator: str, first: str) -> None:
    """Whatever its length and grouping, a number that passes Luhn's check is taken out."""
    body = f"{first}{digits}"
    card = next(f"{body}{check}" for check in range(10) if _luhn(f"{body}{check}"))
    grouped = separator.join(card[start : start + 4] for start in range(0, len(card) - len(card) % 4, 4))
    tail = card[len(card) - len(card) % 4 :]
    assert REDACTOR.text(f"card {grouped}{tail}.") == f"card {MARK}."


def _luhn(digits: str) -> bool:
    doubled = [int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits))]
    return sum(number - 9 * (number > 9) for number in doubled) % 10 == 0


HOSTILE = [
    "a",
    "password",
    'password="',
    'password=\\"',
    "eyJ",
    "eyJa.",
    "-----BEGIN PRIVATE KEY-----",
    "-",
    "://",
    '"',
]
HOSTILE += [
    "://a:b",
    "bearer ",
    "444 ",
    "4",
    "4-",
    "\\",
    "token=",
    "cookie:",
    "%3d",
    "secret" + "a" * 31,
    "://@:",
    "a@",
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_megabyte_finishes(piece: str) -> None:
    """A megabyte made for backtracking takes seconds at most, not hours."""
    assert isinstance(REDACTOR.text(piece * (1_000_000 // len(piece))), str)


def test_own_secrets_are_redacted_wherever_they_stand() -> None:
    """A secret that is known as such needs no name and no shape; the longer one is taken whole."""
    redactor = Redactor(own=["correct-horse", "correct-horse-battery"])
    assert redactor.text("it said correct-horse-battery, correct-horse!") == f"it said {MARK}, {MARK}!"
    assert redactor.value({"echo": ["xcorrect-horsex"]}) == {"echo": [f"x{MARK}x"]}


@pytest.mark.parametrize("own", ["", "hunt", "redacted"])
def test_own_secrets_that_would_stand_in_other_words_are_left(own: str) -> None:
    """A secret that is too short, or stands in the mark itself, does not make texts unreadable."""
    assert Redactor(own=[own]).text(f"the hunter is {MARK}") == f"the hunter is {MARK}"
