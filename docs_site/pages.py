"""The site's pages: which there are, their places in the navigation, and the files that they link to."""

import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
CONFIG: Final = ROOT / "zensical.toml"
REFERENCE: Final = "reference"
_PATTERN: Final = re.compile(r'"([^"]*\*[^"]*\.md)"')
_LINK: Final = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


class BrokenSite(Exception):
    """The site cannot be built, or not all of it can be reached; each line says what to do."""


def pages() -> list[str]:
    """Return the paths of all pages that are written by hand."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def config() -> str:
    """Return the site's configuration, with the names of pages instead of patterns."""
    return _PATTERN.sub(lambda pattern: ", ".join(f'"{page}"' for page in _matching(pattern[1])), CONFIG.read_text())


def _matching(pattern: str) -> list[str]:
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern))


def navigation() -> list[str]:
    """Return the paths of all pages that the navigation names."""
    return list(_paths(tomllib.loads(config())["project"]["nav"]))


def _paths(entry: Any) -> Iterator[str]:
    match entry:
        case str():
            yield entry
        case list():
            for each in entry:
                yield from _paths(each)
        case dict():
            yield from _paths(list(entry.values()))


def check_navigation(known: list[str]) -> None:
    """Refuse a page that the navigation does not name once, and a name without its page."""
    named = navigation()
    problems = [
        *(
            f"{page}: no place in the navigation: add a line to nav in zensical.toml"
            for page in set(known) - set(named)
        ),
        *(f"{page}: in the navigation, but there is no such page" for page in set(named) - set(known)),
        *(f"{page}: twice in the navigation" for page in set(named) if named.count(page) > 1),
    ]
    if problems:
        raise BrokenSite("\n".join(sorted(problems)))


def linked_files() -> list[str]:
    """Return the paths of files of the repository, other than pages, that a page links to or shows."""
    found = {
        file.relative_to(ROOT).as_posix()
        for page in pages()
        for target in _LINK.findall((ROOT / page).read_text())
        if (file := ((ROOT / page).parent / target).resolve()).is_file() and file.is_relative_to(ROOT)
    }
    return sorted(found - set(pages()))


def copy_pages(to: Path) -> None:
    """Copy all pages, and what they link to, to the same places below a directory."""
    for path in [*pages(), *linked_files()]:
        (to / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, to / path)
