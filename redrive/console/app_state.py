"""What all requests of a console share: settings, the database, Temporal, and short-lived caches."""

import asyncio
import time
from functools import partial
from typing import Annotated, Final
from urllib.parse import quote, urlsplit

from fastapi import Depends, Request
from temporalio.client import Client
from temporalio.service import RPCError

from redrive import Redrive
from redrive.access import Principal, Role
from redrive.bridges.events.replays import EventReplays, make_replays
from redrive.bridges.events.settings import EventSettings
from redrive.bulk import BulkCommand, BulkPlan
from redrive.connection import access_database_url, connect_temporal, database_url
from redrive.console.headers import WEB_UI_PATH
from redrive.console.limits import RateLimiter, Strangers, TenantLimits
from redrive.console.live_updates import Feed
from redrive.console.oidc import Provider
from redrive.console.seals import Seal
from redrive.console.telemetry import RequestMetrics
from redrive.console.web_ui import WebUi
from redrive.contracts import Catalog
from redrive.errors import RedriveError, Unavailable
from redrive.home import home_problem, namespace_id
from redrive.modules import hidden_names
from redrive.outbox.rows import Outbox
from redrive.outbox.settings import OutboxSettings
from redrive.postgres.database import ACCESS_ROLE, Database
from redrive.postgres.tenancy import Pool
from redrive.redaction.redactor import Redactor
from redrive.service_states import ServiceStates
from redrive.settings import Settings
from redrive.store.access import signing_key
from redrive.store.bulk.plans import KnownSteps, plan_bulk
from redrive.worker_queries import service_states

CATALOG_LASTS: Final = 10.0
# Each request authenticates once.
_ACCESS_SIZE: Final = 5
_HOME_TIMEOUT: Final = 2.0
_OUTBOX_SIZE: Final = 4


class AppState:
    """The connections of a console. Each is made on first use; the next use retries one that failed."""

    def __init__(self, settings: Settings, events: EventSettings, outbox: OutboxSettings) -> None:
        self.settings = settings
        self._events = events
        self.stopping = asyncio.Event()
        self.metrics = RequestMetrics()
        self.limiter = RateLimiter(settings.rate_limit, self.metrics)
        self.strangers = Strangers(settings.stranger_limit, self.metrics)
        self.redactor = settings.redactor()
        self.feed = Feed(self.pool)
        self.provider = Provider(settings.oidc) if settings.oidc else None
        self.web_ui = WebUi(settings.web_ui_proxy) if settings.web_ui_proxy else None
        self._database = Database(database_url(settings))
        self._access = Database(access_database_url(settings), max_size=_ACCESS_SIZE, role=ACCESS_ROLE)
        self.outbox = Outbox(outbox.url(settings), outbox.schema_name, max_size=_OUTBOX_SIZE)
        self._seal: Seal | None = None
        self.tenant_limits = TenantLimits(settings, self._database, self.temporal, self.metrics)
        self._client: Client | None = None
        self._redrive: Redrive | None = None
        self._catalog: tuple[float, Catalog] | None = None
        self._services: tuple[float, ServiceStates | None] | None = None
        self._asking = asyncio.Lock()
        self._home: tuple[float, str | None] | None = None
        self._run_redactor: tuple[Catalog, Redactor] | None = None
        self._connecting = asyncio.Lock()

    @property
    def https(self) -> bool:
        """Whether browsers use HTTPS, so that cookies must."""
        return urlsplit(self.settings.console_url or "").scheme == "https"

    async def pool(self) -> Pool:
        """Return the database pool, or raise `Unavailable`."""
        return await self._database.pool()

    async def access(self) -> Pool:
        """Return the pool for sessions, tokens and members, which no other query may use."""
        return await self._access.pool()

    async def seal(self) -> Seal:
        """Return the seal that all consoles sign with, or raise `Unavailable`."""
        if self._seal is None:
            self._seal = Seal(await signing_key(await self.access()))
        return self._seal

    async def temporal(self) -> Client:
        """Return the connection to Temporal, or raise `Unavailable`."""
        if self._client is None:
            async with self._connecting:
                if self._client is None:
                    self._client = await connect_temporal(self.settings)
        return self._client

    async def redrive(self) -> Redrive:
        """Return the client for runs and dead letters, or raise `Unavailable`."""
        if self._redrive is None:
            async with self._connecting:
                if self._redrive is None:
                    self._redrive = await Redrive.connect(self.settings)
        return self._redrive

    async def event_replays(self) -> EventReplays:
        """Return what replays events, or raise `Unavailable`."""
        return make_replays(await self.temporal(), await self.redrive(), self._database, self.settings, self._events)

    async def catalog(self) -> Catalog:
        """Return the workers' catalog, cached for a few seconds: each query costs a workflow."""
        now = time.monotonic()
        if self._catalog is None or now - self._catalog[0] > CATALOG_LASTS:
            self._catalog = (now, await (await self.redrive()).catalog())
        return self._catalog[1]

    async def plan_bulk(self, command: BulkCommand) -> BulkPlan:
        """Return what a bulk operation would do."""
        planner = partial(plan_bulk, await self.pool(), KnownSteps.published(await self.catalog()))
        return await (await self.redrive()).bulk.plan(command, planner)

    async def services(self) -> ServiceStates | None:
        """Return how the workers' services do, or None if no worker answered.

        Either is cached for a few seconds: each query costs a workflow, and without a worker a long wait.
        """
        async with self._asking:
            if self._services is None or time.monotonic() - self._services[0] > CATALOG_LASTS:
                found = await self._ask_for_services()
                self._services = (time.monotonic(), found)
            return self._services[1]

    async def _ask_for_services(self) -> ServiceStates | None:
        try:
            return await service_states(await self.temporal(), self.settings.task_queue)
        except (RedriveError, RPCError, TimeoutError):
            return None

    async def home_problem(self) -> str | None:
        """Say that the records belong to another Temporal, and what to do; None if not, or if Temporal is down.

        Either is cached for a few seconds: pages of records do not wait for Temporal each time.
        """
        if self._home is None or time.monotonic() - self._home[0] > CATALOG_LASTS:
            found = await self._ask_for_home()
            self._home = (time.monotonic(), found)
        return self._home[1]

    async def _ask_for_home(self) -> str | None:
        try:
            async with asyncio.timeout(_HOME_TIMEOUT):
                client = await self.temporal()
                own = await namespace_id(client)
        except (Unavailable, TimeoutError):
            return None
        return await home_problem(own, client.namespace, await self.pool())

    async def redactor_of_runs(self) -> Redactor:
        """Return the redactor for what runs hold: it also knows the modules' hidden fields."""
        catalog = await self.catalog()
        if self._run_redactor is None or self._run_redactor[0] is not catalog:
            self._run_redactor = (catalog, self.settings.redactor(hidden_names(catalog.modules)))
        return self._run_redactor[1]

    def links(self, caller: Principal, **workflows: str) -> dict[str, str]:
        """Return the links to these workflows in the Temporal Web UI, if it is known and the caller may follow.

        Behind this console's sign-in it is for owners: it shows all tenants.
        """
        settings = self.settings
        if self.web_ui and caller.role is not Role.OWNER:
            return {}
        address = f"{(settings.console_url or '').rstrip('/')}{WEB_UI_PATH}" if self.web_ui else settings.web_ui
        if address is None:
            return {}
        place = f"{address.rstrip('/')}/namespaces/{settings.temporal_namespace or 'default'}/workflows"
        return {name: f"{place}/{quote(workflow, safe='')}" for name, workflow in workflows.items()}

    async def close(self) -> None:
        """Close what was opened."""
        self.stopping.set()
        await self.feed.close()
        if self.provider:
            await self.provider.close()
        if self.web_ui:
            await self.web_ui.close()
        if self._redrive:
            await self._redrive.close()
        await self._access.close()
        await self.tenant_limits.close()
        await self.outbox.close()
        await self._database.close()


def app_state_of(request: Request) -> AppState:
    """Return the shared state of a request's application."""
    app_state: AppState = request.app.state.app_state
    return app_state


TheAppState = Annotated[AppState, Depends(app_state_of)]
