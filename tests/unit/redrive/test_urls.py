"""What a request's final URL is: below its base URL, in whatever spelling a path comes, or nothing."""

import posixpath
import unicodedata
from urllib.parse import unquote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from redrive.urls import Outside, base_url, final_url, is_private, names_private, origin, whole_url

BASE = "https://api.example.com/v1/acme"
# Pieces that checks of URLs have been fooled with, and plain ones to go between them.
PIECES = st.sampled_from(
    [
        *(
            "..",
            ".",
            "/",
            "//",
            "\\",
            "%2e",
            "%2E",
            "%252e",
            "%25252e",
            "%2f",
            "%5c",
            "%255c",
            ";",
            "..;",
            "..;a=b",
            "@",
            ":",
        ),
        *("?", "#", "%", "%00", "%0a", "\t", "\n", "\r", " ", "%20", "%c0%ae", "%ff", "\ud800", "\u200b", "\x85"),
        *(
            "\uff0e",
            "\uff0e\uff0e",
            "\u2024",
            "\u2025",
            "\u2026",
            "\uff0f",
            "\uff3c",
            "\uff05",
            "\uff12\uff45",
            "\u3002",
        ),
        *("https://", "http://", "HTTPS://", "https:", "api.example.com", "evil.test", "api.example.com:443", ":8443"),
        *(
            "/v1/acme",
            "/v1",
            "acme",
            "v1",
            "x",
            "orders",
            "7",
            "\u00e4",
            "user:pw@",
            "[::1]",
            "xn--",
            "\u24d0pi.example.com",
        ),
    ]
)
PATHS = st.lists(PIECES | st.text(max_size=3), max_size=12).map("".join)


def read_by_a_server(target: str) -> set[str]:
    """Return the paths that servers and proxies make of a request's target: decoded again and again, in any reading."""
    path, readings = target.partition("?")[0], set[str]()
    for _ in range(8):
        for reading in (path, path.replace("\\", "/"), unicodedata.normalize("NFKC", path)):
            plain = "/".join(part.partition(";")[0].strip() for part in reading.split("/"))
            readings |= {posixpath.normpath(reading), posixpath.normpath(plain)}
        path = unquote(path, errors="replace")
    return {reading.replace("//", "/") for reading in readings}


@given(path=PATHS)
@example(path="/../admin")
@example(path="a/..;/..;/..;/admin")
@example(path="https://api.example.com/admin")
@example(path="https://me@api.example.com/v1/acme/x")
@settings(max_examples=600, deadline=None)
def test_every_path_stays_below_its_base_or_is_refused(path: str) -> None:
    """Whatever a path is made of, origin and user are the base's, and no reading of it climbs out of the base path."""
    base = base_url(BASE)
    try:
        url = final_url(base, path)
    except Outside:
        return
    assert origin(url) == ("https", "api.example.com", 443)
    assert url.userinfo == b""
    assert all(f"{reading}/".startswith("/v1/acme/") for reading in read_by_a_server(url.raw_path.decode())), path


@given(path=st.text())
@settings(max_examples=200, deadline=None)
def test_any_text_is_a_url_or_a_refusal(path: str) -> None:
    """No text makes the function raise anything but its own refusal."""
    for make in (whole_url, base_url, lambda text: final_url(base_url(BASE), text)):
        try:
            make(path)
        except Outside:
            continue


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/orders/7", "/v1/acme/orders/7"),
        ("orders/7", "/v1/acme/orders/7"),
        ("", "/v1/acme/"),
        ("/orders?next=https://evil.test/../x", "/v1/acme/orders?next=https://evil.test/../x"),
        ("/orders/a%2Fb", "/v1/acme/orders/a%2Fb"),
        ("/orders/50%25", "/v1/acme/orders/50%25"),
        ("/orders/a b", "/v1/acme/orders/a%20b"),
        ("/files/Stra\u00dfe.pdf", "/v1/acme/files/Stra%C3%9Fe.pdf"),
        ("/files/report..final.pdf", "/v1/acme/files/report..final.pdf"),
        ("/files/.hidden", "/v1/acme/files/.hidden"),
        ("/@me", "/v1/acme/@me"),
        ("https://api.example.com/v1/acme/orders", "/v1/acme/orders"),
        ("https://API.example.com:443/v1/acme", "/v1/acme"),
    ],
)
def test_ordinary_paths_are_joined(path: str, target: str) -> None:
    """What services really have in their paths goes through, as it is."""
    assert final_url(base_url(BASE), path).raw_path.decode() == target


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("https://api.example.com/admin", "leads out of the base URL"),
        ("https://api.example.com/v1/acme2", "leads out of the base URL"),
        ("http://api.example.com/v1/acme/x", "is another origin"),
        ("https://api.example.com:8443/v1/acme/x", "is another origin"),
        ("https://api.example.com./v1/acme/x", "is another origin"),
        ("https://api.example.com@evil.test/v1/acme/x", "names a user"),
        ("https://a:b@api.example.com/v1/acme/x", "names a user"),
        ("//evil.test/x", "begins with //"),
        ("/../admin", "segment"),
        ("/%2e%2e/admin", "segment"),
        ("/%252e%252e/admin", "segment"),
        ("/x/..;/..;/admin", "segment"),
        ("/\uff0e\uff0e/admin", "segment"),
        ("/\u2025/admin", "segment"),
        ("/%2e%2e%2fadmin", "segment"),
        ("/..%5cadmin", "segment"),
        ("/.", "segment"),
        ("\\\\evil.test\\x", "backslash"),
        ("/x\ty", "control character"),
        ("/x%0d%0ay", "control character"),
        ("/%c0%ae%c0%ae/admin", "not UTF-8"),
        ("/%" + "25" * 9 + "2e", "still encoded"),
        ("/\ud800", "makes no valid URL"),
    ],
)
def test_refusal_says_why(path: str, why: str) -> None:
    """Each way out of the base URL is refused by a sentence of its own."""
    with pytest.raises(Outside, match=why):
        final_url(base_url(BASE), path)


@pytest.mark.parametrize("text", ["https://h/v1?key=1", "https://h/v1#x", "ftp://h", "h", "https://", "http://h\n"])
def test_base_url_that_cannot_be_one_is_refused(text: str) -> None:
    """A path behind a query would become a part of the query."""
    with pytest.raises(Outside):
        base_url(text)


@pytest.mark.parametrize(
    ("host", "private"),
    [
        ("127.0.0.1", True),
        ("10.1.2.3", True),
        ("100.64.0.1", True),
        ("169.254.169.254", True),
        ("0.0.0.0", True),
        ("224.0.0.1", True),
        ("::1", True),
        ("fe80::1", True),
        ("fd00::1", True),
        ("::ffff:10.0.0.1", True),
        ("64:ff9b::a9fe:a9fe", True),
        ("2002:7f00:1::", True),
        ("localhost", True),
        ("billing", True),
        ("billing.default.svc", True),
        ("billing.internal.", True),
        ("8.8.8.8", False),
        ("2606:4700::1111", False),
        ("::ffff:8.8.8.8", False),
        ("api.example.com", False),
    ],
)
def test_private_hosts_are_known_by_their_names(host: str, private: bool) -> None:
    """An address counts as what it leads to, also inside of another; a name without a public zone is private."""
    assert names_private(host) is private


def test_a_name_is_no_address() -> None:
    """Only what was resolved is asked for its kind."""
    with pytest.raises(ValueError, match="does not appear"):
        is_private("api.example.com")
