"""Every Python block of docs/workflows.md is run as written."""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

import redrive
import redrive.modules
import redrive.workflow
from redrive import Registry
from redrive.settings import Settings
from redrive.worker import running_worker
from tests.integration.runs.test_modules_page import blocks


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: Registry) -> Iterator[dict[str, Any]]:
    """The page's files, imported into a registry of their own, by name."""
    monkeypatch.setattr(redrive.workflow, "DEFAULT_REGISTRY", registry)
    monkeypatch.setattr(redrive, "module", registry.module, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    found = {}
    for block in blocks("docs/workflows.md"):
        named = re.match(r"# (\w+)\.py\n", block)
        assert named, f"a block without the name of its file: {block[:40]!r}"
        (tmp_path / f"{named[1]}.py").write_text(block)
        found[named[1]] = importlib.import_module(named[1])
    yield found
    for name in found:
        sys.modules.pop(name)


async def test_the_page_s_workflow_runs_on_both_workers(
    files: dict[str, Any], settings: Settings, temporal: Client, registry: Registry
) -> None:
    """Hosted, and on a worker of its own; one that needs an approval waits for it."""
    assert settings.temporal_address
    async with running_worker(settings, registry):
        texts = await files["start"].start(settings.temporal_address, settings.task_queue)
        assert texts == ["Ada, 1", "Ada, 2", "Ada, 3"]
        assert await files["project"].onboard(settings.temporal_address, settings.task_queue) == ["Bo, 1", "Bo, 2"]
        page = files["onboarding"]
        waiting = await temporal.start_workflow(
            page.Onboarding.run,
            page.User(name="C", country="US"),
            id=f"onboarding-{settings.task_queue}",
            task_queue=settings.task_queue,
        )
        await waiting.signal(page.Onboarding.approve, "ada")
        assert await waiting.result() == ["C, 1"]
