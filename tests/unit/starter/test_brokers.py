"""The brokers that a stack may have: which ones, how they are started, and what is said when one cannot be had."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from redrive.contracts import Broker
from redrive.errors import StackError
from redrive.starter.cli.errors import WrongUsage
from redrive.starter.stack import rabbitmq
from redrive.starter.stack.programs import bridge_environment, bridge_program, chosen_brokers, find_servers
from redrive.starter.stack.rabbitmq import get_rabbitmq, keep_password, node_name
from redrive.starter.stack.redis import RedisServer, find_redis

URLS = {
    Broker.REDIS: "redis://10.0.0.5/0",
    Broker.RABBITMQ: "amqp://10.0.0.5",
    Broker.OUTBOX: "postgresql://10.0.0.5/shop",
}


@pytest.fixture(autouse=True)
def no_servers_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """No address is set."""
    for broker in Broker:
        monkeypatch.delenv(f"{broker.upper()}_URL", raising=False)


@pytest.mark.parametrize(
    ("words", "brokers"),
    [
        ("", []),
        ("redis", [Broker.REDIS]),
        (" rabbitmq, ", [Broker.RABBITMQ]),
        ("outbox", [Broker.OUTBOX]),
        ("rabbitmq,redis", [Broker.REDIS, Broker.RABBITMQ]),
    ],
)
def test_brokers_are_chosen_by_name(words: str, brokers: list[Broker]) -> None:
    """Names with commas between; none comes along unasked."""
    assert chosen_brokers(words) == dict.fromkeys(brokers)


def test_unknown_broker_is_refused_by_name() -> None:
    """The refusal names those that there are."""
    with pytest.raises(WrongUsage, match=r"--with 'kafka': not a broker .* there are: redis, rabbitmq, outbox"):
        chosen_brokers("redis,kafka")


@pytest.mark.parametrize("broker", Broker)
async def test_server_of_ones_own_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch, broker: Broker) -> None:
    """With its address set the stack runs the bridge alone."""
    monkeypatch.setenv(f"{broker.upper()}_URL", URLS[broker])
    brokers = chosen_brokers(broker)
    url = brokers[broker]
    assert url is not None
    assert url.get_secret_value() == URLS[broker]
    assert await find_servers(brokers) == {}


@pytest.mark.parametrize("broker", Broker)
def test_bridge_is_led_to_its_broker(tmp_path: Path, broker: Broker) -> None:
    """A bridge is the command of its broker, with the broker's address; only RabbitMQ's serves health, where it can."""
    asked = []

    def choose(what: str, wanted: int | None, preferred: int) -> int:
        asked.append(what)
        return preferred + 1

    environment = bridge_environment(broker, SecretStr(URLS[broker]), {"HOME": "/"}, choose)
    assert environment[f"{broker.upper()}_URL"] == URLS[broker]
    assert (environment.get("HTTP_PORT"), len(asked)) == (("8087", 1) if broker is Broker.RABBITMQ else (None, 0))
    set_by_user = bridge_environment(broker, SecretStr(URLS[broker]), {"HTTP_PORT": "9000"}, choose)
    assert (set_by_user["HTTP_PORT"], len(asked)) == ("9000", 1 if broker is Broker.RABBITMQ else 0)
    program = bridge_program(broker, environment, tmp_path)
    assert (program.name, list(program.command[-2:])) == (f"bridge-{broker}", ["bridge", broker])


def test_redis_keeps_what_it_is_given_and_listens_here_alone(tmp_path: Path) -> None:
    """An entry that a producer was told of is on the disk; nobody beyond the machine can connect."""
    command = RedisServer(find_redis(), tmp_path, 6390).command
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert (options["--appendonly"], options["--appendfsync"]) == ("yes", "always")
    assert (options["--bind"], options["--dir"]) == ("127.0.0.1", str(tmp_path))


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


def test_rabbitmqs_node_has_the_name_that_its_data_has(tmp_path: Path) -> None:
    """New data gets a name without the port; older data keeps the one that it was made with."""
    assert node_name(tmp_path) == "redrive@localhost"
    (tmp_path / "cluster_nodes.config").write_text("{['redrive-5672@localhost'],['redrive-5672@localhost']}.\n")
    assert node_name(tmp_path) == "redrive-5672@localhost"
