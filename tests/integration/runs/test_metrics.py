"""What a worker serves for Prometheus."""

import re
import socket
from pathlib import Path

import httpx
import pytest

from redrive import ModuleContext, Pipeline, Registry, RunStatus, Terminal, Transient
from redrive.dead_letters import LetterId
from tests.conftest import WorkerFactory, eventually
from tests.integration.runs.samples import Number, milliseconds, quick, settled

EVENTS = Path(__file__).parents[3] / "docs/events.md"


def free_address() -> str:
    """Return an address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host, port = probe.getsockname()
    return f"{host}:{port}"


async def test_a_worker_counts_attempts_retries_dead_letters_and_replays(
    worker: WorkerFactory, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that is retried once, dies, and is replayed to success shows in every metric that the page lists."""
    monkeypatch.setattr("redrive.activities.worker_health.GAUGE_INTERVAL", milliseconds(200))
    healthy = False

    @registry.module("only", policy=quick(base=milliseconds(1)))
    async def only(ctx: ModuleContext, given: Number) -> Number:
        if healthy:
            return given
        raise Transient("soon") if ctx.attempt == 1 else Terminal("never")

    Pipeline("counted", only, registry=registry)
    address = free_address()
    async with worker(metrics_address=address) as running, httpx.AsyncClient() as http:
        started = await running.redrive.start("counted", {})
        view = await settled(running.redrive, started.run_id)
        assert view.status is RunStatus.DLQ_PENDING
        healthy = True
        letter = LetterId(tenant=view.tenant, run_id=view.run_id, step="only")

        async def accepted() -> bool:
            return (await running.redrive.dead_letters.replay(letter, requested_by="ada", reason="mended")).accepted

        await eventually(accepted)
        await running.redrive.result(started.run_id)

        async def served() -> str | None:
            text = (await http.get(f"http://{address}/metrics")).text
            return text if 'outcome="succeeded"' in text and "workflow_dlq_letters" in text else None

        text = await eventually(served)
    where = 'pipeline="counted",step="only"'
    assert f"workflow_step_attempts_total{{{where}}} 3\n" in text
    assert f'workflow_step_retries_total{{category="unknown",{where}}} 1\n' in text
    assert f'workflow_dlq_moves_total{{category="validation",{where}}} 1\n' in text
    assert 'workflow_dlq_replays_total{outcome="accepted"} 1\n' in text
    assert 'workflow_dlq_replays_total{outcome="succeeded"} 1\n' in text
    assert 'workflow_dlq_record_seconds_bucket{pipeline="counted",le="3600"} 1\n' in text
    # Those of bulk operations and language models are counted in tests of theirs.
    documented = re.findall(r"^\| `(workflow_(?!bulk|llm)\w+)` \|", EVENTS.read_text(), re.MULTILINE)
    assert documented
    assert [name for name in documented if f"# TYPE {name} " not in text] == []
    assert "# TYPE temporal_" in text
