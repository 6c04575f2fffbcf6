"""Where a request may go: builds the final URL from a base URL and a path, and refuses a path that leaves it. Pure.

A path often holds a piece of a payload. Whoever sent the payload must not choose which host, user or part of a service
gets our token, in whatever spelling: servers and proxies decode, normalize and strip in their own ways.
"""

import ipaddress
import re
import unicodedata
from typing import Final
from urllib.parse import unquote

import httpx

_WHOLE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HTTP: Final = re.compile(r"(?i)https?://[^/?#\s]")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_PORTS: Final = {"http": 80, "https": 443}
# What is still encoded after this many rounds was made to get past a check.
_ROUNDS: Final = 5
# Names that never lead to the public Internet: RFC 6761, 6762 and 8375, and those of clusters.
_PRIVATE_SUFFIXES: Final = frozenset(
    {"localhost", "local", "internal", "intranet", "private", "corp", "home", "lan", "svc", "arpa"}
)
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


class Outside(ValueError):
    """A path does not lead to a place below its base URL."""


def base_url(text: str) -> httpx.URL:
    """Read a base URL: http or https, without query and fragment."""
    if not _HTTP.match(text):
        raise Outside("is no http:// or https:// address")
    url = _parsed(text)
    if url.query or url.fragment:
        raise Outside("has a query or a fragment: a base URL ends with its path")
    return url


def whole_url(text: str) -> httpx.URL:
    """Read the URL of a call that has no base URL."""
    if not _HTTP.match(text):
        raise Outside("is no http:// or https:// address")
    return _without_user(_parsed(text))


def final_url(base: httpx.URL, path: str) -> httpx.URL:
    """Return the URL of a path below a base URL, or refuse it. The path may be a whole URL below it."""
    place = re.split(r"[?#]", path, maxsplit=1)[0]
    if "\\" in place:
        raise Outside("has a backslash, which some servers read as a slash")
    if _WHOLE.match(path):
        url = _without_user(_parsed(path), but=base.userinfo)
        if origin(url) != origin(base):
            raise Outside("is another origin")
        place = place.partition("://")[2].partition("/")[2]
    elif path.startswith("//"):
        raise Outside("begins with //, which names another host")
    else:
        url = _parsed(f"{str(base).rstrip('/')}/{path.removeprefix('/')}")
    _check_segments(place)
    root = _path(base).rstrip("/")
    if origin(url) != origin(base) or not f"{_path(url)}/".startswith(f"{root}/"):
        raise Outside("leads out of the base URL")
    return url


def origin(url: httpx.URL) -> tuple[str, str, int | None]:
    """Return the origin that a token belongs to: scheme, host and port."""
    return url.scheme, url.host, url.port or _PORTS.get(url.scheme)


def names_private(host: str) -> bool:
    """Tell whether a host is private by its name: a private address, a name without a dot, or one of a private zone."""
    try:
        return is_private(host)
    except ValueError:
        labels = host.rstrip(".").lower().split(".")
        return len(labels) == 1 or labels[-1] in _PRIVATE_SUFFIXES


def is_private(address: str) -> bool:
    """Tell whether an IP address is not public. Raises ValueError if it is none."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        inner = (
            ip.ipv4_mapped or ip.sixtofour or (ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else None)
        )
        if inner is not None:
            return is_private(str(inner))
    return not ip.is_global or ip.is_multicast


def _parsed(text: str) -> httpx.URL:
    if _CONTROL.search(text):
        raise Outside("has a line break, tab or other control character")
    try:
        return httpx.URL(text)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise Outside(f"makes no valid URL: {error}") from None


def _without_user(url: httpx.URL, but: bytes = b"") -> httpx.URL:
    """Refuse a URL that names a user other than the base URL's own, which a redirect is relative to."""
    if url.userinfo not in {b"", but}:
        raise Outside("names a user: sign in with a service's token")
    return url


def _check_segments(place: str) -> None:
    """Refuse a path that changes when it is decoded once more, or in another form of Unicode."""
    for _ in range(_ROUNDS):
        if _CONTROL.search(place):
            raise Outside("has a line break, tab or other control character")
        # `..;a` is `..` to servers that support path parameters.
        if any(part.partition(";")[0].strip() in {".", ".."} for part in re.split(r"[/\\]", place)):
            raise Outside("has a segment '.' or '..'")
        try:
            decoded = unicodedata.normalize("NFKC", unquote(place, errors="strict"))
        except UnicodeDecodeError:
            raise Outside("is not UTF-8 when it is decoded") from None
        if decoded == place:
            return
        place = decoded
    raise Outside(f"is still encoded after {_ROUNDS} rounds of decoding")


def _path(url: httpx.URL) -> str:
    return url.raw_path.partition(b"?")[0].decode("ascii")
