from collections.abc import Awaitable, Callable

import pytest

from redrive.errors import Unavailable
from redrive.postgres.database import connect, open_pool

SECRETS = ("hush", "rest")


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("postgresql://me:hush@127.0.0.1:1/db", "the database at 127.0.0.1:1 cannot be reached: "),
        ("postgresql://me:hush@no-such-host.invalid/db", "the database at no-such-host.invalid:5432 cannot be reached"),
        ("postgresql://me:hush/rest@127.0.0.1:1/db", "DATABASE_URL is not a valid address"),
        ("postgresql://me:hush?rest@127.0.0.1:1/db", "DATABASE_URL is not a valid address"),
        ("postgresql://me:hush#rest@127.0.0.1:1/db", "DATABASE_URL is not a valid address"),
        ("postgresql://me:12/rest@127.0.0.1:1/db", "DATABASE_URL is not a valid address"),
        ("postgresql+asyncpg://me:hush@127.0.0.1:1/db", "DATABASE_URL is not a valid address"),
        ("mysql://me:hush@127.0.0.1:1/db", "DATABASE_URL is not a valid address"),
        ("hush", "DATABASE_URL is not a valid address"),
        ("", "DATABASE_URL is not a valid address"),
    ],
)
@pytest.mark.parametrize("way", [connect, open_pool])
async def test_unusable_address_gives_a_sentence_without_the_password(
    way: Callable[[str], Awaitable[object]], address: str, sentence: str
) -> None:
    """Whatever is wrong with the address, the message names the place and never a part of the password."""
    with pytest.raises(Unavailable) as caught:
        await way(address)
    assert sentence in str(caught.value)
    assert not any(secret in str(caught.value) for secret in SECRETS)
    assert caught.value.__cause__ is None
