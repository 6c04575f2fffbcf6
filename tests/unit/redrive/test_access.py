"""Roles and rights."""

import pytest

from redrive.access import Principal, Right, Role, granted, parse_role
from redrive.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("owner", Role.OWNER),
        ("SUPER_ADMIN", Role.OWNER),
        ("Org-Admin", Role.ADMIN),
        ("ADMIN", Role.ADMIN),
        ("staff", Role.STAFF),
        (" viewer ", Role.VIEWER),
    ],
)
def test_roles_have_aliases(text: str, role: Role) -> None:
    """The seeds' names are taken beside ours, in any case."""
    assert parse_role(text) is role


def test_an_unknown_role_is_named() -> None:
    """The refusal lists what there is."""
    with pytest.raises(InvalidInput, match=r"'king'.*org_admin"):
        parse_role("king")


@pytest.mark.parametrize("role", [Role.STAFF, Role.VIEWER])
def test_readers_read(role: Role) -> None:
    """Staff and viewers read; payloads only when that was granted; nothing else can be."""
    assert granted(role) == {Right.READ}
    assert granted(role, frozenset({Right.PAYLOADS})) == {Right.PAYLOADS}
    for right in (Right.START, Right.COMMAND, Right.TOKENS):
        with pytest.raises(InvalidInput, match=right.value):
            granted(role, frozenset({right}))


@pytest.mark.parametrize("role", [Role.OWNER, Role.ADMIN])
def test_admins_have_all_rights_or_fewer(role: Role) -> None:
    """Without a word all of them; with one, that."""
    assert granted(role) == set(Right)
    assert granted(role, frozenset({Right.START})) == {Right.START}
    with pytest.raises(InvalidInput, match="at least one"):
        granted(role, frozenset())


def test_a_right_beyond_the_role_is_worth_nothing() -> None:
    """Were a viewer's row to say `command`, the role would still stand before it."""
    principal = Principal(
        id="x", name="x", role=Role.VIEWER, tenant="acme", rights=frozenset({Right.COMMAND, Right.READ}), person="x"
    )
    assert (principal.may(Right.READ), principal.may(Right.COMMAND)) == (True, False)
