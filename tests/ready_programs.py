"""A process that has loaded the libraries of our programs and becomes one of them on request, by a fork.

To load them takes most of a program's start, and the tests start hundreds. What was forked is a process with its own
id, directory, environment and streams, which can be stopped and killed like any other. It loads the code of its program
after the fork: that looks at its terminal then. Other tests start every program as users do.
"""

import asyncio
import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NoReturn

ROOT: Final = Path(__file__).parents[1]
OURS: Final = ("REDRIVE_", "TEMPORAL_", "DATABASE_URL")
LARGEST: Final = 128 * 1024
STREAMS: Final = 3


@dataclass(frozen=True)
class Program:
    """What a process becomes: the module whose `main` it calls, and the libraries that were loaded before."""

    name: str
    module: str
    loaded: tuple[str, ...]


COMMAND: Final = Program(
    "redrive",
    "redrive.entry_point",
    (
        "redrive.client",
        "redrive.dead_letter_client",
        "redrive.documents",
        "redrive.log_lines",
        "redrive.payloads",
        "redrive.postgres.database",
        "redrive.settings",
        "redrive.starter.stack.state",
        "redrive.store.audit",
        "redrive.store.bulk.operations",
        "redrive.store.dead_letters.figures",
        "redrive.store.dead_letters.lists",
        "redrive.store.runs",
        "temporalio.contrib.pydantic",
        "temporalio.envconfig",
        "cyclopts",
        "cyclopts.completion.install",
        "cyclopts.help",
        "cyclopts.validators",
        "rich.live",
        "rich.progress",
        "rich.prompt",
        "rich.table",
        "asyncpg",
        "email.parser",
    ),
)
WORKER: Final = Program("worker.py", "redrive.worker", ("redrive.worker",))


def outer_environment() -> dict[str, str]:
    """Return this process's environment without a word about servers, and with the code of this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return kept | {"PYTHONPATH": str(ROOT)}


class Forked:
    """A process that was forked for us."""

    def __init__(self, pid: int, results: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._results = results
        results.setblocking(False)

    def poll(self) -> int | None:
        """Return the exit code, if it has ended."""
        with contextlib.suppress(BlockingIOError):
            if self.returncode is None:
                self._ended(self._results.recv(LARGEST))
        return self.returncode

    async def wait(self) -> int:
        """Wait for the exit code."""
        if self.returncode is None:
            self._ended(await asyncio.get_running_loop().sock_recv(self._results, LARGEST))
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as the kernel does when memory is short."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, code: bytes) -> None:
        self.returncode = int(code)
        self._results.close()


class ReadyProgram:
    """Asks such a process for programs. It ends with this one, and ends what it has forked."""

    def __init__(self, program: Program) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            words = [sys.executable, "-m", __name__, str(theirs.fileno()), program.name, program.module]
            self._process = subprocess.Popen(
                [*words, *program.loaded], pass_fds=[theirs.fileno()], cwd=ROOT, env=outer_environment()
            )
        atexit.register(self._close)

    def _close(self) -> None:
        self._requests.close()
        self._process.wait()

    async def start(
        self, words: Sequence[str], directory: Path, environment: Mapping[str, str], streams: Sequence[IO[bytes]]
    ) -> Forked:
        """Start the program with its standard input, output and error; return without waiting for it."""
        results, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            request = json.dumps({"words": words, "directory": str(directory), "environment": dict(environment)})
            given = [*(each.fileno() for each in streams), theirs.fileno()]
            socket.send_fds(self._requests, [request.encode()], given)
        results.setblocking(False)
        return Forked(int(await asyncio.get_running_loop().sock_recv(results, LARGEST)), results)

    async def run(
        self, words: Sequence[str], directory: Path, environment: Mapping[str, str], stdin: bytes, *, within: float
    ) -> tuple[int, bytes, bytes]:
        """Run the program to its end; return its exit code and what it has written to stdout and stderr."""
        with contextlib.ExitStack() as files:
            given, out, err = (files.enter_context(tempfile.TemporaryFile()) for _ in range(STREAMS))
            given.write(stdin)
            given.seek(0)
            process = await self.start(words, directory, environment, (given, out, err))
            try:
                async with asyncio.timeout(within):
                    code = await process.wait()
            except BaseException:
                process.kill()
                raise
            out.seek(0)
            err.seek(0)
            return code, out.read(), err.read()


@functools.cache
def ready(program: Program) -> ReadyProgram:
    """Return the process that becomes this program; the first call starts it."""
    return ReadyProgram(program)


async def start(program: Program, words: Sequence[str], environment: Mapping[str, str], log: Path) -> Forked:
    """Start a program that appends what it says to a file."""
    with _files(log) as streams:
        return await ready(program).start(words, ROOT, environment, streams)


async def start_worker(environment: Mapping[str, str], log: Path) -> Forked:
    """Start a worker that appends what it says to a file."""
    return await start(WORKER, (), environment, log)


@contextlib.contextmanager
def _files(log: Path) -> Iterator[tuple[IO[bytes], ...]]:
    with Path(os.devnull).open("rb") as nothing, log.open("ab") as output:
        yield nothing, output, output


def main(requests_fd: str, name: str, module: str, *loaded: str) -> None:
    """Take requests until nobody can ask any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for library in loaded:
        importlib.import_module(library)
    gc.freeze()
    requests = socket.socket(fileno=int(requests_fd))
    with selectors.DefaultSelector() as waiting:
        waiting.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.data is not None:
                    waiting.unregister(key.fileobj)
                    _report(key.fd, key.data)
                elif not _take(requests, waiting, name, module):
                    _end_all(waiting)
                    return


def _take(requests: socket.socket, waiting: selectors.DefaultSelector, name: str, module: str) -> bool:
    """Fork one program; tell whether there was a request for it."""
    data, streams, _, _ = socket.recv_fds(requests, LARGEST, STREAMS + 1)
    if not data:
        return False
    pid = os.fork()
    if not pid:
        _become(json.loads(data), streams[:STREAMS], name, module)
    for stream in streams[:STREAMS]:
        os.close(stream)
    result = socket.socket(fileno=streams[STREAMS])
    result.send(str(pid).encode())
    waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, data=(pid, result))
    return True


def _report(descriptor: int, process: tuple[int, socket.socket]) -> None:
    os.close(descriptor)
    pid, result = process
    with result, contextlib.suppress(BrokenPipeError):
        result.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def _end_all(waiting: selectors.DefaultSelector) -> None:
    for key in waiting.get_map().values():
        if key.data is not None:
            os.kill(key.data[0], signal.SIGKILL)


def _become(request: dict[str, Any], streams: Sequence[int], name: str, module: str) -> NoReturn:
    """Run the program in this process, as its script does."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.closerange(STREAMS, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        os.chdir(request["directory"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = [name, *request["words"]]
        importlib.import_module(module).main()
    except BaseException:
        traceback.print_exc()
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
