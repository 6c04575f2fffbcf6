import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import psutil
import pytest

from redrive.errors import StackError
from redrive.starter.stack.children import ChildState, Program, Supervisor

WAIT = "import signal; print('waiting', flush=True); signal.pause()"
STUBBORN = "import signal; signal.signal(15, signal.SIG_IGN); open({path!r}, 'w'); signal.pause()"


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(tmp_path)
    yield supervisor
    await supervisor.stop()


async def _yes() -> bool:
    return True


async def _no() -> bool:
    return False


def _program(name: str, code: str, **options: object) -> Program:
    settings: dict[str, object] = {"ready": _yes, "grace": timedelta(seconds=5)} | options
    return Program(name=name, title=f"the {name}", command=[sys.executable, "-c", code], **settings)  # type: ignore[arg-type]  # a test's options


async def _until(supervisor: Supervisor, name: str, *, restarts: int, state: ChildState = ChildState.READY) -> None:
    async with asyncio.timeout(60):
        while (supervisor.statuses[name].restarts, supervisor.statuses[name].state) != (restarts, state):
            await supervisor.wait_changed()


async def test_child_that_is_killed_is_started_again(supervisor: Supervisor) -> None:
    """A child that dies comes back with another process, and its status says why."""
    await supervisor.start(_program("sleeper", WAIT))
    before = supervisor.statuses["sleeper"]
    assert before.pid
    os.kill(before.pid, signal.SIGKILL)
    await _until(supervisor, "sleeper", restarts=1)
    after = supervisor.statuses["sleeper"]
    assert after.pid != before.pid
    assert after.since > before.since
    assert after.note == "the sleeper ended (killed by SIGKILL)"


async def test_child_is_restarted_when_asked(supervisor: Supervisor) -> None:
    """It gets another process, its status says why, and it does not count as a restart after a death."""
    await supervisor.start(_program("sleeper", WAIT), _program("other", WAIT))
    before = supervisor.statuses
    await supervisor.restart("its file changed", "sleeper")
    await _until(supervisor, "sleeper", restarts=0)
    after = supervisor.statuses
    assert after["sleeper"].pid not in (None, before["sleeper"].pid)
    assert after["sleeper"].note == "its file changed"
    assert after["other"] == before["other"]


async def test_child_that_does_not_start_again_is_tried_until_it_does(supervisor: Supervisor, tmp_path: Path) -> None:
    """As after a death: a module's file that was saved half-written is fixed in the next moment."""
    broken = tmp_path / "broken"
    code = f"import os, sys; os.path.exists({str(broken)!r}) and sys.exit(3); {WAIT}"
    started = tmp_path / "sleeper.log"

    async def waits() -> bool:
        return started.read_text().endswith("waiting\n")

    await supervisor.start(_program("sleeper", code, ready=waits))
    started.write_text("")
    broken.touch()
    await supervisor.restart("its file changed", "sleeper")
    await _until(supervisor, "sleeper", restarts=1, state=ChildState.RESTARTING)
    broken.unlink()
    async with asyncio.timeout(60):
        while supervisor.statuses["sleeper"].state is not ChildState.READY:
            await supervisor.wait_changed()


async def test_child_that_ends_at_its_start_is_quoted(supervisor: Supervisor, tmp_path: Path) -> None:
    """The sentence carries the exit code and what the program said."""
    program = _program("faulty", "import sys; print('no space'); sys.exit(3)", ready=_no)
    with pytest.raises(StackError, match=r"the faulty ended at its start \(exit code 3\)\.(.|\n)*  no space"):
        await supervisor.start(program)
    assert (tmp_path / "faulty.log").read_text() == "no space\n"


async def test_child_that_never_gets_ready_is_ended(supervisor: Supervisor) -> None:
    """Waiting has an end, and the process does not outlive it."""
    before = set(psutil.Process().children())
    with pytest.raises(StackError, match=r"the dreamer was not ready after 2 s.(.|\n)*  waiting"):
        await supervisor.start(_program("dreamer", WAIT, ready=_no, ready_timeout=timedelta(seconds=2)))
    assert set(psutil.Process().children()) <= before


async def test_program_that_is_missing_gives_a_sentence(supervisor: Supervisor) -> None:
    """A command that is not there is named."""
    program = Program(name="ghost", title="the ghost", command=["/nowhere/ghost"], ready=_no)
    with pytest.raises(StackError, match="cannot run /nowhere/ghost: No such file"):
        await supervisor.start(program)


async def test_failure_of_one_ends_the_start_of_its_group(supervisor: Supervisor) -> None:
    """The first failure is told at once; what was starting beside it is ended."""
    before = set(psutil.Process().children())
    with pytest.raises(StackError, match="the faulty ended"):
        await supervisor.start(_program("slow", WAIT, ready=_no), _program("faulty", "raise SystemExit(1)", ready=_no))
    assert set(psutil.Process().children()) <= before


async def test_child_that_ignores_the_signal_is_killed(supervisor: Supervisor, tmp_path: Path) -> None:
    """Stopping takes no longer than the grace."""
    started = tmp_path / "started"
    program = _program(
        "stubborn",
        STUBBORN.format(path=str(started)),
        ready=partial(asyncio.to_thread, started.exists),
        grace=timedelta(seconds=0.2),
    )
    await supervisor.start(program)
    pid = supervisor.statuses["stubborn"].pid
    assert pid
    await supervisor.stop()
    assert not psutil.pid_exists(pid)


async def test_groups_stop_in_reverse(tmp_path: Path) -> None:
    """What was started last, on top of the rest, is stopped first."""
    journal = tmp_path / "journal"
    code = (
        "import atexit, signal, sys; signal.signal(15, lambda *_: sys.exit());"
        f"atexit.register(lambda: open({str(journal)!r}, 'a').write(NAME)); print('up', flush=True); signal.pause()"
    )

    def _said_up(name: str) -> bool:
        return (tmp_path / f"{name}.log").read_text() == "up\n"

    supervisor = Supervisor(tmp_path)
    for name in ("server", "worker"):
        ready = partial(asyncio.to_thread, _said_up, name)
        await supervisor.start(_program(name, f"NAME = '{name} '; {code}", ready=ready))
    await supervisor.stop()
    assert journal.read_text() == "worker server "


async def test_child_has_a_session_of_its_own(supervisor: Supervisor) -> None:
    """Ctrl-C in the terminal does not reach a child."""
    await supervisor.start(_program("sleeper", WAIT))
    pid = supervisor.statuses["sleeper"].pid
    assert pid
    assert os.getsid(pid) == pid


async def test_failing_restart_is_tried_again(supervisor: Supervisor, tmp_path: Path) -> None:
    """A child that cannot come back at once is tried until it can."""
    obstacle = tmp_path / "obstacle"
    code = f"import os, sys; os.path.exists({str(obstacle)!r}) and sys.exit('blocked'); {WAIT}"
    log = tmp_path / "sleeper.log"

    async def ready() -> bool:
        return log.read_text().rstrip().endswith("waiting")

    await supervisor.start(_program("sleeper", code, ready=ready))
    obstacle.touch()
    pid = supervisor.statuses["sleeper"].pid
    assert pid
    log.write_text("")
    os.kill(pid, signal.SIGKILL)
    await _until(supervisor, "sleeper", restarts=3, state=ChildState.RESTARTING)
    assert "blocked" in supervisor.statuses["sleeper"].note
    obstacle.unlink()
    async with asyncio.timeout(60):
        while supervisor.statuses["sleeper"].state is not ChildState.READY:
            await supervisor.wait_changed()
