"""Ids that are computed, not drawn: the run of an idempotency key, the key of a step's call. Pure."""

import base64
import hashlib

import uuid_utils

from redrive.errors import InvalidInput

KEY_LIMIT = 255


def check_key(key: str) -> str:
    """Return the idempotency key if it is one: 1 to 255 visible characters."""
    if not 1 <= len(key) <= KEY_LIMIT:
        raise InvalidInput(f"key: {len(key)} characters; an idempotency key has 1 to {KEY_LIMIT}")
    for position, character in enumerate(key):
        if not character.isprintable() or character.isspace():
            raise InvalidInput(f"key: character {position + 1} is {character!r}; only visible characters are allowed")
    return key


def run_id_for_key(tenant: str, key: str, generation: int = 0) -> str:
    """Return the one run id that belongs to a tenant's key, in whichever process it is asked for."""
    # The separator cannot occur in a tenant's name or a key, so no two triples share a text.
    digest = hashlib.sha256(f"{tenant}\n{key}\n{generation}".encode()).digest()
    return "run-" + base64.b32encode(digest[:20]).decode().lower()


def new_run_id() -> str:
    """Return a fresh run id for a start without a key; later ones sort after earlier ones."""
    return "run-" + uuid_utils.uuid7().hex


def new_request_id() -> str:
    """Return a fresh id for an order."""
    return uuid_utils.uuid7().hex


def step_key(run_id: str, step: str, operation: str) -> str:
    """Return the key that every attempt of a step sends with one of its calls."""
    return f"{run_id}:{step}:{operation}"
