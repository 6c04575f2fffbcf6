"""The retry scheduler's settings have the specification's names."""

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest

from redrive.bridges.rabbitmq.connection import connected
from redrive.bridges.rabbitmq.settings import RetrySettings
from redrive.errors import InvalidInput, Unavailable
from redrive.policy import MESSAGE
from redrive.settings import Settings, read_environment
from redrive.starter.stack.state import holding

# DATABASE_URL is one of all processes; it is in redrive/settings.py.
VARIABLES = {
    "SERVICE_NAME": "retry-scheduler",
    "HTTP_HOST": "127.0.0.1",
    "HTTP_PORT": 8086,
    "RABBITMQ_URL": None,
    "RETRY_QUEUE": "retry.scheduled",
    "MANUAL_REVIEW_QUEUE": "manual-review.pending",
    "MAX_MESSAGE_BYTES": 16 * 1024 * 1024,
    "KEPT_MESSAGE_BYTES": 64 * 1024,
    "MAX_HELD_BYTES": 64 * 1024 * 1024,
    "DEFAULT_MAX_RETRIES": 3,
    "BASE_DELAY_MS": 2000,
    "MAX_DELAY_MS": 60000,
    "RETRY_POLL_INTERVAL_MS": 50,
}


def test_variables_are_those_of_the_specification() -> None:
    """Names and defaults; RABBITMQ_URL is found where it is not set, and the poll is quicker than asked."""
    found = {field.validation_alias: field.default for field in RetrySettings.model_fields.values()}
    assert found == VARIABLES


def test_defaults_are_the_preset() -> None:
    """Without settings, delays are those of the preset `message`."""
    assert RetrySettings().policy == MESSAGE


def test_delays_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Base and cap come from the environment; the jitter stays."""
    monkeypatch.setenv("BASE_DELAY_MS", "100")
    monkeypatch.setenv("MAX_DELAY_MS", "150")
    policy = read_environment(RetrySettings).policy
    assert [policy.delay(attempt, 0.0) for attempt in (1, 2)] == [
        timedelta(milliseconds=100),
        timedelta(milliseconds=150),
    ]


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("HTTP_PORT", "many", "HTTP_PORT: Input should be a valid integer"),
        ("BASE_DELAY_MS", "0", "BASE_DELAY_MS: Input should be greater than or equal to 1"),
        ("MAX_DELAY_MS", "10", "MAX_DELAY_MS (10) is below BASE_DELAY_MS (2000)"),
    ],
)
def test_wrong_setting_is_named(variable: str, value: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence says which variable is wrong and why."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidInput) as refusal:
        read_environment(RetrySettings)
    assert sentence in str(refusal.value)


def test_server_of_this_directorys_stack_is_found(tmp_path: Path) -> None:
    """RABBITMQ_URL wins, then the stack that runs here; there is no other default."""
    settings = Settings(state_dir=tmp_path)
    with pytest.raises(Unavailable, match="RABBITMQ_URL"):
        RetrySettings().url(settings)
    (tmp_path / "stack.json").write_text(json.dumps({"pid": os.getpid(), "brokers": {"rabbitmq": "amqp://here"}}))
    with holding(tmp_path / "lock"):
        assert RetrySettings().url(settings) == "amqp://here"
    assert RetrySettings(rabbitmq_url="amqp://there").url(settings) == "amqp://there"


@pytest.mark.parametrize("url", ["", "http://localhost", "amqp://", "amqp://host:notaport", "localhost:5672"])
async def test_address_that_is_none_is_refused_without_being_quoted(url: str) -> None:
    """An address may hold a password: the sentence says what one looks like."""
    with pytest.raises(InvalidInput, match="RABBITMQ_URL is not a valid address"):
        async with connected(url, "test"):
            pass
