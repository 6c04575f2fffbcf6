"""Approvals as rows: each is given by another person, and used for one command."""

import asyncio
from dataclasses import replace

import pytest

from redrive.errors import ApprovalNotFound, SameApprover
from redrive.postgres.tenancy import Pool, transaction
from redrive.store.approvals import ApprovalRequest, Yes, approve, ask_approval, get_approval, use_approval
from redrive.store.audit import PlanRef

BEN = Yes(approved_by="ben", person="member:ben", reason="looked at it")


@pytest.fixture
async def asked(pool: Pool, tenant: str) -> ApprovalRequest:
    """A plan that ann asks for."""
    asking = ApprovalRequest(
        about=PlanRef(tenant), plan_hash="plan", plan={}, reason="why", requested_by="ann", person="member:ann"
    )
    await ask_approval(pool, asking)
    return asking


async def use(pool: Pool, tenant: str, used_for: str) -> str | None:
    """Use the approval, in a transaction of its own."""
    async with transaction(pool, tenant) as connection:
        return await use_approval(connection, tenant, "plan", used_for)


async def test_an_approval_is_used_for_one_command(pool: Pool, tenant: str, asked: ApprovalRequest) -> None:
    """Of many that want it at once one gets it, and gets it again; before the yes nobody does."""
    assert await use(pool, tenant, "order-0") is None
    await approve(pool, tenant, "plan", BEN)
    orders = [f"order-{number}" for number in range(8)]
    given = await asyncio.gather(*(use(pool, tenant, command) for command in orders))
    assert sorted(given, key=str) == [*[None] * 7, "ben"]
    winner = orders[given.index("ben")]
    assert await use(pool, tenant, winner) == "ben"
    assert (await get_approval(pool, tenant, "plan")).used_for == winner


async def test_asking_again_does_not_change_who_asked(pool: Pool, tenant: str, asked: ApprovalRequest) -> None:
    """A second request for a plan that waits leaves it as it is: ben cannot make it his, and so free ann's hands."""
    await ask_approval(pool, replace(asked, requested_by="ben", person="member:ben"))
    with pytest.raises(SameApprover):
        await approve(pool, tenant, "plan", Yes(approved_by="ann", person="member:ann", reason="mine"))
    assert (await approve(pool, tenant, "plan", BEN)).approved_by == "ben"
    late = await approve(pool, tenant, "plan", Yes(approved_by="cleo", person="member:cleo", reason="me, too"))
    assert late.approved_by == "ben"


async def test_what_ran_out_is_asked_for_anew(pool: Pool, tenant: str, asked: ApprovalRequest) -> None:
    """After the hour an approval is worth nothing; asked again, another person's yes is needed again."""
    await approve(pool, tenant, "plan", BEN)
    async with transaction(pool, tenant) as connection:
        await connection.execute("UPDATE approvals SET expires_at = expires_at - interval '61 minutes'")
    assert await use(pool, tenant, "order") is None
    with pytest.raises(ApprovalNotFound):
        await approve(pool, tenant, "plan", BEN)
    await ask_approval(pool, replace(asked, requested_by="ben", person="member:ben"))
    assert await use(pool, tenant, "order") is None
    with pytest.raises(SameApprover):
        await approve(pool, tenant, "plan", BEN)
