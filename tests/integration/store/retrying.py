"""Steps that are tried again, as tests make them."""

from datetime import UTC, datetime, timedelta
from typing import Any

from redrive.categories import Category
from redrive.store.runs import RetryingStep


def new_retrying(tenant: str, **changes: Any) -> RetryingStep:
    """Make one whose first attempt has failed, and whose next is due in a minute."""
    now = datetime.now(UTC)
    fields: dict[str, Any] = {
        "tenant": tenant,
        "run_id": f"run-{tenant}",
        "step": "charge",
        "pipeline": "order",
        "cycle": 1,
        "attempt": 1,
        "max_attempts": 4,
        "category": Category.PROVIDER_5XX,
        "error_type": "ServiceError",
        "error": "the bank answered 503",
        "failed_at": now,
        "next_at": now + timedelta(minutes=1),
    }
    return RetryingStep(**(fields | changes))
