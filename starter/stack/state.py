"""The state directory (`.redrive/`): who may use it, its layout, and how others find the running stack."""

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import BaseModel, Field, SecretStr, ValidationError

from redrive.connection import LOCK_FILE, LOGINS_FILE, STACK_FILE, is_locked, lock_holder
from redrive.errors import StackError
from redrive.names import Broker

_LOCK_TIMEOUT: Final = 0.3
_SPACE_NEEDED: Final = 64 * 1024 * 1024


class StackInfo(BaseModel):
    """Where everything of a running stack is. Dumping it hides passwords; `stack.json` has them.

    Clients do not need the last two: they are in a separate file, and known to the stack itself.
    """

    pid: int
    temporal_address: str
    namespace: str
    namespace_id: str | None = None
    web_ui: str | None
    console: str | None = None
    database_url: SecretStr
    brokers: dict[Broker, SecretStr] = {}
    task_queue: str
    modules: tuple[str, ...]
    workers: tuple[int, ...]
    children: dict[str, int]
    access_url: SecretStr | None = Field(default=None, exclude=True)
    owner_url: SecretStr | None = Field(default=None, exclude=True)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a file system error into a `StackError` that names the path and the reason."""
    try:
        yield
    except OSError as error:
        raise StackError(f"cannot write {error.filename or path}: {error.strerror or error}") from error


class StateDirectory:
    """The files of one stack, held by one process at a time. Open it with `with`."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._undo = contextlib.ExitStack()

    @property
    def info(self) -> Path:
        """The file that tells others where the stack is."""
        return self.path / STACK_FILE

    @property
    def lock(self) -> Path:
        """The file that a running stack holds."""
        return self.path / LOCK_FILE

    @property
    def logins(self) -> Path:
        """The file of the database's other logins, for commands that manage access."""
        return self.path / LOGINS_FILE

    @property
    def logs(self) -> Path:
        """The directory of the children's output."""
        return self.path / "logs"

    @property
    def temporal(self) -> Path:
        """The directory of the Temporal server's database."""
        return self.path / "temporal"

    @property
    def postgres(self) -> Path:
        """The directory of PostgreSQL's data, unless its account cannot reach it."""
        return self.path / "postgres"

    @property
    def token(self) -> Path:
        """The file of the first API token."""
        return self.path / "token"

    @property
    def ready(self) -> Path:
        """The directory where workers report that they are ready."""
        return self.path / "ready"

    def broker(self, broker: Broker) -> Path:
        """Return the directory of a broker's data."""
        return self.path / broker

    def __enter__(self) -> "StateDirectory":
        with writing(self.path), contextlib.ExitStack() as undo:
            self._make(self.path, 0o711 if os.geteuid() == 0 else 0o700)
            undo.enter_context(holding(self.lock))
            _check_space(self.path)
            self.withdraw()
            for directory in (self.logs, self.temporal, self.ready):
                self._make(directory, 0o700)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def write_info(self, info: StackInfo) -> None:
        """Tell others where the stack is, atomically: a reader sees the old file or the new one."""
        document = info.model_dump(mode="json") | {
            "database_url": info.database_url.get_secret_value(),
            "brokers": {broker: url.get_secret_value() for broker, url in info.brokers.items()},
        }
        logins = {"access_url": info.access_url, "owner_url": info.owner_url}
        known = {name: url.get_secret_value() for name, url in logins.items() if url}
        write_private(self.logins, json.dumps(known, indent=2) + "\n")
        write_private(self.info, json.dumps(document, indent=2) + "\n")

    def withdraw(self) -> None:
        """Keep clients from finding a stack here."""
        self.info.unlink(missing_ok=True)
        self.logins.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove what the stack has created, and nothing else: a user may keep other things in the directory."""
        with writing(self.path):
            for path in (self.logs, self.temporal, self.postgres, *map(self.broker, Broker), self.ready):
                if path.exists():
                    shutil.rmtree(path)
            for path in (path for server in ("postgres", *Broker) for path in self.path.glob(f"{server}.*")):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            self.withdraw()
            self.token.unlink(missing_ok=True)

    @staticmethod
    def _make(directory: Path, mode: int) -> None:
        if not directory.is_dir():
            directory.mkdir(mode=0o700, parents=True)
            directory.chmod(mode)


def _check_space(path: Path) -> None:
    """Refuse a disk that is too full for the servers to start: they could not even write their errors."""
    free = shutil.disk_usage(path).free
    if free < _SPACE_NEEDED:
        raise StackError(
            f"the disk of {path} is full: {free // 2**20} MiB are free, {_SPACE_NEEDED // 2**20} MiB are needed; "
            "make room, or set REDRIVE_STATE_DIR to another directory"
        )


@contextlib.contextmanager
def holding(lock: Path) -> Iterator[None]:
    """Lock a file for the length of a block, or raise `StackError` naming the process that holds it."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + _LOCK_TIMEOUT
    while not _locked(descriptor, fcntl.LOCK_EX):
        # `find_running` also holds the lock for a moment.
        if time.monotonic() < deadline:
            time.sleep(0.02)
            continue
        holder = os.pread(descriptor, 32, 0).decode().strip()
        os.close(descriptor)
        raise StackError(
            f"a stack is already running in {lock.parent} (process {holder or 'unknown'}): "
            "stop it first, or set REDRIVE_STATE_DIR to another directory"
        )
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def find_running(state_dir: Path) -> StackInfo | None:
    """Read where the stack of a state directory is; None if none is running there."""
    state = StateDirectory(state_dir)
    try:
        text = state.info.read_text(encoding="utf-8")
        logins = json.loads(state.logins.read_text(encoding="utf-8")) if state.logins.exists() else {}
        info = StackInfo.model_validate(json.loads(text) | logins)
        return info if is_locked(state.lock) and lock_holder(state.lock) == str(info.pid) else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StackError(f"cannot read {error.filename}: {error.strerror}") from error
    except (ValidationError, ValueError, TypeError) as error:
        raise StackError(f"{state.info} was written by another version of Redrive: restart its stack") from error


def write_private(path: Path, text: str, owner: tuple[int, int] | None = None) -> None:
    """Write a file that only its owner, an account or else we, can read, atomically."""
    with writing(path):
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        # Only as a new file: in a directory of another account the name may be a link to somewhere else.
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                if owner:
                    os.fchown(file.fileno(), *owner)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
