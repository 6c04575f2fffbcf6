"""`make versions`: the plugin in the users' worker with the oldest and the newest SDK, on every Python that is here.

For each pair an environment is made with what `pip install redrive` brings, but this version of Temporal's SDK. In it
the stored histories are replayed, and a worker runs whose workflow parks and is replayed by Redrive, which has its own.
`PYTHONS` names interpreters; without it, those of the path and of pyenv are used.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Final

import run
from redrive import Redrive
from redrive.connection import connect_temporal
from redrive.plugin import DeadLetters
from redrive.settings import Settings
from redrive.starter.stack.stack import Stack
from tests.conftest import owner_url
from tests.integration.plugin.lab import Project
from tests.integration.plugin.users_worker import TouchWorkflow

ROOT: Final = Path(__file__).parents[2]
VERSIONS: Final = ("3.11", "3.12", "3.13", "3.14")
OLDEST, NEWEST = "1.24.0", "1.35.0"


def pythons() -> list[str]:
    """Return an interpreter of each Python that is here."""
    if named := os.environ.get("PYTHONS"):
        return named.split()
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = []
    for version in VERSIONS:
        installed = sorted(pyenv.glob(f"{version}.*/bin/python"))
        path = str(installed[-1]) if installed else which(f"python{version}")
        print(f"python {version}: {'found' if path else 'not on this machine'}", flush=True)
        found += [path] if path else []
    return found


def environment(directory: Path, python: str, temporalio: str) -> Path:
    """Make an environment and return its interpreter."""
    uv = run.find_uv() or "uv"
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    others = [each for each in wanted if not each.startswith("temporalio")]
    settings = os.environ | run.uv_settings()
    own = directory / "bin" / "python"
    subprocess.run([uv, "venv", "--quiet", "--python", python, str(directory)], env=settings, check=True)
    install = [uv, "pip", "install", "--quiet", "--python", str(own)]
    subprocess.run([*install, f"temporalio=={temporalio}", *others], env=settings, check=True)
    return own


def replay_stored(python: Path) -> None:
    """Replay the stored histories in an environment."""
    words = [str(python), "-m", "tests.chaos.stored_histories"]
    subprocess.run(words, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)


@contextlib.contextmanager
def worker(python: Path, users: Project, letters: str) -> Iterator[None]:
    """Run the project's worker in an environment."""
    address = users.client.service_client.config.target_host
    command = [str(python), "-m", "tests.integration.plugin.users_worker", address, users.queue, letters]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def try_one(python: Path, users: Project, letters: str, path: Path) -> None:
    """Let a workflow park and be replayed."""
    Path(f"{path}.broken").touch()
    with worker(python, users, letters):
        handle = await users.start(TouchWorkflow.run, str(path))
        [letter] = await users.parked(handle, within=60)
        Path(f"{path}.broken").unlink()
        answer = await users.command(letter, "replay")
        async with asyncio.timeout(60):
            assert (answer.accepted, await handle.result()) == (True, "touched"), answer


async def main() -> int:
    """Try every pair and print the outcome."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="redrive-versions-", ignore_cleanup_errors=True) as directory:
        state = Path(directory)
        state.chmod(0o711)
        async with Stack(Settings(), state_dir=state, workers=1) as stack:
            client = await connect_temporal(Settings(temporal_address=stack.info.temporal_address))
            redrive = Redrive(client, task_queue=stack.info.task_queue)
            for number, (python, temporalio) in enumerate((p, t) for p in pythons() for t in (OLDEST, NEWEST)):
                users = Project(client, redrive, owner_url(stack.info), DeadLetters(["*"]))
                try:
                    own = environment(state / f"v{number}", python, temporalio)
                    replay_stored(own)
                    await try_one(own, users, stack.info.task_queue, state / f"touched-{number}")
                    print(f"{python}, temporalio {temporalio}: parked and replayed", flush=True)
                except (Exception, subprocess.CalledProcessError) as error:
                    failed += 1
                    print(f"{python}, temporalio {temporalio}: FAILED: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
