"""Both archives beside a Temporal project of the usual shape, which has `workflows/` and `worker.py` of its own."""

import asyncio
import functools
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import run
from redrive.starter.stack.state import StackInfo
from tests.conftest import eventually

ROOT = Path(__file__).parents[2]
THEIRS = ("workflows", "activities", "store", "examples", "console", "bridges", "starter")
MODULES = """
from pydantic import BaseModel
from redrive import ModuleContext, Pipeline, module
from workflows import NAME
from store import NAME as STORE

class Name(BaseModel):
    name: str

class Greeting(BaseModel):
    text: str

@module("greet")
async def greet(ctx: ModuleContext, given: Name) -> Greeting:
    return Greeting(text=f"Hello, {given.name}, from {NAME} and {STORE}!")

Pipeline("greet", greet)
"""
START = """
import asyncio
import activities, examples, greeting, worker
from redrive import Redrive

async def main() -> None:
    async with await Redrive.connect() as redrive:
        run = await redrive.start("greet", {"name": "Ada"}, key="greet:ada")
        result = await redrive.result(run.run_id)
        print(worker.NAME, activities.NAME, examples.NAME, result.output["text"], sep="|")

asyncio.run(main())
"""


IMPORTS = """
import pathlib, redrive, redrive.client, redrive.http, redrive.modules
print((pathlib.Path(redrive.__file__).parent / "py.typed").exists())
"""


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both archives, built from this checkout."""
    place = tmp_path_factory.mktemp("archives")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(place)], cwd=ROOT, check=True)
    return {"wheel": next(place.glob("*.whl")), "sdist": next(place.glob("*.tar.gz"))}


def make_environment(place: Path, words: str) -> Path:
    """Make a fresh environment with what the words name, and return where its programs are."""
    uv = run.find_uv()
    maker = [uv, "venv", "--quiet", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"]
    subprocess.run([*maker, str(place)], env=_settings(), check=True)
    install(place / "bin", words)
    return place / "bin"


def install(programs: Path, words: str) -> None:
    """Let uv, or pip where there is none, install what the words name."""
    uv, python = run.find_uv(), str(programs / "python")
    installer = [uv, "pip", "install", "--python", python] if uv else [python, "-m", "pip", "install"]
    subprocess.run([*installer, "--quiet", *words.split()], cwd=ROOT, env=_settings(), check=True)


@functools.cache
def _settings() -> dict[str, str]:
    # The environments are thrown away: nobody changes a file that the installer's own cache may share.
    return os.environ | run.uv_settings() | {"UV_LINK_MODE": "hardlink"}


def packages_of(programs: Path) -> Path:
    """Return where an environment has its packages."""
    return next((programs.parent / "lib").glob("python3*")) / "site-packages"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose own packages have the names that Redrive's folders have."""
    project = tmp_path / "project"
    for name in THEIRS:
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text(f'NAME = "their {name}"\n')
    (project / "worker.py").write_text('NAME = "their worker"\n')
    (project / "greeting.py").write_text(MODULES)
    (project / "start.py").write_text(START)
    return project


@pytest.fixture
def variables(stack: StackInfo) -> dict[str, str]:
    """The way to the session's servers, with a queue of the test's own."""
    return os.environ | {
        "TEMPORAL_ADDRESS": stack.temporal_address,
        "DATABASE_URL": stack.database_url.get_secret_value(),
        "REDRIVE_TASK_QUEUE": f"queue-{uuid.uuid4().hex[:12]}",
    }


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with what Redrive needs, and without Redrive."""
    return make_environment(tmp_path_factory.mktemp("archives") / "environment", "--require-hashes -r requirements.txt")


@pytest.fixture(params=["wheel", "sdist"])
def installed(request: pytest.FixtureRequest, archives: dict[str, Path], environment: Path) -> Iterator[Path]:
    """The programs of an environment in which one of the archives is installed."""
    install(environment, f"--no-deps --no-build-isolation {archives[request.param]}")
    yield environment
    shutil.rmtree(packages_of(environment) / "redrive")
    for record in packages_of(environment).glob("redrive-*.dist-info"):
        shutil.rmtree(record)
    (environment / "redrive").unlink()


@pytest.mark.long
async def test_it_runs_beside_a_project_with_the_same_folder_names(
    installed: Path, project: Path, variables: dict[str, str]
) -> None:
    """One name is installed; a module of the project runs, and the project's own code starts it."""
    ours = {Path(name).parts[0] for name in _recorded(packages_of(installed))}
    assert {name for name in ours if not name.endswith(".dist-info")} == {"redrive", ".."}
    ready = project / "ready"
    worker = await asyncio.create_subprocess_exec(
        *(installed / "redrive", "worker", "--modules", "greeting"),
        cwd=project,
        env=variables | {"REDRIVE_READY_FILE": str(ready)},
    )
    try:
        await eventually(lambda: asyncio.to_thread(ready.exists), within=90)
        caller = await asyncio.create_subprocess_exec(
            *(installed / "python", "start.py"), cwd=project, env=variables, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await caller.communicate()
    finally:
        worker.terminate()
        await worker.wait()
    greeting = "Hello, Ada, from their workflows and their store!"
    assert said.decode() == f"their worker|their activities|their examples|{greeting}\n"


def _recorded(packages: Path) -> list[str]:
    """Return what the installer wrote down as ours; `..` leads to the command."""
    [record] = packages.glob("redrive-*.dist-info/RECORD")
    return [line.split(",")[0] for line in record.read_text().splitlines()]


@pytest.mark.long
def test_a_plain_install_is_light(archives: dict[str, Path], tmp_path: Path) -> None:
    """It brings what callers and module authors import, typed; a command says which extra it lacks."""
    programs = make_environment(tmp_path / "environment", f"-c requirements.txt {archives['wheel']}")
    imported = subprocess.run([programs / "python", "-c", IMPORTS], capture_output=True, text=True, check=False)
    assert (imported.stdout, imported.stderr) == ("True\n", "")
    said = subprocess.run([programs / "redrive", "--help"], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.strip().endswith("is missing: pip install 'redrive[server]'")
