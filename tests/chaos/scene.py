"""The stage: a stack of its own, workers that may be killed, a service that refuses, and the runs."""

import contextlib
import json
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from redrive import Redrive
from redrive.connection import connect_temporal
from redrive.settings import Settings
from redrive.starter.stack.programs import worker_environment
from redrive.starter.stack.stack import Stack
from tests.acceptance.live import Sink
from tests.bench.contenders import with_bytecode
from tests.chaos.case import Case
from tests.chaos.trouble import Trouble, Workers
from tests.conftest import owner_url

MODULES = "tests.chaos.modules"


@dataclass(frozen=True)
class Scene:
    """What a chaos test works with."""

    case: Case
    sink: Sink
    trouble: Trouble

    @property
    def console(self) -> str:
        """Where the console is, of a scene that has one."""
        return self.trouble.stack.info.console or ""


@contextlib.asynccontextmanager
async def scene(*, runs: int, workers: int, seed: int, console: bool = False) -> AsyncIterator[Scene]:
    """Bring everything up, with a console if it is asked for; everything is stopped and removed at the end."""
    with tempfile.TemporaryDirectory(prefix="redrive-chaos-", ignore_cleanup_errors=True) as directory:
        # PostgreSQL does not run as root: its account has to get through here.
        state = Path(directory)
        state.chmod(0o711)
        async with (
            Sink(delay=0.02, refusal="422 Unprocessable Content").serving() as sink,
            Stack(Settings(), state_dir=state, modules=[MODULES], workers=0, console=console) as stack,
        ):
            services = json.dumps({"sink": {"base_url": sink.address}})
            environment = with_bytecode(worker_environment(stack.info, state_dir=state, embedded_temporal=True), state)
            async with Workers(workers, environment | {"REDRIVE_SERVICES": services}, state).running() as running:
                client = await connect_temporal(Settings(temporal_address=stack.info.temporal_address))
                redrive = Redrive(client, task_queue=stack.info.task_queue)
                case = Case(redrive, owner_url(stack.info), sink, runs)
                yield Scene(case, sink, Trouble(stack, running, seed))
