"""Whether every link of the built site leads somewhere, and nothing is loaded from another host."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

# What a browser loads by itself. Other links to other hosts are for people to click.
_LOADED: Final = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
# These name a page; nothing is loaded.
_NAMES_ONLY: Final = {"canonical", "next", "prev", "alternate"}


@dataclass
class Document(HTMLParser):
    """A page's links, the ids that can be linked to, and what it loads."""

    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element links to or loads."""
        given = {name: value or "" for name, value in attrs}
        self.ids.add(given.get("id", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        address = given.get(_LOADED.get(tag, ""))
        if address and not (tag == "link" and given.get("rel") in _NAMES_ONLY):
            self.loads.append(address)


def problems(site: Path) -> Iterator[str]:
    """Yield every link of the site that leads nowhere, and everything that is loaded from another host."""
    for page in sorted(site.rglob("*.html")):
        # The page for addresses that do not exist knows only absolute links.
        if page.name == "404.html":
            continue
        document, name = _document(page), page.relative_to(site)
        yield from (f"{name}: loads {each} from another host" for each in document.loads if _is_foreign(each))
        ours = [each for each in (*document.links, *document.loads) if not _is_foreign(each)]
        yield from (f"{name}: {each} leads nowhere" for each in ours if not _leads_somewhere(page, each))


@cache
def _document(page: Path) -> Document:
    document = Document()
    document.feed(page.read_text())
    return document


def _is_foreign(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme in {"http", "https", "mailto", "data"}


def _leads_somewhere(page: Path, address: str) -> bool:
    parts = urlsplit(address)
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if target.is_dir():
        target = target / "index.html"
    if not target.is_file():
        return False
    return not parts.fragment or target.suffix != ".html" or unquote(parts.fragment) in _document(target).ids
