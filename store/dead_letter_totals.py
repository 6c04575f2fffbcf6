"""How many dead letters a list has: from the counters where they tell, else counted up to a limit."""

from typing import Final

from redrive.dead_letters import LetterStatus
from store.dead_letter_lists import LetterFilter, conditions, deep
from store.paging import COUNTED, Total
from store.tenancy import Pool, reading

_COUNTERS: Final = "SELECT coalesce(sum(count), 0)::bigint FROM dead_letter_counts WHERE status = ANY($1)"


async def total(pool: Pool, chosen: LetterFilter) -> Total | None:
    """Return how many letters fit, without reading a million of them. None for a search by text."""
    if chosen.text is not None:
        return None
    async with reading(pool, chosen.tenant, in_order=True) as connection:
        if not chosen.model_dump(exclude={"tenant", "status", "text"}, exclude_none=True):
            wanted = [chosen.status] if chosen.status else list(LetterStatus)
            return Total(count=await connection.fetchval(_COUNTERS, wanted), exact=True)
        query = conditions(chosen)
        fitting = deep(chosen, query, "1", COUNTED)
        count: int = await connection.fetchval(f"SELECT count(*) FROM ({fitting}) AS fitting", *query.parameters)  # noqa: S608
    return Total(count=count, exact=count < COUNTED)
