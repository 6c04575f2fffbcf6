"""Redis in a stack: when it is chosen, and how it is started."""

from pathlib import Path

import pytest

from starter.errors import WrongUsage
from starter.stack.brokers import chosen_brokers
from starter.stack.redis import RedisServer, find_redis


@pytest.mark.parametrize(("words", "redis"), [("", False), ("redis", True), (" redis , ", True)])
def test_brokers_are_chosen_by_name(monkeypatch: pytest.MonkeyPatch, words: str, redis: bool) -> None:
    """Names with commas between; none is no broker."""
    monkeypatch.delenv("REDIS_URL", raising=False)
    assert (chosen_brokers(words).redis, chosen_brokers(words).embeds_redis) == (redis, redis)


def test_unknown_broker_is_named() -> None:
    """The sentence says which there are."""
    with pytest.raises(WrongUsage, match=r"'kafka'.*redis"):
        chosen_brokers("redis,kafka")


def test_server_of_the_user_is_used_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    """With REDIS_URL set the stack runs the bridge alone."""
    monkeypatch.setenv("REDIS_URL", "redis://10.0.0.5/0")
    brokers = chosen_brokers("redis")
    assert brokers.redis
    assert not brokers.embeds_redis


def test_redis_keeps_what_it_is_given_and_listens_here_alone(tmp_path: Path) -> None:
    """An entry that a producer was told of is on the disk; nobody beyond the machine can connect."""
    command = RedisServer(find_redis(), tmp_path, 6390).command
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert (options["--appendonly"], options["--appendfsync"]) == ("yes", "always")
    assert (options["--bind"], options["--dir"]) == ("127.0.0.1", str(tmp_path))
