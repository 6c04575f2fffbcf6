"""A process that has loaded the libraries of `redrive` and becomes a command on request, by a fork.

To load them takes most of a second of CPU, and the tests run hundreds of commands. What was forked is a process with
its own directory, environment and streams. Our command line is loaded after the fork: it looks at its terminal then.
"""

import asyncio
import contextlib
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

LOADED = (
    "redrive.client",
    "redrive.documents",
    "redrive.logs",
    "redrive.payloads",
    "redrive.settings",
    "redrive.store.audit",
    "redrive.store.bulk.operations",
    "redrive.store.dead_letters.lists",
    "redrive.store.runs",
    "temporalio.contrib.pydantic",
    "temporalio.envconfig",
    "cyclopts",
    "cyclopts.completion.install",
    "cyclopts.validators",
    "rich.live",
    "rich.progress",
    "rich.prompt",
    "rich.table",
    "asyncpg",
)
LARGEST = 128 * 1024
STREAMS = 3


class ReadyCommands:
    """Asks such a process for commands. It ends with this one."""

    def __init__(self, root: Path, environment: Mapping[str, str]) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            words = [sys.executable, "-m", __name__, str(theirs.fileno())]
            self._process = subprocess.Popen(words, pass_fds=[theirs.fileno()], cwd=root, env=environment)

    async def run(
        self, words: Sequence[str], directory: Path, environment: Mapping[str, str], stdin: bytes, *, within: float
    ) -> tuple[int, bytes, bytes]:
        """Run a command to its end; return its exit code and what it has written to stdout and stderr."""
        with contextlib.ExitStack() as files:
            given, out, err = (files.enter_context(tempfile.TemporaryFile()) for _ in range(STREAMS))
            given.write(stdin)
            given.seek(0)
            results, theirs = map(files.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            request = json.dumps({"words": words, "directory": str(directory), "environment": dict(environment)})
            streams = [each.fileno() for each in (given, out, err, theirs)]
            socket.send_fds(self._requests, [request.encode()], streams)
            theirs.close()
            code = await _code(results, within)
            out.seek(0)
            err.seek(0)
            return code, out.read(), err.read()


async def _code(results: socket.socket, within: float) -> int:
    """Wait for the exit code of a command, which first tells its process id; end it when it takes too long."""
    loop = asyncio.get_running_loop()
    results.setblocking(False)
    pid = int(await loop.sock_recv(results, LARGEST))
    try:
        async with asyncio.timeout(within):
            return int(await loop.sock_recv(results, LARGEST))
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        raise


def main() -> None:
    """Take requests until nobody can ask any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in LOADED:
        importlib.import_module(name)
    gc.freeze()
    requests = socket.socket(fileno=int(sys.argv[1]))
    with selectors.DefaultSelector() as waiting:
        waiting.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.data is not None:
                    waiting.unregister(key.fileobj)
                    _report(key.fd, key.data)
                elif not _take(requests, waiting):
                    return


def _take(requests: socket.socket, waiting: selectors.DefaultSelector) -> bool:
    """Fork one command; tell whether there was a request for it."""
    data, streams, _, _ = socket.recv_fds(requests, LARGEST, STREAMS + 1)
    if not data:
        return False
    pid = os.fork()
    if not pid:
        _become(json.loads(data), streams[:STREAMS])
    for stream in streams[:STREAMS]:
        os.close(stream)
    result = socket.socket(fileno=streams[STREAMS])
    result.send(str(pid).encode())
    waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, data=(pid, result))
    return True


def _report(descriptor: int, command: tuple[int, socket.socket]) -> None:
    os.close(descriptor)
    pid, result = command
    with result, contextlib.suppress(BrokenPipeError):
        result.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def _become(request: dict[str, Any], streams: Sequence[int]) -> NoReturn:
    """Run `redrive` in this process, as its script does."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.closerange(STREAMS, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        os.chdir(request["directory"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = ["redrive", *request["words"]]
        importlib.import_module("redrive.entry_point").main()
    except BaseException:
        traceback.print_exc()
    os._exit(1)


if __name__ == "__main__":
    main()
