"""The worker processes of a stack as programs."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from redrive.starter.stack.child import Program
from redrive.starter.stack.state import StackInfo

# A user's own Temporal settings (TLS, keys, profiles) are for another server and would keep a worker from this one.
_FOREIGN: Final = "TEMPORAL_"
_METRICS: Final = "REDRIVE_METRICS_ADDRESS"
# By name, not by file: the file's directory would come first on the path, and hide modules of Python's own.
WORKER: Final = (sys.executable, "-m", "redrive.worker")
# Workers and bridges handle no sign-ins and own nothing.
_OTHER_LOGINS: Final = ("REDRIVE_ACCESS_DATABASE_URL", "REDRIVE_OWNER_DATABASE_URL")


def worker_environment(info: StackInfo, *, state_dir: Path, embedded_temporal: bool) -> dict[str, str]:
    """Build the environment that connects a worker to the stack's servers."""
    environment = {name: value for name, value in os.environ.items() if name not in _OTHER_LOGINS}
    if embedded_temporal:
        environment = {name: value for name, value in environment.items() if not name.startswith(_FOREIGN)}
        environment["TEMPORAL_CONFIG_FILE"] = os.devnull
    return environment | {
        "TEMPORAL_ADDRESS": info.temporal_address,
        "TEMPORAL_NAMESPACE": info.namespace,
        "DATABASE_URL": info.database_url.get_secret_value(),
        "REDRIVE_MODULES": ",".join(info.modules),
        "REDRIVE_TASK_QUEUE": info.task_queue,
        "REDRIVE_STATE_DIR": str(state_dir),
    }


def nth_worker(environment: Mapping[str, str], number: int) -> dict[str, str]:
    """Return the environment of the worker with this number: each serves its metrics on the next port."""
    host, _, port = environment.get(_METRICS, "").rpartition(":")
    if not port.isdecimal() or int(port) == 0:
        return dict(environment)
    return {**environment, _METRICS: f"{host}:{int(port) + number - 1}"}


def worker_program(name: str, command: Sequence[str], environment: Mapping[str, str], ready_file: Path) -> Program:
    """Describe one worker; it is ready when it has written the file that REDRIVE_READY_FILE names."""
    return Program(
        name=name,
        title=f"the worker {name!r}" if name != "worker" else "the worker",
        command=command,
        environment={**environment, "REDRIVE_READY_FILE": str(ready_file)},
        prepare=partial(asyncio.to_thread, ready_file.unlink, missing_ok=True),
        ready=partial(asyncio.to_thread, ready_file.exists),
    )
