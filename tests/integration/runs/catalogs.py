"""Callers without the modules' code, and catalogs as workers publish them."""

import asyncio

from temporalio.client import Client

from redrive import Redrive, Registry
from redrive.connection import database_url
from redrive.idempotency.postgres_claims import PostgresClaims
from redrive.postgres.database import DeadlinePool
from redrive.published_catalogs import Publication, PublishedCatalogs
from redrive.settings import Settings


def new_caller(settings: Settings, temporal: Client, *, catalogs_of: str | None = None) -> Redrive:
    """Return a client with a database and no code; `catalogs_of` is the task queue whose catalogs it reads."""
    claims = PostgresClaims(database_url(settings), max_size=4)
    catalogs = PublishedCatalogs(claims.pool, temporal.namespace, catalogs_of or settings.task_queue)
    return Redrive(temporal, task_queue=settings.task_queue, registry=Registry(), claims=claims, catalogs=catalogs)


async def publish(
    settings: Settings, temporal: Client, registry: Registry, build_id: str, *, task_queue: str | None = None
) -> None:
    """Publish a catalog as a worker of this build does when it starts."""
    pool = DeadlinePool(database_url(settings), 1)
    publication = Publication(
        pool,
        registry,
        namespace=temporal.namespace,
        task_queue=task_queue or settings.task_queue,
        build_id=build_id,
    )
    keeping = asyncio.create_task(publication.keep())
    await publication.tried.wait()
    keeping.cancel()
    pool.close()
