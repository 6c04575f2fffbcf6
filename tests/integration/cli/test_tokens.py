"""`redrive tokens …` and `redrive members …` as processes, against a real database."""

import uuid
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from redrive.access import Role, member
from redrive.postgres.database import ACCESS_ROLE, open_pool
from redrive.starter.cli.command_options import own_person
from redrive.starter.stack.state import StackInfo
from redrive.store.access import TokenRequest, create_token, token_principal
from tests.conftest import access_url, owner_url
from tests.integration.cli.command import CommandLine
from tests.integration.store.letters import new_tenant

CONSOLE = "http://console.example"


@pytest.fixture
def redrive(stack: StackInfo, tmp_path: Path) -> CommandLine:
    """The command, beside the session's database."""
    return CommandLine(
        tmp_path,
        DATABASE_URL=stack.database_url.get_secret_value(),
        REDRIVE_ACCESS_DATABASE_URL=access_url(stack),
        REDRIVE_OWNER_DATABASE_URL=owner_url(stack),
        TEMPORAL_ADDRESS="127.0.0.1:1",
    )


async def test_a_token_is_made_used_and_revoked(redrive: CommandLine, stack: StackInfo) -> None:
    """The secret is printed once and alone; the list has no secret; a revoked token opens nothing."""
    tenant = new_tenant()
    made = await redrive("tokens", "create", "--name", "ci", "--role", "org-admin", "--tenant", tenant)
    secret = made.out.strip()
    assert (made.code, secret[:4]) == (0, "rdt_")
    link = await redrive("tokens", "link", "--token", secret, "--console-url", CONSOLE)
    assert link.out.startswith(f"{CONSOLE}/sign-in/link/")
    async with await open_pool(access_url(stack), max_size=1, role=ACCESS_ROLE) as pool:
        found = await token_principal(pool, secret)
        assert found
        assert (found.role, found.tenant) == (Role.ADMIN, tenant)
        listed = await redrive("tokens", "list", "--tenant", tenant, "--json")
        assert secret not in listed.out
        token = listed.document[0]["id"]
        assert (await redrive("tokens", "revoke", token)).code == 0
        assert await token_principal(pool, secret) is None


async def test_a_revoked_token_takes_along_what_was_made_with_it(redrive: CommandLine, stack: StackInfo) -> None:
    """An owner's token has made one for a tenant, and that one another: all are revoked, and named."""
    tenant = new_tenant()
    owner = (await redrive("tokens", "create", "--name", "root", "--role", "owner", "--json")).document
    async with await open_pool(access_url(stack), max_size=1, role=ACCESS_ROLE) as pool:
        wish = TokenRequest(
            name="child",
            role=Role.ADMIN,
            tenant=tenant,
            created_by="root",
            person="x",
            lasts=timedelta(hours=1),
            made_with=owner["id"],
        )
        child = await create_token(pool, wish)
        grandchild = await create_token(pool, replace(wish, name="grandchild", made_with=child.id))
        other = await create_token(pool, replace(wish, name="other", made_with=None))
        said = await redrive("tokens", "revoke", owner["id"])
        assert said.out.splitlines() == [
            f"revoked {owner['id']}",
            f"revoked {child.id} (child), made with {owner['id']}",
            f"revoked {grandchild.id} (grandchild), made with {child.id}",
        ]
        assert [await token_principal(pool, each.secret) for each in (child, grandchild)] == [None, None]
        assert await token_principal(pool, other.secret)


async def test_tokens_of_one_account_are_one_person(redrive: CommandLine, stack: StackInfo) -> None:
    """Whatever name is given, the account answers for its tokens, but for those that it makes for somebody else."""
    tenant = new_tenant()
    words = ("tokens", "create", "--name", "x", "--role", "admin", "--tenant", tenant)
    made = [await redrive(*words, *more) for more in ((), ("--by", "zoe"), ("--for", "ada@example.org"))]
    async with await open_pool(access_url(stack), max_size=1, role=ACCESS_ROLE) as pool:
        found = [await token_principal(pool, each.out.strip()) for each in made]
    own, renamed, others = (each.person for each in found if each)
    assert own == renamed == own_person()
    assert others == member("ada@example.org")


async def test_a_person_is_given_a_place(redrive: CommandLine) -> None:
    """A member is put, listed and put out."""
    tenant = new_tenant()
    who = f"ada@{tenant}.example"
    words = ("members", "put", who, "--role", "admin", "--tenant", tenant)
    assert "not active" in (await redrive(*words, "--inactive")).out
    rows = (await redrive("members", "list", "--tenant", tenant, "--json")).document
    assert [(row["subject"], row["active"]) for row in rows] == [(who, False)]


async def test_lists_that_are_cut_say_so(redrive: CommandLine) -> None:
    """With more rows than fit, stderr says which option shows them; with no more, it says nothing."""
    tenant = new_tenant()
    for name in "12":
        await redrive("tokens", "create", "--name", name, "--role", "admin", "--tenant", tenant)
        await redrive("members", "put", f"{name}@{tenant}.example", "--role", "admin", "--tenant", tenant)
    for family in ("tokens", "members"):
        words = (family, "list", "--tenant", tenant, "--json", "--limit")
        first, every = await redrive(*words, "1"), await redrive(*words, "2")
        assert (len(first.document), first.err) == (1, "there are more: add --limit 10\n")
        assert (len(every.document), every.err) == (2, "")


async def test_a_token_is_named_by_a_beginning_that_no_other_has(redrive: CommandLine, stack: StackInfo) -> None:
    """One that two have is refused with their number, and nothing is revoked; with one character more it is clear."""
    tenant = new_tenant()
    same = f"tok_{uuid.uuid4().hex[:8]}"
    owner = await asyncpg.connect(owner_url(stack))
    for name in "12":
        words = ("--name", name, "--role", "org-admin", "--tenant", tenant, "--json")
        made = (await redrive("tokens", "create", *words)).document
        await owner.execute("UPDATE redrive.api_tokens SET id = $1 WHERE id = $2", same + name * 8, made["id"])
    await owner.close()
    unclear = await redrive("tokens", "revoke", same)
    assert (unclear.code, "2 ids begin with it" in unclear.err) == (1, True)
    assert (await redrive("tokens", "revoke", f"{same}1")).out == f"revoked {same}11111111\n"
    rows = (await redrive("tokens", "list", "--tenant", tenant, "--json")).document
    assert {row["name"]: row["revoked_at"] is None for row in rows} == {"1": False, "2": True}
