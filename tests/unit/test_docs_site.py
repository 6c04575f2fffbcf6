"""The documentation site: every page has a place, every link leads somewhere, the reference has all of the code."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from docs_site import links, pages, reference
from docs_site.api_reference import api, openapi
from docs_site.reference import environment_name
from redrive.bridges.events.settings import EventSettings
from redrive.bridges.rabbitmq.settings import RetrySettings
from redrive.errors import RedriveError
from redrive.settings import Settings

MADE = [f"{pages.REFERENCE}/{name}.md" for name in ("api", "cli", "errors", "settings")]
COMMANDS = ["redrive up", "redrive dlq replay", "redrive schedule backfill", "redrive bridge rabbitmq"]


def test_every_page_has_a_place_in_the_navigation() -> None:
    """A page that nobody can find in the site is not documentation."""
    pages.check_navigation([*pages.pages(), *MADE])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda known: [*known, "docs/lost.md"], "docs/lost.md: no place in the navigation"),
        (lambda known: known[1:], f"{pages.pages()[0]}: in the navigation, but there is no such page"),
    ],
)
def test_pages_and_navigation_have_to_agree(change: Callable[[list[str]], list[str]], told: str) -> None:
    """A page without a place, and a place without a page, are named."""
    with pytest.raises(pages.BrokenSite, match=told):
        pages.check_navigation(change([*pages.pages(), *MADE]))


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ('<a href="two.html#here">', None),
        ('<a href="https://example.com/">', None),
        ('<a href="three.html">', "one.html: three.html leads nowhere"),
        ('<a href="two.html#there">', "one.html: two.html#there leads nowhere"),
        ('<img src="lost.png">', "one.html: lost.png leads nowhere"),
        ('<script src="https://cdn.example/x.js">', "one.html: loads https://cdn.example/x.js from another host"),
        ('<link rel="stylesheet" href="//fonts.example">', "one.html: loads //fonts.example from another host"),
    ],
)
def test_links_to_nowhere_and_foreign_scripts_are_told(tmp_path: Path, page: str, told: str | None) -> None:
    """The built pages are checked: links, anchors, pictures, and what is loaded from other hosts."""
    (tmp_path / "one.html").write_text(page)
    (tmp_path / "two.html").write_text('<h1 id="here">')
    assert list(links.problems(tmp_path)) == ([told] if told else [])


@pytest.mark.parametrize("family", [Settings, EventSettings, RetrySettings])
def test_the_reference_describes_every_setting(family: type[BaseSettings]) -> None:
    """A setting has its name in the environment, a default and a description."""
    page = reference.settings()
    for name, field in family.model_fields.items():
        assert field.description, name
        assert f"| `{environment_name(family, name)}` |" in page


def test_the_reference_has_every_command_with_its_whole_help() -> None:
    """What `--help` of a command says is on the page, also its examples."""
    page = reference.cli()
    assert [command for command in COMMANDS if f" {command}\n" not in page] == []
    assert "State is kept in `.redrive/`" in page


def test_the_reference_has_every_request_of_the_api() -> None:
    """Each method of each path is on the page."""
    page = api()
    paths = openapi()["paths"]
    assert paths
    for path, methods in paths.items():
        assert [method for method in methods if f"### `{method.upper()} {path}`" not in page] == []


def test_the_reference_has_every_error() -> None:
    """Each code that programs may decide by is on the page."""
    page = reference.errors()
    ours = [kind for kind in RedriveError.__subclasses__() if kind.__module__ == "redrive.errors"]
    assert ours
    assert [kind.code for kind in ours if f"| `{kind.code}` |" not in page] == []
