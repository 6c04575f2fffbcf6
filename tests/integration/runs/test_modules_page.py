"""Every Python block of docs/modules.md and of the README's modules is run as written."""

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

import redrive
import redrive.modules
from redrive import Redrive, Registry
from redrive.settings import ServiceSettings, Settings
from redrive.worker import running_worker
from tests.acceptance.live import Sink

ROOT = Path(__file__).parents[3]
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "invoice": ({"customer": "Ada", "lines": [3, 4]}, {"text": "Ada: 7"}),
    "print-pages": ({"pages": 3}, {"pages": 3, "total": 3}),
    "convert": ({"euros": 4, "currency": "USD"}, {"amount": 5.0}),
    "refund": ({"charge": "c-1"}, {"at": "now"}),
}


def blocks(page: str) -> list[str]:
    """Return the Python blocks of a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: Registry) -> Iterator[dict[str, Any]]:
    """The page's files, imported into a registry of their own, by name."""
    monkeypatch.setattr(redrive.modules, "DEFAULT_REGISTRY", registry)
    for name in ("module", "resource"):
        monkeypatch.setattr(redrive, name, getattr(registry, name), raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    names = []
    for block in blocks("docs/modules.md"):
        named = re.match(r"# (\w+)\.py\n", block)
        assert named, f"a block without the name of its file: {block[:40]!r}"
        (tmp_path / f"{named[1]}.py").write_text(block)
        names.append(named[1])
    assert len(names) == 7
    yield {name: importlib.import_module(name) for name in names}
    for name in names:
        sys.modules.pop(name)


async def test_pipelines_of_the_page_run(
    files: dict[str, Any], settings: Settings, temporal: Client, registry: Registry
) -> None:
    """Each run of the page's pipelines returns what the page says."""
    assert list(registry.misfits()) == []
    async with running_worker(settings, registry):
        redrive = Redrive(temporal, task_queue=settings.task_queue, registry=registry)
        for pipeline, (payload, output) in RUNS.items():
            run = await redrive.start(pipeline, payload)
            assert (await redrive.result(run.run_id)).output == output, pipeline


async def test_tests_and_checks_of_the_page_pass(files: dict[str, Any]) -> None:
    """The page's own tests, and its errors."""
    tests = [each for name, each in vars(files["test_invoice"]).items() if name.startswith("test_")]
    assert len(tests) == 3
    for each in tests:
        assert inspect.iscoroutinefunction(each)
        await each()
    invoice, checks = files["invoice"], files["checks"]
    with pytest.raises(redrive.Terminal):
        checks.check(invoice.Invoice(customer="Ada", lines=[]))
    with pytest.raises(redrive.Transient):
        checks.check(invoice.Invoice(customer="new", lines=[1]))


OTHER_PAGES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("fast_steps", "clean", {"text": " hello "}, {"text": "HELLO"}),
    (
        "projections",
        "interview-completed",
        {
            "event": {
                "id": "event-1",
                "dedupe_key": "k",
                "type": "t",
                "source": "s",
                "payload": {"user": "ada", "score": 3},
            }
        },
        {"total": 3},
    ),
]


async def test_pipelines_of_other_pages_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Settings, temporal: Client, registry: Registry
) -> None:
    """A page's block is a file that a worker can run."""
    monkeypatch.setattr(redrive.modules, "DEFAULT_REGISTRY", registry)
    monkeypatch.setattr(redrive, "module", registry.module, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    for page, *_ in OTHER_PAGES:
        (tmp_path / f"page_{page}.py").write_text(blocks(f"docs/{page}.md")[0])
        importlib.import_module(f"page_{page}")
    async with running_worker(settings, registry):
        client = Redrive(temporal, task_queue=settings.task_queue, registry=registry)
        for _, pipeline, payload, output in OTHER_PAGES:
            run = await client.start(pipeline, payload)
            assert (await client.result(run.run_id)).output == output, pipeline


async def test_module_of_the_readme_calls_its_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Settings, temporal: Client, registry: Registry
) -> None:
    """The README's block defines all that it uses, and its call carries the key that the README names."""
    monkeypatch.setattr(redrive.modules, "DEFAULT_REGISTRY", registry)
    monkeypatch.setattr(redrive, "module", registry.module, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "readme_billing.py").write_text(next(block for block in blocks("README.md") if "billing" in block))
    importlib.import_module("readme_billing")
    async with Sink(body='{"id": "c-1"}').serving() as sink:
        services = {"billing": ServiceSettings(base_url=sink.address)}
        async with running_worker(settings.model_copy(update={"services": services}), registry):
            client = Redrive(temporal, task_queue=settings.task_queue, registry=registry)
            run = await client.start("billing", {"item": "lamp", "amount": 3})
            assert (await client.result(run.run_id)).output == {"id": "c-1"}
    assert sink.keys["/charges"] == [f"{run.run_id}:charge:charge"]
