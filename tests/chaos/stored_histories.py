"""Replay the plugin's stored histories, with the Temporal SDK of the environment that runs this. Needs no pytest."""

import asyncio
import sys
from importlib.metadata import version
from pathlib import Path

from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from redrive.plugin import DeadLetters
from tests.integration.plugin import project

STORED = Path(project.__file__).parent / "histories"


async def main() -> None:
    """Replay each of them, or fail."""
    # Those of modules are of Redrive's own worker, which has one version of the SDK.
    paths = [path for path in sorted(STORED.rglob("*.json")) if not path.stem.startswith("module_")]
    for path in paths:
        plugin = DeadLetters(["*"], whole_workflows=path.stem == "whole")
        history = WorkflowHistory.from_json("stored", path.read_text())
        await Replayer(workflows=project.WORKFLOWS, plugins=[plugin], build_id="stored").replay_workflow(history)
    python = ".".join(str(part) for part in sys.version_info[:3])
    print(f"python {python}, temporalio {version('temporalio')}: {len(paths)} stored histories replayed")


if __name__ == "__main__":
    asyncio.run(main())
