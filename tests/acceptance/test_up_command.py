"""What the README and the examples promise of `redrive up`, tried as written."""

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from redis import Redis

from tests.acceptance.live import COMMAND, ROOT, Up, environment, until, working_directory


def _first_module() -> str:
    """Return the README's first module, as it is pasted into hello.py."""
    blocks: list[str] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return next(block for block in blocks if "@module" in block)


def _page() -> str:
    """Return the page about projectors."""
    return (ROOT / "docs" / "projections.md").read_text()


def _page_module() -> str:
    found = re.search(r"```python\n(.*?)```", _page(), re.DOTALL)
    assert found
    return found[1]


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    """`redrive up` with a Redis, in a directory with the README's hello.py and the projector of its page."""
    with working_directory() as directory:
        (directory / "hello.py").write_text(_first_module())
        (directory / "interviews.py").write_text(_page_module())
        with Up(directory, "--modules", "hello,interviews", "--with", "redis") as up:
            yield up


def _redrive(up: Up, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *words],
        cwd=up.directory,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_module_of_the_readme_works_as_pasted(up: Up) -> None:
    """The module is found, started by name, and its result shown; other commands find the stack by its directory."""
    said = _redrive(up, "run", "start", "hello", "--payload", '{"name":"Ada"}', "--wait")
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.rstrip().endswith('result: {"text":"Hello, Ada!"}')


def test_misspelt_field_is_refused_by_name(up: Up) -> None:
    """The README's second example: nothing is started, and the missing field is named."""
    said = _redrive(up, "run", "start", "hello", "--payload", '{"nmae": "Ada"}')
    assert said.returncode == 1
    assert "name" in said.stderr


def test_changed_module_is_told_of(up: Up) -> None:
    """Without --reload the worker runs the old code, and `up` says so; also that a changed file is not loaded."""
    with (up.directory / "hello.py").open("a") as file:
        file.write("# changed\n")
    until(lambda: "hello.py changed, and the workers run the old code" in up.text, what="the notice")
    (up.directory / "elsewhere.py").write_text("x = 1\n")
    until(lambda: "elsewhere.py changed; no worker has loaded it" in up.text, what="the notice")


def test_changed_module_is_loaded_again() -> None:
    """With --reload the next run has the new code; a file that cannot be imported meanwhile does no harm."""
    with working_directory() as directory:
        file = directory / "hello.py"
        file.write_text(
            _first_module().replace("    return", '    ctx.log.info("hello.said", word="before")\n    return')
        )
        with Up(directory, "--modules", "hello", "--reload") as up:
            assert _greeting(up) == "Hello, Ada!"
            until(lambda: "worker │ " in up.text and "hello.said word=before" in up.text, what="the log line")
            good = file.read_text().replace("Hello", "Bonjour")
            file.write_text(good + "import no_such_library\n")
            until(lambda: "hello.py changed: restarting the workers" in up.text, what="the restart")
            until(lambda: "No module named 'no_such_library'" in up.text, within=60, what="the failure")
            file.write_text(good)
            # A run that starts meanwhile waits for a worker.
            assert _greeting(up) == "Bonjour, Ada!"


def _greeting(up: Up) -> str:
    said = _redrive(up, "run", "start", "hello", "--payload", '{"name":"Ada"}', "--wait", "--json")
    assert said.returncode == 0, said.stderr
    return str(re.findall(r'"text": ?"([^"]*)"', said.stdout)[-1])


def test_caller_example_runs_as_written(up: Up) -> None:
    """`python examples/caller.py` starts a run once, looks at it, and reads its result."""
    said = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "caller.py")],
        cwd=up.directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    first, _, last = said.stdout.splitlines()
    assert (first, last) == ("True True", "Hello, Ada!")


def test_program_with_its_own_worker_runs_as_written(up: Up) -> None:
    """`REDRIVE_TASK_QUEUE=greetings python examples/own_worker.py`."""
    said = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "own_worker.py")],
        cwd=up.directory,
        env=environment() | {"REDRIVE_TASK_QUEUE": "greetings"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (said.returncode, said.stdout) == (0, "Hello, Ada!\n"), said.stderr


def test_event_of_the_page_is_projected(up: Up) -> None:
    """The page's commands put one event on the stack's Redis; its projector succeeds, and the event can be shown."""
    send = next(line for line in _page().splitlines() if line.startswith("redrive events send "))
    said = _redrive(up, *shlex.split(send)[1:])
    assert (said.returncode, said.stderr) == (0, "")
    line = next(line for line in _page().splitlines() if line.startswith("XADD "))
    url = json.loads((up.directory / ".redrive" / "stack.json").read_text())["brokers"]["redis"]
    with Redis.from_url(url) as redis:
        redis.execute_command(*shlex.split(line))

    def projected() -> str | None:
        events = json.loads(_redrive(up, "events", "list", "--json").stdout)["events"]
        shown = _redrive(up, "events", "show", events[0]["id"]).stdout if events else ""
        return shown if "succeeded" in shown else None

    shown = until(projected, within=60, what="the projection")
    assert "qscore" in shown
    assert "event:ada:7" in shown


def test_a_printed_link_signs_in_once(up: Up) -> None:
    """The console is there; the link works once, the token beside the stack's state as often as one likes."""
    until(lambda: "programs take the token" in up.text, what="the link")
    link = re.findall(r"http://\S+/sign-in/link/\S+", up.text)[0]
    with httpx.Client() as browser:
        assert [browser.get(link).status_code for _ in range(2)] == [303, 401]
        me = f"{up.info.console}/api/v1/me"
        assert browser.get(me).json()["role"] == "owner"
    token = (up.directory / ".redrive" / "token").read_text().strip()
    assert httpx.get(me, headers={"Authorization": f"Bearer {token}"}).status_code == 200
    assert httpx.get(me).status_code == 401


def test_second_up_is_refused(up: Up) -> None:
    """It names the process that has the directory, and neither stops nor changes anything."""
    said = _redrive(up, "up")
    assert said.returncode == 1
    assert f"(process {up.process.pid})" in said.stderr
    assert json.loads(_redrive(up, "run", "list", "--json").stdout)


def test_taken_port_is_refused(up: Up) -> None:
    """A port that somebody asked for and another has: a sentence that names it, and nothing started."""
    port = up.info.temporal_address.rpartition(":")[2]
    with working_directory() as directory:
        said = _redrive(up, "up", "--temporal-port", port, REDRIVE_STATE_DIR=str(directory / "state"))
    assert said.returncode == 1
    assert said.stderr.startswith(f"redrive: port {port} for the Temporal server is taken")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_can_be_stopped_while_it_starts(number: signal.Signals) -> None:
    """The stop is clean at any time: exit code 0, and nothing left running."""
    with working_directory() as directory:
        up = Up(directory)
        up.launch()
        family = up.until_it_has_children()
        assert up.stop(number) == 0
        assert not any(process.is_running() for process in family)
        assert "stopped" in up.text


def test_module_that_cannot_be_imported_is_quoted() -> None:
    """The worker's own words reach the terminal, with exit code 1 and everything stopped."""
    with working_directory() as directory:
        (directory / "broken.py").write_text("import no_such_library")
        said = subprocess.run(
            [COMMAND, "up", "--modules", "broken"],
            cwd=directory,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert said.returncode == 1
    assert "cannot import 'broken'" in said.stderr
    assert "No module named 'no_such_library'" in said.stderr
    assert "Traceback" not in said.stderr
