import importlib.util
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from redrive.starter.stack.children import ChildState, Supervisor
from redrive.starter.stack.programs import WORKER, nth_worker, worker_environment, worker_program
from redrive.starter.stack.state import StackInfo

INFO = StackInfo(
    pid=1,
    temporal_address="127.0.0.1:7300",
    namespace="default",
    web_ui=None,
    database_url=SecretStr("postgresql://redrive:hush@127.0.0.1/redrive"),
    task_queue="queue",
    modules=("redrive.examples", "mine"),
    workers=(),
    children={},
)


def test_worker_is_led_to_the_embedded_servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user's own Temporal settings are for another server and do not reach a worker of the embedded one."""
    monkeypatch.setenv("TEMPORAL_API_KEY", "for the cloud")
    monkeypatch.setenv("TEMPORAL_ADDRESS", "cloud:7233")
    environment = worker_environment(INFO, state_dir=tmp_path, embedded_temporal=True)
    ours = {
        name: value for name, value in environment.items() if name.startswith(("TEMPORAL_", "REDRIVE_", "DATABASE"))
    }
    assert ours == {
        "TEMPORAL_CONFIG_FILE": "/dev/null",
        "TEMPORAL_ADDRESS": "127.0.0.1:7300",
        "TEMPORAL_NAMESPACE": "default",
        "DATABASE_URL": "postgresql://redrive:hush@127.0.0.1/redrive",
        "REDRIVE_MODULES": "redrive.examples,mine",
        "REDRIVE_TASK_QUEUE": "queue",
        "REDRIVE_STATE_DIR": str(tmp_path),
    }


def test_worker_of_an_outside_server_keeps_its_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """TLS, keys and profiles for a server of the user's own are handed on, with the address that the stack names."""
    monkeypatch.setenv("TEMPORAL_PROFILE", "cloud")
    monkeypatch.delenv("TEMPORAL_ADDRESS", raising=False)
    environment = worker_environment(INFO, state_dir=tmp_path, embedded_temporal=False)
    assert environment["TEMPORAL_PROFILE"] == "cloud"
    assert (environment["TEMPORAL_ADDRESS"], environment["TEMPORAL_NAMESPACE"]) == ("127.0.0.1:7300", "default")


@pytest.mark.parametrize(
    ("address", "second"),
    [
        ("127.0.0.1:9464", "127.0.0.1:9465"),
        ("[::1]:9464", "[::1]:9465"),
        ("127.0.0.1:0", "127.0.0.1:0"),
        ("nonsense", "nonsense"),
    ],
)
def test_each_worker_serves_its_metrics_at_a_port_of_its_own(address: str, second: str) -> None:
    """The first at the address that is set; what is no address is left for the worker to refuse."""
    environment = {"REDRIVE_METRICS_ADDRESS": address}
    assert nth_worker(environment, 1) == environment
    assert nth_worker(environment, 2) == {"REDRIVE_METRICS_ADDRESS": second}
    assert nth_worker({}, 2) == {}


async def test_worker_is_ready_when_it_says_so(tmp_path: Path) -> None:
    """A worker counts as ready when it has written its file, and a file of an earlier one does not count."""
    script, ready_file = tmp_path / "worker.py", tmp_path / "ready"
    script.write_text(
        "import os, pathlib, signal\n"
        "ready = pathlib.Path(os.environ['REDRIVE_READY_FILE'])\n"
        "assert not ready.exists()\n"
        "draft = ready.with_suffix('.draft')\n"
        "draft.write_text(str(os.getpid()))\n"
        "draft.rename(ready)\n"
        "signal.pause()\n"
    )
    ready_file.write_text("of an earlier one")
    supervisor = Supervisor(tmp_path)
    try:
        await supervisor.start(worker_program("worker", [sys.executable, str(script)], {}, ready_file))
        status = supervisor.statuses["worker"]
        assert status.state is ChildState.READY
        assert ready_file.read_text() == str(status.pid)
    finally:
        await supervisor.stop()


def test_worker_is_found() -> None:
    """The worker is the file at the top of the project, run by this very Python."""
    spec = importlib.util.find_spec(WORKER[-1])
    assert spec is not None
    assert Path(str(spec.origin)).resolve() == Path(__file__).parents[3] / "worker.py"
    assert WORKER[0] == sys.executable
