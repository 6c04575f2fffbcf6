"""The words of the command line: what is refused, with which sentence and exit code, and what the help teaches."""

import re
from pathlib import Path

import pytest

from redrive.starter.cli import main as cli

# Nothing listens there: a command that should be refused before it connects says something else.
NOWHERE = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def _nothing_runs_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TEMPORAL_ADDRESS", NOWHERE)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("DATABASE_URL", raising=False)


def _refusal(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the sentence on stderr; fail when there is more than that."""
    said = capsys.readouterr()
    assert said.out == ""
    first, *rest = said.err.strip().splitlines()
    assert first.startswith("redrive: ")
    assert all(line.startswith("Try `redrive") for line in rest), said.err
    return first.removeprefix("redrive: ")


WRONG = [
    ("bogus", 'Unknown command "bogus"'),
    ("run bogus", "start, status, list, retrying"),
    ("run start", "PIPELINE"),
    ("run start hello --bogus", "unknown option: --bogus"),
    ("run start hello {}", "not understood: {}"),
    ("run start hello --payload {} --file x", "not several"),
    ("run start hello - --payload {}", "not several"),
    ("run list --bogus", "Unknown option: --bogus"),
    ("run list --status bogus", '"failed", "canceled"'),
    ("run list --limit 0", "--limit"),
    ("run list --limit many", "--limit"),
    ("run cancel run-1", "--reason"),
    ("run continue run-1", "--reason"),
    ("dlq bogus", "list, show"),
    ("dlq list --status bogus", '"replaying"'),
    ("dlq list --category bogus", '"rate_limit"'),
    ("dlq list --limit 1001", "--limit"),
    ("dlq show", "ID"),
    ("dlq replay run-1/pay", "--reason"),
    ("dlq replay run-1/pay --reason x --attempts 0", "--attempts"),
    ("dlq replay run-1/pay --reason x --set a=1 --patch p.json", "not both"),
    ("dlq replay run-1/pay --reason x --set a=1 --set a.b=2", "contradicts"),
    ("dlq resolve run-1/pay --reason x", "--output"),
    ("dlq resolve run-1/pay --reason x --output {} --output-file f", "--output"),
    ("dlq discard run-1/pay", "--reason"),
    ("dlq restart run-1/pay", "--reason"),
    ("events replay", "--dlq --id ID"),
    ("events replay --id run-1/pay", "--dlq --id ID"),
    ("events replay --status failed --event-id 7", "say what to replay"),
    ("events replay --status pending", "--dlq --status pending"),
    ("events replay --projectors qscore", "--event-id ID [--projectors a,b]"),
    ("events replay --status failed --wait", "--wait goes with one event"),
    ("events replay --status lost", "failed"),
    ("up --with kafka", "not a broker that comes along"),
    ("bulk replay", "--reason"),
    ("bulk replay --reason x --parallelism 0", "--parallelism"),
    ("bulk replay --reason x --stop-percent 101", "--stop-percent"),
    ("bulk replay --reason x --set a=1 --patch p.json", "not both"),
    ("bulk resolve --reason x", "--output"),
    ("bulk items bulk-1 --status bogus", '"applied", "skipped"'),
    ("bulk stop bulk-1", "--reason"),
    ("audit list --limit 0", "--limit"),
    ("reconcile --bogus", "Unknown option: --bogus"),
    ("modules extra", "unexpected argument: extra"),
    ("up --workers -1", "--workers"),
    ("up --with redis --with kafka", "--with 'kafka': not a broker that comes along"),
    ("up --temporal-port 99999", "--temporal-port"),
    ("up --with kafka", "--with 'kafka': not a broker that comes along"),
    ("messages list --status bogus", '"replaying"'),
    ("messages replay 7", "--reason"),
    ("messages discard 7", "--reason"),
    ("bridge bogus", "rabbitmq"),
    ("tokens create --name x --role owner --tenant acme", "leave --tenant and --right out"),
    ("tokens create --name x --role viewer --right fly", "--right"),
    ("tokens link", "--console-url"),
]


@pytest.mark.parametrize(("words", "said"), WRONG)
def test_wrong_usage_is_named_with_exit_code_2(capsys: pytest.CaptureFixture[str], words: str, said: str) -> None:
    """The sentence names the word that is wrong."""
    assert cli.run(words.split()) == 2
    assert said in _refusal(capsys)


REFUSED = [
    (["run", "start", "hello", "--payload", "{name"], "payload: not valid JSON"),
    (["run", "start", "hello", "--payload", "[1]"], "a JSON object is needed"),
    (["run", "start", "hello", "--file", "missing.json"], "cannot read 'missing.json'"),
    (["run", "start", "hello"], f"no Temporal server answers at {NOWHERE} (connection refused)"),
    (["run", "status", "run-1"], "`redrive up`"),
    (["run", "list", "--json"], "TEMPORAL_ADDRESS"),
    (["modules"], "no Temporal server answers"),
    (["migrate"], "DATABASE_URL: not set"),
    (["dlq", "list"], "there is no database"),
    (["dlq", "list", "--since", "yesterday"], "--since 'yesterday': not a time"),
    (["dlq", "list", "--until", "99999999999d"], "--until '99999999999d'"),
    (["dlq", "list", "--cursor", "bogus"], "--cursor 'bogus'"),
    (["dlq", "stats"], "`redrive up`"),
    (["dlq", "replay", "x", "--reason", "x", "--set", "name={Ada"], "like JSON has quotes: --set 'name=\"text\"'"),
    (["dlq", "replay", "x", "--reason", "x", "--set", "a"], "--set 'a': write path=value"),
    (["dlq", "replay", "x", "--reason", "x", "--patch", "none.json"], "--patch: cannot read 'none.json'"),
    (["dlq", "replay", "x", "--reason", "x", "--timeout", "soon"], "--timeout 'soon': not a duration"),
    (["dlq", "replay", "x", "--reason", ""], "reason: "),
    (["dlq", "replay", "x", "--reason", "x", "--from-step", "No Such"], "from_step: "),
    (["dlq", "discard", "x", "--reason", "x"], "no Temporal server answers"),
    (["events", "replay", "--dlq", "--id", "x"], "no Temporal server answers"),
    (["events", "replay", "--status", "failed"], "no Temporal server answers"),
    (["events", "list"], "there is no database"),
    (["bridge", "redis"], "there is no Redis"),
    (["bulk", "plan"], "no Temporal server answers"),
    (["bulk", "plan", "--since", "yesterday"], "--since 'yesterday': not a time"),
    (["bulk", "replay", "--reason", "x", "--tenant", "No Such"], "tenant: "),
    (["bulk", "replay", "--reason", "x", "--rate", "0"], "rate: "),
    (["bulk", "stop", "bulk-1", "--reason", "x"], "no Temporal server answers"),
    (["bulk", "list"], "there is no database"),
    (["audit", "verify"], "there is no database"),
    (["audit", "list"], "there is no database"),
    (["reconcile"], "no Temporal server answers"),
    (["worker", "--modules", "nowhere.at_all"], "cannot import 'nowhere.at_all'"),
    (["up", "--fresh"], "--yes"),
    (["tokens", "create", "--name", "x", "--role", "king"], "role 'king': not a role"),
    (["tokens", "create", "--name", "x", "--role", "viewer", "--expires", "soon"], "--expires 'soon': not a duration"),
    (["tokens", "list"], "there is no database"),
    (["members", "put", "ada", "--role", "owner", "--tenant", "acme"], "there is no database"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_refusal_is_one_sentence_with_exit_code_1(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    """The sentence says what is wrong and what to do."""
    assert cli.run(words) == 1
    assert said in _refusal(capsys)


SETTINGS = [
    ("REDRIVE_LOG_FORMAT", "bogus"),
    ("REDRIVE_LOG_LEVEL", "loud"),
    ("REDRIVE_SERVICES", "{"),
    ("REDRIVE_MAX_CONCURRENT_STEPS", "0"),
]


@pytest.mark.parametrize("command", ["worker", "up", "modules", "demo", "migrate"])
@pytest.mark.parametrize(("variable", "value"), SETTINGS)
def test_wrong_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, value: str, command: str
) -> None:
    """The sentence begins with the variable that has to be changed, whatever the command."""
    monkeypatch.setenv(variable, value)
    assert cli.run([command]) == 1
    assert _refusal(capsys).startswith(f"{variable}: ")


EVENT_SETTINGS = [
    ("REDRIVE_EVENTS_HELD", "0"),
    ("REDRIVE_EVENTS_PIPELINES", "{"),
    ("REDRIVE_EVENTS_LABELS", '{"run_id": "runId"}'),
    ("REDRIVE_EVENTS_TENANT", "No Such"),
    ("REDRIVE_EVENTS_CLAIM_IDLE", "PT0S"),
]


@pytest.mark.parametrize(("variable", "value"), EVENT_SETTINGS)
def test_wrong_setting_of_events_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, value: str
) -> None:
    """The sentence begins with the variable that has to be changed."""
    monkeypatch.setenv(variable, value)
    assert cli.run(["bridge", "redis"]) == 1
    assert _refusal(capsys).startswith(f"{variable}: ")


def test_wrong_redis_address_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An address holds a password: the sentence names the variable and a good address instead."""
    monkeypatch.setenv("REDIS_URL", "http://:s3cret@localhost")
    assert cli.run(["bridge", "redis"]) == 1
    sentence = _refusal(capsys)
    assert sentence.startswith("REDIS_URL: ")
    assert "s3cret" not in sentence


def test_wrong_service_setting_does_not_show_its_token(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A secret that stands beside a mistake is not printed."""
    monkeypatch.setenv("REDRIVE_SERVICES", '{"shop": {"token": "s3cret"}}')
    assert cli.run(["worker"]) == 1
    sentence = _refusal(capsys)
    assert sentence.startswith("REDRIVE_SERVICES.shop.base_url: ")
    assert "s3cret" not in sentence


COMMANDS = [
    *(
        "demo",
        "up",
        "modules",
        "services",
        "worker",
        "migrate",
        "reconcile",
        "events replay",
        "events list",
        "events dead",
        "events show",
        "events discard",
        "bridge redis",
        "audit verify",
        "audit list",
        "schedule create",
        "schedule list",
        "schedule show",
        "schedule pause",
        "schedule resume",
        "schedule trigger",
        "schedule backfill",
        "schedule delete",
    ),
    *("run start", "run status", "run list", "run cancel", "run continue"),
    *(
        "dlq list",
        "dlq show",
        "dlq replay",
        "dlq resolve",
        "dlq discard",
        "dlq restart",
        "dlq reset",
        "dlq watch",
        "dlq stats",
    ),
    *("bulk plan", "bulk replay", "bulk resolve", "bulk discard", "bulk show", "bulk watch", "bulk list", "bulk items"),
    *("bulk pause", "bulk resume", "bulk stop", "bulk approve"),
    *("messages list", "messages show", "messages replay", "messages discard", "bridge rabbitmq"),
]


@pytest.mark.parametrize("words", COMMANDS)
def test_help_teaches_with_an_example(capsys: pytest.CaptureFixture[str], words: str) -> None:
    """Every command's help has an example that begins as one would type it."""
    assert cli.run([*words.split(), "--help"]) == 0
    assert f"redrive {words}" in capsys.readouterr().out.partition("Example")[2]


def test_help_lists_commands_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """The first page names every command and what the exit codes mean."""
    assert cli.run(["--help"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert all(words.split()[0] in page for words in COMMANDS)
    assert "3 the run that was waited for FAILED" in page
    assert "5 it is parked" in page


@pytest.mark.parametrize(
    "words", ["", "run", "schedule", "dlq", "bulk", "events", "messages", "bridge", "keys", "audit"]
)
def test_a_list_of_commands_describes_each(capsys: pytest.CaptureFixture[str], words: str) -> None:
    """No command stands in a list without a sentence, at the width of a plain terminal."""
    assert cli.run([*words.split(), "--help"]) == 0
    listed = capsys.readouterr().out.partition("Commands")[2].splitlines()
    names = [line for line in listed if re.match(r"│ [a-z-]", line)]
    assert names
    assert [name for name in names if not re.match(r"│ \S+( \(\S+\))? +\S", name)] == []


def test_the_help_of_a_command_is_longer_than_its_sentence_in_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence of the list does not hide what the command's own page teaches."""
    assert cli.run(["up", "--help"]) == 0
    assert "State is kept in .redrive/" in capsys.readouterr().out


def test_completion_is_installed_for_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script knows the commands, and the shell reads it from now on."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cli.run(["--install-completion", "--shell", "bash"]) == 0
    script = tmp_path / ".local/share/bash-completion/completions/redrive"
    assert "schedule" in script.read_text()
    assert str(script) in capsys.readouterr().out
    assert (tmp_path / ".bashrc").exists()
