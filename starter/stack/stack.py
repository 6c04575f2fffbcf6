"""The stack as a whole: which servers are ours, in which order they start, and what is undone if one fails.

    async with Stack(Settings()) as stack:
        print(stack.info.web_ui)
        while True:
            for status in stack.children.values():
                print(status.name, status.state, status.pid)
            await stack.wait_changed()

Leaving the block stops everything, the workers first.
"""

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from pydantic import SecretStr
from temporalio.envconfig import ClientConfigProfile

from redrive.contracts import Broker
from redrive.errors import RedriveError, StackError
from redrive.logs import get_logger
from redrive.outbox.rows import install
from redrive.outbox.settings import OutboxSettings
from redrive.settings import Settings, read_environment
from redrive.starter.stack.children import ChildStatus, Program, Supervisor
from redrive.starter.stack.placement import (
    SHELTER,
    ServerPlace,
    find_postgres,
    place,
    place_server,
    server_account,
    sheltered,
)
from redrive.starter.stack.ports import LOOPBACK, Ports, reserve
from redrive.starter.stack.postgres import POSTGRES_PORT, Postgres, end_leftover, keep_passwords
from redrive.starter.stack.programs import (
    CONSOLE_PORT,
    WORKER,
    Brokers,
    BrokerServer,
    bridge_environment,
    bridge_program,
    console_address,
    console_program,
    find_servers,
    nth_worker,
    worker_environment,
    worker_program,
)
from redrive.starter.stack.state import StackInfo, StateDirectory, holding, writing
from redrive.starter.stack.temporal_server import (
    DEFAULT_NAMESPACE,
    TEMPORAL_ACCOUNTS,
    TEMPORAL_PORT,
    WEB_UI_PATH,
    WEB_UI_PORT,
    TemporalServer,
    find_temporal,
)
from redrive.starter.stack.worker_files import loaded_files
from redrive.store.migrate import migrate

_log = get_logger(__name__)


class Stack:
    """A Temporal server, a PostgreSQL, workers and a console, running for the length of an `async with` block.

    A server that the settings name is used as it is; one that they do not name is embedded. Entering returns when
    everything is ready, or raises `StackError` with nothing left running. `temporal_binary`, `postgres_home` and
    `shelter` say where programs are, and where servers may put files that their accounts cannot reach elsewhere.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        state_dir: Path | None = None,
        ports: Ports | None = None,
        modules: Sequence[str] | None = None,
        workers: int = 1,
        console: bool = False,
        brokers: Brokers | None = None,
        temporal_binary: Path | None = None,
        postgres_home: Path | None = None,
        shelter: Path = SHELTER,
    ) -> None:
        self._settings = settings or Settings()
        self._ports = ports or Ports()
        self._modules = tuple(self._settings.modules if modules is None else modules)
        self._workers = workers
        self._console = console
        self._brokers = brokers or {}
        self._temporal_binary = temporal_binary
        self._postgres_home = postgres_home
        self._shelter = shelter
        self._state = StateDirectory(state_dir or self._settings.state_dir)
        self._supervisor = Supervisor(self._state.logs, self._rewrite_info)
        self._undo = contextlib.AsyncExitStack()
        self._info: StackInfo | None = None
        self._console_port: int | None = None
        self._web_ui_proxy = self._settings.web_ui_proxy
        self._announced = False
        self._holds_shelter = False

    @property
    def info(self) -> StackInfo:
        """Where everything is, with the current process ids."""
        if self._info is None:
            raise StackError("the stack is not running")
        pids = {name: status.pid for name, status in self.children.items() if status.pid}
        workers = tuple(pid for name, pid in pids.items() if name.startswith("worker"))
        return self._info.model_copy(update={"children": pids, "workers": workers})

    @property
    def token_file(self) -> Path:
        """The file of the first API token."""
        return self._state.token

    @property
    def children(self) -> dict[str, ChildStatus]:
        """The status of each child by name: temporal, postgres, console, worker or worker-1, bridge-redis, ..."""
        return self._supervisor.statuses

    @property
    def worker_names(self) -> list[str]:
        """The names of the workers among the children."""
        return ["worker"] if self._workers == 1 else [f"worker-{number}" for number in range(1, self._workers + 1)]

    @property
    def worker_logs(self) -> dict[str, Path]:
        """The workers' log files, by name."""
        return {name: self._state.logs / f"{name}.log" for name in self.worker_names}

    @property
    def loaded_files(self) -> frozenset[Path]:
        """The files of modules that the workers have loaded."""
        return loaded_files(self._state.ready / name for name in self.worker_names)

    async def restart_workers(self, why: str) -> None:
        """Stop the workers, and start them again with the modules' files as they are now."""
        await self._supervisor.restart(why, *self.worker_names)

    async def wait_changed(self) -> None:
        """Wait until the status of any child changes."""
        await self._supervisor.wait_changed()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException as error:
            await self._undo.aclose()
            if isinstance(error, RedriveError) and not isinstance(error, StackError):
                raise StackError(str(error)) from error
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._undo.aclose()

    async def _start(self) -> None:
        temporal_binary, postgres_home = self._find_programs()
        found_brokers = await find_servers(self._brokers)
        self._undo.enter_context(self._state)
        # Before anything is decided: a state directory that was copied by hand names the original's shelter.
        self._hold_shelter()
        temporal = self._temporal(temporal_binary) if temporal_binary else None
        if temporal:
            self._web_ui_proxy = f"http://{LOOPBACK}:{temporal.web_ui_port}"
        postgres = self._postgres(postgres_home) if postgres_home else None
        brokers = {
            broker: found.make(
                self._server_place(self._state.broker(broker), found.program, *found.accounts),
                self._ports.brokers.get(broker),
                self._port,
            )
            for broker, found in found_brokers.items()
        }
        if self._console:
            self._console_port = self._port("the console", self._ports.console, CONSOLE_PORT)
        self._info = self._describe(temporal, postgres, brokers)
        self._undo.push_async_callback(self._supervisor.stop)
        await self._supervisor.start(*(server.program for server in (temporal, postgres) if server))
        if temporal:
            self._info = self._info.model_copy(update={"namespace_id": await temporal.namespace_id()})
        for program in (child for broker in brokers.values() for child in broker.children):
            await self._supervisor.start(program)
        await migrate(_secret(self._info.owner_url))
        if Broker.OUTBOX in self._brokers and self._brokers[Broker.OUTBOX] is None:
            await install(_secret(self._info.owner_url), read_environment(OutboxSettings).schema_name)
        await self._supervisor.start(*self._own_programs(embedded_temporal=temporal is not None))
        self._undo.callback(self._withdraw)
        self._state.write_info(self.info)
        self._announced = True

    def _find_programs(self) -> tuple[Path | None, Path | None]:
        """Find the programs of our own servers, before anything is created or started."""
        settings = self._settings
        temporal = postgres = None
        if settings.temporal_address is None and settings.temporal_profile is None:
            temporal = self._temporal_binary or find_temporal()
            if not temporal.exists():
                raise StackError(f"the command 'temporal' is missing: there is no {temporal}")
        if settings.database_url is None:
            postgres = self._postgres_home or find_postgres()
        return temporal, postgres

    def _temporal(self, binary: Path) -> TemporalServer:
        place = self._server_place(self._state.temporal, binary, *TEMPORAL_ACCOUNTS)
        return TemporalServer(
            binary=place.program,
            database=place.data / "temporal.db",
            account=place.account,
            # With a console it is shown there, behind the sign-in.
            web_ui_path=WEB_UI_PATH if self._console else "",
            port=self._port("the Temporal server", self._ports.temporal, TEMPORAL_PORT),
            web_ui_port=self._port("the Temporal Web UI", self._ports.web_ui, WEB_UI_PORT),
            namespace=self._settings.temporal_namespace or DEFAULT_NAMESPACE,
        )

    def _postgres(self, home: Path) -> Postgres:
        placement = place(self._state, home, server_account(), self._shelter)
        self._hold_shelter()
        return Postgres(
            placement=placement,
            port=self._port("PostgreSQL", self._ports.postgres, POSTGRES_PORT),
            passwords=keep_passwords(self._state, placement.data),
        )

    def _server_place(self, home: Path, program: Path, *accounts: str) -> ServerPlace:
        found = place_server(self._state, home, program, server_account(*accounts), self._shelter)
        self._hold_shelter()
        return found

    def _hold_shelter(self) -> None:
        shelter = sheltered(self._state)
        if shelter and not self._holds_shelter and shelter.exists():
            self._undo.enter_context(holding(shelter / "lock"))
            self._holds_shelter = True

    def _port(self, what: str, asked: int | None, preferred: int) -> int:
        reservation = reserve(what, asked=asked, preferred=preferred)
        self._undo.callback(reservation.close)
        return reservation.number

    def _describe(
        self, temporal: TemporalServer | None, postgres: Postgres | None, brokers: Mapping[Broker, BrokerServer]
    ) -> StackInfo:
        app, access, owner = self._logins(postgres)
        address, namespace = (temporal.address, temporal.namespace) if temporal else self._outside_temporal()
        return StackInfo(
            pid=os.getpid(),
            temporal_address=address,
            namespace=namespace,
            web_ui=temporal.web_ui if temporal else self._settings.web_ui,
            console=console_address(self._console_port) if self._console_port else None,
            database_url=app,
            access_url=access,
            owner_url=owner,
            brokers={broker: url for broker, url in self._brokers.items() if url}
            | {broker: SecretStr(server.url) for broker, server in brokers.items()}
            | {broker: app for broker, url in self._brokers.items() if broker is Broker.OUTBOX and not url},
            task_queue=self._settings.task_queue,
            modules=self._modules,
            workers=(),
            children={},
        )

    def _logins(self, postgres: Postgres | None) -> tuple[SecretStr, SecretStr, SecretStr]:
        """Return the database's address for the application, for access, and for the owner of the tables."""
        if postgres:
            return SecretStr(postgres.url), SecretStr(postgres.access_url), SecretStr(postgres.owner_url)
        settings = self._settings
        if settings.database_url is None:
            raise StackError("there is no database: set DATABASE_URL")
        access, owner = settings.access_database_url, settings.owner_database_url
        return settings.database_url, access or settings.database_url, owner or settings.database_url

    def _outside_temporal(self) -> tuple[str, str]:
        settings = self._settings
        try:
            profile = ClientConfigProfile.load(profile=settings.temporal_profile)
        except RuntimeError as error:
            raise StackError(f"the Temporal profile {settings.temporal_profile!r} cannot be read: {error}") from error
        address = settings.temporal_address or profile.address
        if not address:
            raise StackError(f"the Temporal profile {settings.temporal_profile!r} has no address: set TEMPORAL_ADDRESS")
        return address, settings.temporal_namespace or profile.namespace or DEFAULT_NAMESPACE

    def _own_programs(self, *, embedded_temporal: bool) -> list[Program]:
        state = self._state
        environment = worker_environment(self.info, state_dir=state.path, embedded_temporal=embedded_temporal)
        programs = [
            worker_program(name, WORKER, nth_worker(environment, number), state.ready / name)
            for number, name in enumerate(self.worker_names, 1)
        ]
        if self._console_port:
            programs.append(
                console_program(
                    environment,
                    self._console_port,
                    access_database_url=_secret(self.info.access_url),
                    web_ui=self.info.web_ui,
                    web_ui_proxy=self._web_ui_proxy,
                )
            )
        programs += [
            bridge_program(broker, bridge_environment(broker, url, environment, self._port), state.ready)
            for broker, url in self.info.brokers.items()
        ]
        return programs

    def _withdraw(self) -> None:
        """Keep clients from finding a stack that is stopping."""
        self._announced = False
        # A full disk must not keep the children from being stopped; the lock also tells.
        with contextlib.suppress(OSError):
            self._state.withdraw()

    def _rewrite_info(self) -> None:
        if self._announced:
            try:
                self._state.write_info(self.info)
            except StackError as error:
                _log.warning("stack.info_not_written", error=str(error))


def _secret(url: SecretStr | None) -> str:
    if url is None:
        raise StackError("the stack does not know this login of its database")
    return url.get_secret_value()


async def wipe(state_dir: Path) -> None:
    """Remove all that a stack has kept: runs, records, logs. Refuses, with `StackError`, while the stack is running."""
    with StateDirectory(state_dir) as state:
        shelter = sheltered(state)
        if shelter and shelter.exists():
            with writing(shelter), holding(shelter / "lock"):
                await end_leftover(shelter / "data")
                shutil.rmtree(shelter)
        await end_leftover(state.postgres)
        state.clear()
