"""Ids: of the run of a key, of a step's call, of a request; and the check of ids that callers give. Pure.

A given id is stored, searched for and shown unredacted, so none may be a secret. It is refused on entry, and never in a
workflow: what counts as a secret changes with releases, and a history must always replay the same.
"""

import base64
import functools
import hashlib
import json
from dataclasses import astuple, dataclass
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote, unquote

import uuid_utils

from redrive.errors import InvalidInput
from redrive.redaction.redactor import Redactor

KEY_LIMIT: Final = 255
KEY_TTL: Final = timedelta(days=30)
LONGEST_KEY_TTL: Final = timedelta(days=3650)
_SEPARATOR: Final = ":"
# Below this, every whole number is written with all its digits; from here on, Python writes floats with an exponent.
_EXACT: Final = 10**16
_REDACTOR = Redactor()


def check_key(key: str) -> str:
    """Return the idempotency key if it is valid: 1 to 255 visible characters."""
    if not 1 <= len(key) <= KEY_LIMIT:
        raise InvalidInput(f"key: {len(key)} characters; an idempotency key has 1 to {KEY_LIMIT}")
    if not _is_visible(key):
        position, character = next(pair for pair in enumerate(key, 1) if not _is_visible(pair[1]))
        raise InvalidInput(f"key: character {position} is {character!r}; only visible characters are allowed")
    return key


def check_ttl(ttl: timedelta) -> timedelta:
    """Return how long a key is kept, if that is a valid duration."""
    if not timedelta(0) < ttl <= LONGEST_KEY_TTL:
        raise InvalidInput(f"ttl: {ttl} is not between 0 and {LONGEST_KEY_TTL.days} days")
    return ttl


def _is_visible(text: str) -> bool:
    # The only space that Python considers printable.
    return text.isprintable() and " " not in text


@dataclass(frozen=True)
class IdempotencyKey:
    """A key that says what it is for: `<domain>:<user>:<entity>:<operation>:<version>`.

    The operation may have several parts (`module:resume`). In the other fields a `:` is written as `%3A`; in all of
    them `%` is `%25` and what is not visible is percent-encoded, so that every text can be a field and comes back as
    it was.
    """

    domain: str
    user: str
    entity: str
    operation: str
    version: str

    @classmethod
    def build(cls, domain: str, user: str, entity: str, operation: str, version: str) -> str:
        """Return the key as text."""
        return str(cls(domain, user, entity, operation, version))

    @classmethod
    def parse(cls, key: str) -> "IdempotencyKey":
        """Read the fields of a key, or say that it does not follow the convention."""
        parts = check_key(key).split(_SEPARATOR)
        if len(parts) < 5:
            raise InvalidInput(f"key {key!r}: not of the form <domain>:<user>:<entity>:<operation>:<version>")
        domain, user, entity, *operation, version = parts
        fields = (domain, user, entity, _SEPARATOR.join(operation), version)
        try:
            return cls(*(unquote(field, errors="strict") for field in fields))
        except UnicodeDecodeError:
            raise InvalidInput(f"key {key!r}: its percent-encoding is not UTF-8") from None

    def __str__(self) -> str:
        for name, value in vars(self).items():
            if not value:
                raise InvalidInput(f"key: its {name} is empty")
        fields = [_escaped(field, _SEPARATOR if number == 3 else "") for number, field in enumerate(astuple(self))]
        return check_key(_SEPARATOR.join(fields))


def _escaped(text: str, keep: str) -> str:
    """Write a field with percent-encoding for what would be read as something else."""
    try:
        return "".join(
            character
            if character in keep or (_is_visible(character) and character not in ":%")
            else quote(character, safe="")
            for character in text
        )
    except UnicodeEncodeError:
        raise InvalidInput(f"key: {text!r} is not valid text") from None


@functools.lru_cache(maxsize=256)  # a start needs it twice
def run_id_for_key(tenant: str, key: str, generation: int = 0) -> str:
    """Return the run id of a tenant's key: the same in every process."""
    # The separator cannot occur in a tenant's name or a key, so no two triples share a text.
    digest = hashlib.sha256(f"{tenant}\n{key}\n{generation}".encode()).digest()
    return "run-" + base64.b32encode(digest[:20]).decode().lower()


def new_run_id() -> str:
    """Return a new run id for a start without a key; later ones sort after earlier ones."""
    return "run-" + uuid_utils.uuid7().hex


def new_request_id() -> str:
    """Return a new id for a command."""
    return uuid_utils.uuid7().hex


def step_key(run_id: str, step: str, operation: str, version: int = 0) -> str:
    """Return the key that every attempt of a step sends with one of its calls.

    A step whose input was edited makes another call: its keys have a version part.
    """
    # An operation called `create:v2` must not share the key of `create` after an edit.
    key = f"{run_id}:{step}:{_escaped(operation, '')}"
    return f"{key}:v{version + 1}" if version else key


def request_hash(pipeline: str, payload: dict[str, Any]) -> str:
    """Return the fingerprint of a request: equal for equal pipelines and equal JSON values.

    The order of an object's names does not matter, and a number is its value: `1.0` is `1`, `1e2` is `100`. Texts are
    compared as they are, without normal forms; `true` is not `1`, and a name with `null` is not a missing name.
    """
    try:
        # Sorted by code points; ASCII, so that no encoder's choice of escapes matters.
        text = json.dumps({"payload": _canonical(payload), "pipeline": pipeline}, sort_keys=True, separators=(",", ":"))
    except ValueError as error:
        raise InvalidInput(f"payload: cannot be compared with that of another start: {error}") from None
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: Any) -> Any:
    """Return a JSON value with one spelling for each number."""
    if isinstance(value, dict):
        return {name: _canonical(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    if isinstance(value, int) and abs(value) >= _EXACT:
        return _shortest(value)
    return value


def _shortest(number: int) -> int | float:
    """Spell a large whole number as a float if one has its value: otherwise `1e308` would have 309 digits."""
    try:
        short = float(number)
    except OverflowError:
        return number
    return short if int(short) == number else number


def short_hash(text: str) -> str:
    """Return a short text that stands for another one, which somebody else chose: it may hold a secret."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def shown_identifier(value: str) -> str:
    """Return an id in the form in which a refusal shows it."""
    return _REDACTOR.text(value)


def check_identifier(field: str, value: str) -> str:
    """Return an id that holds no secret, or raise."""
    shown = shown_identifier(value)
    if shown != value:
        raise InvalidInput(
            # Redacted once more where it is stored: the value stands last, as a quote that it opens hides what follows;
            # and not "secret", which may be a token of ours.
            f"{field}: it holds what looks like a credential or a card number; an id is stored and shown as it is: "
            f"give a reference, or a hash of it (got {shown!r})"
        )
    return value


def check_identifiers(**given: str | None) -> None:
    """Check the ids that are given, or raise InvalidInput naming the first that holds a secret."""
    for field, value in given.items():
        if value is not None:
            check_identifier(field, value)
