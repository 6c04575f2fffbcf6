"""The embedded stack on real servers: what `redrive up` stands on."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from redrive.contracts import SearchAttribute
from redrive.errors import StackError
from redrive.postgres.database import connect
from redrive.settings import Settings
from redrive.starter.stack.children import ChildState
from redrive.starter.stack.placement import sheltered
from redrive.starter.stack.ports import LOOPBACK, Ports
from redrive.starter.stack.stack import Stack, wipe
from redrive.starter.stack.state import StateDirectory, find_running
from tests.conftest import eventually, owner_url

OWNER = """
import asyncio, json, pathlib, sys
from redrive.settings import Settings
from starter.stack.stack import Stack

async def main():
    settings = Settings(temporal_address=None, temporal_profile=None, database_url=None)
    async with Stack(settings, state_dir=pathlib.Path(sys.argv[1]), workers=0) as stack:
        print(json.dumps(stack.info.children), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@contextlib.contextmanager
def _state() -> Iterator[Path]:
    """A state directory that PostgreSQL's account can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="redrive-test-", ignore_cleanup_errors=True) as path:
        Path(path).chmod(0o711)
        yield Path(path) / "state"


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """A state directory of the test's own."""
    with _state() as path:
        yield path


@pytest.fixture
def no_leftovers() -> Iterator[None]:
    """Fail the test when it leaves a process behind."""
    before = set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) <= before


def _stack(state_dir: Path, **options: object) -> Stack:
    """Build a stack of servers alone, whatever the environment says."""
    settings = Settings(temporal_address=None, temporal_profile=None, database_url=None)
    return Stack(settings, state_dir=state_dir, workers=0, **options)  # type: ignore[arg-type]  # a test's options


@pytest.fixture(scope="module")
async def stack() -> AsyncIterator[Stack]:
    """A stack for all tests that only look at it or use its servers."""
    with _state() as state_dir:
        async with _stack(state_dir) as stack:
            yield stack
        await wipe(state_dir)


async def _start_run(stack: Stack) -> str:
    """Start a workflow that no worker takes, so that it stays open."""
    client = await Client.connect(stack.info.temporal_address, namespace=stack.info.namespace)
    tenant = SearchAttributeKey.for_keyword(SearchAttribute.TENANT)
    run_id = f"run-{uuid.uuid4()}"
    attributes = TypedSearchAttributes([SearchAttributePair(tenant, "acme")])
    await client.start_workflow("Nothing", id=run_id, task_queue="nobody", search_attributes=attributes)
    return run_id


async def _run_is_open(stack: Stack, run_id: str) -> bool:
    client = await Client.connect(stack.info.temporal_address, namespace=stack.info.namespace)
    return (await client.get_workflow_handle(run_id).describe()).status is WorkflowExecutionStatus.RUNNING


def _of(stack: Stack) -> Settings:
    info = stack.info
    return Settings(
        temporal_address=info.temporal_address, database_url=info.database_url, owner_database_url=info.owner_url
    )


async def _sql(stack: Stack, statement: str) -> object:
    connection = await connect(owner_url(stack.info))
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def _killed_and_back(stack: Stack, name: str) -> None:
    before = stack.children[name]
    assert before.pid
    os.kill(before.pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        while stack.children[name].restarts == before.restarts or stack.children[name].state is not ChildState.READY:
            await stack.wait_changed()


async def test_killed_server_comes_back_with_its_data(state_dir: Path, no_leftovers: None) -> None:
    """kill -9 of each server in turn: it is restarted at the same address, and nothing is lost."""
    async with _stack(state_dir) as stack:
        run_id = await _start_run(stack)
        await _sql(stack, "CREATE TABLE kept AS SELECT 42 AS answer")
        before = stack.info
        for name in list(stack.children):
            await _killed_and_back(stack, name)
            assert await _run_is_open(stack, run_id)
            assert await _sql(stack, "SELECT answer FROM kept") == 42
        after = stack.info
        assert after.temporal_address == before.temporal_address
        assert set(after.children.values()).isdisjoint(before.children.values())
        assert find_running(state_dir) == after


async def test_killed_worker_comes_back(stack: Stack, tmp_path: Path, no_leftovers: None) -> None:
    """kill -9 of one of two workers: it is restarted, the other goes on."""
    settings = _of(stack)
    async with Stack(settings, state_dir=tmp_path, workers=2) as workers:
        before = workers.info.children
        await _killed_and_back(workers, "worker-1")
        after = workers.info.children
        assert after["worker-1"] != before["worker-1"]
        assert after["worker-2"] == before["worker-2"]
        assert set(workers.info.workers) == set(after.values())
        await eventually(lambda: _take_work(workers))


async def _take_work(workers: Stack) -> bool:
    """Tell whether all workers ask the server that the stack was given, and not the one of another stack."""
    info = workers.info
    client = await Client.connect(info.temporal_address, namespace=info.namespace)
    queue = DescribeTaskQueueRequest(
        namespace=info.namespace,
        task_queue=TaskQueue(name=info.task_queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    pollers = (await client.workflow_service.describe_task_queue(queue)).pollers
    return set(info.workers) <= {int(poller.identity.partition("@")[0]) for poller in pollers}


async def test_worker_that_cannot_start_is_quoted(stack: Stack, tmp_path: Path, no_leftovers: None) -> None:
    """A module that is not there is named in the sentence, and nothing stays behind."""
    settings = _of(stack)
    with pytest.raises(StackError, match=r"the worker ended at its start(.|\n)*no_such_module"):
        await Stack(settings, state_dir=tmp_path, modules=["no_such_module"]).__aenter__()


async def test_second_start_continues_where_the_first_stopped(state_dir: Path, no_leftovers: None) -> None:
    """Runs and records survive a clean stop; wiping removes them."""
    async with _stack(state_dir) as stack:
        run_id = await _start_run(stack)
        await _sql(stack, "CREATE TABLE kept AS SELECT 42 AS answer")
    assert find_running(state_dir) is None
    async with _stack(state_dir) as stack:
        assert await _run_is_open(stack, run_id)
        assert await _sql(stack, "SELECT answer FROM kept") == 42
    await wipe(state_dir)
    assert [entry.name for entry in state_dir.iterdir()] == ["lock"]


async def test_running_stack_is_found_and_protected(stack: Stack, no_leftovers: None) -> None:
    """Others find the stack; a second one in the same directory and a wipe are refused with its process."""
    state_dir = stack.token_file.parent
    assert find_running(state_dir) == stack.info
    with pytest.raises(StackError, match=f"already running in {state_dir} .process {os.getpid()}."):
        await _stack(state_dir).__aenter__()
    with pytest.raises(StackError, match="already running"):
        await wipe(state_dir)
    assert find_running(state_dir) == stack.info
    assert await _sql(stack, "SELECT 1") == 1


async def test_two_stacks_at_once_do_not_meet(state_dir: Path, no_leftovers: None) -> None:
    """Stacks of two directories, started together, get servers of their own."""
    async with contextlib.AsyncExitStack() as both:
        stacks = (_stack(state_dir / "one"), _stack(state_dir / "two"))
        one, two = await asyncio.gather(*(both.enter_async_context(stack) for stack in stacks))
        assert one.info.temporal_address != two.info.temporal_address
        run_id = await _start_run(one)
        assert await _run_is_open(one, run_id)
        await _sql(one, "CREATE TABLE only_here ()")
        assert await _sql(two, "SELECT to_regclass('only_here')") is None


@pytest.mark.parametrize("name", ["temporal", "web_ui", "postgres"])
async def test_taken_port_is_refused(state_dir: Path, no_leftovers: None, name: str) -> None:
    """A port that was asked for and is in use gives a sentence, and nothing is started."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(StackError, match=f"port {port} for .* is taken"):
            await _stack(state_dir, ports=Ports(**{name: port})).__aenter__()


async def test_unwritable_state_is_refused(tmp_path: Path, no_leftovers: None) -> None:
    """A state directory that cannot be made gives its path and the reason."""
    (tmp_path / "file").touch()
    with pytest.raises(StackError, match=f"cannot write {tmp_path}/file/state: "):
        await _stack(tmp_path / "file" / "state").__aenter__()


@pytest.mark.parametrize("option", ["temporal_binary", "postgres_home"])
async def test_missing_program_is_refused(state_dir: Path, no_leftovers: None, option: str) -> None:
    """A program that is not installed is named."""
    with pytest.raises(StackError, match="is missing: there is no /nowhere"):
        await _stack(state_dir, **{option: Path("/nowhere")}).__aenter__()


async def test_server_that_fails_takes_the_other_along(state_dir: Path, tmp_path: Path, no_leftovers: None) -> None:
    """When one server cannot start, its words are quoted, the other is stopped, and the directory is free again."""
    broken = tmp_path / "temporal"
    broken.write_text("#!/bin/sh\nsleep 1\necho no space left on device\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(StackError, match=r"Temporal server ended .*exit code 3(.|\n)*no space left on device"):
        await _stack(state_dir, temporal_binary=broken).__aenter__()
    assert find_running(state_dir) is None
    async with _stack(state_dir) as stack:
        assert await _sql(stack, "SELECT 1") == 1


async def test_database_that_is_away_is_told(state_dir: Path, no_leftovers: None) -> None:
    """A database of the user's own that does not answer gives a sentence without its password."""
    settings = Settings(temporal_address="127.0.0.1:1", database_url="postgresql://me:hush@127.0.0.1:1/db")
    with pytest.raises(StackError, match=r"the database at 127\.0\.0\.1:1 cannot be reached") as caught:
        await Stack(settings, state_dir=state_dir, workers=0).__aenter__()
    assert "hush" not in str(caught.value)


async def test_servers_that_are_given_are_not_embedded(stack: Stack, tmp_path: Path, no_leftovers: None) -> None:
    """With both addresses set, no server is started, and the given ones are used and migrated."""
    settings = _of(stack)
    async with Stack(settings, state_dir=tmp_path, workers=0) as other:
        assert other.children == {}
        assert other.info.temporal_address == stack.info.temporal_address
        assert other.info.web_ui is None


async def test_killed_owner_leaves_no_process_behind(state_dir: Path) -> None:
    """kill -9 of the owner ends every child, and the next owner starts at once, with the data."""
    command = [sys.executable, "-c", OWNER, str(state_dir)]
    owner = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert owner.stdout
    children = json.loads(await owner.stdout.readline())
    family = psutil.Process(owner.pid).children(recursive=True)
    owner.kill()
    await owner.wait()
    assert set(children.values()) <= {process.pid for process in family}
    async with _stack(state_dir) as stack:
        assert await _sql(stack, "SELECT 1") == 1
        _, alive = await asyncio.to_thread(psutil.wait_procs, family, timeout=30)
        assert alive == []


@pytest.mark.skipif(os.geteuid() != 0, reason="a normal user reaches its own files")
async def test_root_below_a_closed_directory_uses_the_shelter(state_dir: Path, no_leftovers: None) -> None:
    """As root below a 0700 directory, the data lies where PostgreSQL's account reaches it, is kept, and is wiped."""
    state_dir.mkdir(mode=0o700)
    shelter = state_dir.parent / "shelter"
    async with _stack(state_dir / "inner", shelter=shelter) as stack:
        await _sql(stack, "CREATE TABLE kept AS SELECT 42 AS answer")
        copy = shutil.copytree(state_dir / "inner", state_dir / "copy")
        with pytest.raises(StackError, match="already running"):
            await _stack(copy, shelter=shelter).__aenter__()
        with pytest.raises(StackError, match="already running"):
            await wipe(copy)
    async with _stack(state_dir / "inner", shelter=shelter) as stack:
        assert await _sql(stack, "SELECT answer FROM kept") == 42
    data = sheltered(StateDirectory(state_dir / "inner"))
    assert data
    assert data.parent == shelter
    await wipe(state_dir / "inner")
    assert not data.exists()
