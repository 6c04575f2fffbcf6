"""The brokers that a stack may have: which ones, and what is said when one cannot be had."""

from pathlib import Path

import pytest

from redrive.errors import StackError
from starter.errors import WrongUsage
from starter.stack import rabbitmq
from starter.stack.brokers import chosen_brokers
from starter.stack.rabbitmq import get_rabbitmq, keep_password


def test_no_broker_comes_along_unasked() -> None:
    """Without `--with` the stack is as it was."""
    assert not chosen_brokers("").rabbitmq


def test_server_of_ones_own_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """With RABBITMQ_URL the stack runs the bridge alone."""
    assert chosen_brokers("rabbitmq").embeds_rabbitmq
    monkeypatch.setenv("RABBITMQ_URL", "amqp://elsewhere")
    chosen = chosen_brokers(" rabbitmq,")
    assert (chosen.rabbitmq, chosen.embeds_rabbitmq) == (True, False)


def test_unknown_broker_is_refused_by_name() -> None:
    """The refusal names those that there are."""
    with pytest.raises(WrongUsage, match="--with 'kafka': not a broker that comes along; there are: rabbitmq"):
        chosen_brokers("rabbitmq,kafka")


def test_missing_rabbitmq_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may not install it is told what to do."""
    monkeypatch.setattr(rabbitmq, "_INSTALLATIONS", tmp_path)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(StackError, match=r"RabbitMQ is missing: install it .* or set RABBITMQ_URL"):
        get_rabbitmq()


def test_package_does_not_start_the_systems_own_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the package is installed Debian's policy says no; one that is there already is left alone."""
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(rabbitmq, "_SERVICE_POLICY", policy)
    with rabbitmq._services_stay_off():
        assert policy.read_text().endswith("exit 101\n")
        assert policy.stat().st_mode & 0o111
    assert not policy.exists()
    policy.write_text("the machine's own")
    with rabbitmq._services_stay_off():
        assert policy.read_text() == "the machine's own"
    assert policy.exists()


def test_password_is_kept(tmp_path: Path) -> None:
    """The data of yesterday can be opened with the password of yesterday, which only its owner can read."""
    first = keep_password(tmp_path / "rabbitmq")
    assert keep_password(tmp_path / "rabbitmq") == first
    assert (tmp_path / "rabbitmq.password").stat().st_mode & 0o077 == 0
