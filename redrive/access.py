"""Who may do what: roles, rights and the principal of a request. Pure.

A role bounds the rights that can be granted. Seed documents also call OWNER `SUPER_ADMIN` and ADMIN `ORG_ADMIN`: both
names are accepted wherever a role is given.

A person is responsible for a request, whichever token or sign-in it used. A second approver is another person.
"""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from redrive.errors import InvalidInput

EVERY_TENANT: Final = "*"
Person = Annotated[str, StringConstraints(min_length=1, max_length=300)]


class Role(StrEnum):
    """The role of a principal: an owner's holds in all tenants, any other in one."""

    OWNER = "owner"
    ADMIN = "admin"
    STAFF = "staff"
    VIEWER = "viewer"


class Right(StrEnum):
    """What a request needs."""

    READ = "read"
    PAYLOADS = "payloads"
    START = "start"
    COMMAND = "command"
    TOKENS = "tokens"


_ALIASES: Final = {"super_admin": Role.OWNER, "org_admin": Role.ADMIN}
_READERS: Final = frozenset({Right.READ, Right.PAYLOADS})


def member(subject: str) -> str:
    """Return the person that the identity provider knows by this name."""
    return f"member:{subject}"


def account(name: str) -> str:
    """Return the person who has this account on the command line's machine."""
    return f"account:{name}"


def named(name: str) -> str:
    """Return the person that a program names without further details."""
    return f"name:{name}"


def parse_role(text: str) -> Role:
    """Return a role by its name or its alias, in any case."""
    name = text.strip().lower().replace("-", "_")
    try:
        return _ALIASES.get(name) or Role(name)
    except ValueError:
        known = ", ".join([*Role, *_ALIASES])
        raise InvalidInput(f"role {text[:40]!r}: not a role; take one of {known}") from None


def grantable(role: Role) -> frozenset[Right]:
    """Return the rights that can be granted to this role."""
    return frozenset(Right) if role in {Role.OWNER, Role.ADMIN} else _READERS


def granted(role: Role, asked: frozenset[Right] | None = None) -> frozenset[Right]:
    """Return the granted rights: those asked for, or by default all for owners and admins, and reading for others."""
    possible = grantable(role)
    if asked is None:
        return possible if role in {Role.OWNER, Role.ADMIN} else frozenset({Right.READ})
    beyond = asked - possible
    if beyond:
        raise InvalidInput(f"right {sorted(beyond)[0]!r}: a {role.value} cannot have it, only an admin or an owner")
    if not asked:
        raise InvalidInput("rights: at least one is needed; without any the token opens nothing")
    return asked


class Principal(BaseModel):
    """Who makes a request: a person or a service, with a role in one tenant, or in all if `tenant` is None."""

    model_config = ConfigDict(frozen=True)

    id: str
    name: str
    role: Role
    tenant: str | None
    rights: frozenset[Right]
    person: str = Field(description="who answers for it: a token that somebody made counts as them")

    def may(self, right: Right) -> bool:
        """Tell whether this right was granted and the role still allows it."""
        return right in self.rights and right in grantable(self.role)
