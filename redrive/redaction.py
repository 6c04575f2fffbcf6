"""Taking secrets out of text and JSON before they are stored, logged or raised. Pure.

A secret is known by the name it stands under (`password`, `api_key`, ...), by its shape (a bearer token, a JWT, a card
number, a private key, a password in a URL), or because it is one of our own. Where two readings of a text differ, the
safe one wins: a word too many is redacted. Redacting twice is the same as redacting once.

Every pattern runs in linear time: none can fail after an unbounded scan that another start would repeat, because an
unbounded part is either consumed for good (possessive, optional end) or cannot hold another start.
"""

import functools
import re
from collections.abc import Iterable
from typing import Any, Final

from redrive.contracts import DEPTH_LIMIT

MARK: Final = "[redacted]"

# Sensitive wherever they stand in a name: db_password, passwordHash, X-Api-Key.
ANYWHERE: Final = (
    "password", "passwd", "passphrase", "secret", "api key", "authorization", "cookie", "private key", "access key",
    "credential", "card number", "credit card", "connection string", "encryption key", "signing key",
)  # fmt: skip
# Sensitive at the end of a name: access_token, but not token_count or max_tokens.
AT_END: Final = ("token", "jwt")
# Sensitive as a word of their own: card.cvv, but not "session".
AS_WORD: Final = ("auth", "cvv", "cvv2", "cvc", "ssn", "pwd", "otp", "dsn")
# The value of these goes to the end of its line: `Cookie: a=1; b=2`.
WHOLE_LINE: Final = ("authorization", "cookie")

_PEM = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:[^-]|-(?!----))*+(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?"
)
_URL_PASSWORD = re.compile(r"(://[^\s/:@?#\"'<>]*+:)[^\s/?#\"'<>]*@")
_BEARER = re.compile(
    r"(?i)\b(bearer[ \t]{1,8})(?!(?:tokens?|auth\w{0,12}|scheme|credentials?)\b)[a-z0-9._~+/=-]{4,}+"
    r"|\b(basic[ \t]{1,8})(?!(?:tokens?|auth\w{0,12}|scheme|credentials?)\b)[a-z0-9._~+/=-]{8,}+"
)
_JWT = re.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]++\.[A-Za-z0-9_-]++(?:\.[A-Za-z0-9_-]*+)*+")
_KNOWN_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{8,}+|gh[pousr]_[A-Za-z0-9]{20,}+"
    r"|github_pat_\w{20,}+|xox[a-z]-[A-Za-z0-9-]{10,}+|AKIA[A-Z0-9]{16}(?![A-Za-z0-9])|sk-[A-Za-z0-9_-]{20,}+)"
)
_DIGIT_GROUPS = re.compile(r"(?<![0-9A-Za-z])(?<![0-9]\.)[0-9]++(?:[ -][0-9]++)*+")
_WORD_BREAK = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_OPENING_QUOTE = re.compile(r"\\*[\"']")

# One pass can uncover what the next one finds, such as a URL inside a value.
_MOST_PASSES = 8
# A shorter one would stand in too many words.
_SHORTEST_OWN = 6


class Redactor:
    """Replace secrets by `[redacted]`.

    `extra_keys` are further names whose values are secret, matched whole; `own` are secrets themselves.
    """

    def __init__(self, extra_keys: Iterable[str] = (), own: Iterable[str] = ()) -> None:
        extra = tuple(extra_keys)
        known = {secret for secret in own if len(secret) >= _SHORTEST_OWN and secret not in MARK}
        # The longest first: one may be the beginning of another.
        self._own = sorted(known, key=len, reverse=True)
        self._extra = frozenset(_plain(key) for key in extra)
        self._pairs = (_line_pattern(), _pair_pattern(extra))
        # Names recur in every document and log line; what stands under them does not, and is not remembered.
        self._name = functools.lru_cache(maxsize=4096)(self._judge_name)

    def text(self, text: str) -> str:
        """Return the text without the secrets in it."""
        for _ in range(_MOST_PASSES):
            redacted = self._once(text)
            if redacted == text:
                break
            text = redacted
        return text

    def value(self, value: Any) -> Any:
        """Return the JSON value without the secrets in it. What is not JSON becomes its redacted text."""
        return self._value(value, 0)

    def is_sensitive(self, key: str) -> bool:
        """Tell whether what stands under this name is secret."""
        plain = _plain(key)
        return (
            plain in self._extra
            or any(name in plain for name in _PLAIN_ANYWHERE)
            or plain.endswith(AT_END)
            or any(word.lower() in AS_WORD for word in _WORD_BREAK.split(key))
        )

    def _value(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, bool | float):
            return value
        if depth > DEPTH_LIMIT:
            return MARK
        if isinstance(value, dict):
            return dict(self._member(str(key), item, depth) for key, item in value.items())
        if isinstance(value, list | tuple | set | frozenset):
            return [self._value(item, depth + 1) for item in value]
        if isinstance(value, int):
            return MARK if _is_card(value) else value
        return self.text(str(value))

    def _member(self, key: str, item: Any, depth: int) -> tuple[str, Any]:
        shown, sensitive = self._name(key)
        if sensitive and not (item is None or isinstance(item, bool)):
            return shown, MARK
        return shown, self._value(item, depth + 1)

    def _judge_name(self, key: str) -> tuple[str, bool]:
        """Return a name as it may be shown, and whether what stands under it is secret."""
        return self.text(key), self.is_sensitive(key)

    def _once(self, text: str) -> str:
        for secret in self._own:
            text = text.replace(secret, MARK)
        text = _PEM.sub(MARK, text)
        text = _URL_PASSWORD.sub(rf"\g<1>{MARK}@", text)
        text = _BEARER.sub(lambda match: (match[1] or match[2]) + MARK, text)
        text = _JWT.sub(MARK, text)
        text = _KNOWN_TOKEN.sub(MARK, text)
        for pairs in self._pairs:
            text = pairs.sub(lambda match: match["name"] + _hidden(match["value"]), text)
        return _DIGIT_GROUPS.sub(_without_cards, text)


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


_PLAIN_ANYWHERE = tuple(_plain(name) for name in ANYWHERE)

_NAME_TAIL = r"[A-Za-z0-9_.-]{0,32}+"
_ASSIGNMENT = r"(?:\\{0,4}[\"'])?[ \t]{0,8}(?:=>|[:=]|%3[dD])[ \t]{0,8}"
# Inside escaped JSON a value ends at the next quote; elsewhere a backslash protects the quote after it.
_QUOTED_VALUE = r"\\{1,4}\"[^\"\n]*+\"?|\\{1,4}'[^'\n]*+'?|\"(?:[^\"\\\n]|\\.)*+\"?|'(?:[^'\\\n]|\\.)*+'?"


def _pair_pattern(extra: tuple[str, ...]) -> re.Pattern[str]:
    """Match a sensitive name and its value: `a=b`, `a: b`, `"a": "b"`, `{\"a\":\"b\"}`."""
    whole = "|".join(_spelled(name) for name in (*AS_WORD, *extra))
    names = [
        *(_spelled(name) + _NAME_TAIL for name in ANYWHERE),
        *(_spelled(name) for name in AT_END),
        rf"(?<![A-Za-z0-9])(?:{whole})(?![A-Za-z0-9])",
    ]
    return re.compile(rf"(?i)(?P<name>(?:{'|'.join(names)}){_ASSIGNMENT})(?P<value>{_QUOTED_VALUE}|[^\s\"'&<>]++)")


def _line_pattern() -> re.Pattern[str]:
    names = "|".join(_spelled(name) for name in WHOLE_LINE)
    return re.compile(rf"(?i)(?P<name>(?:{names}){_NAME_TAIL}{_ASSIGNMENT})(?P<value>{_QUOTED_VALUE}|[^\n]++)")


def _spelled(name: str) -> str:
    return r"[ _.-]?".join(re.escape(word) for word in re.split(r"[^A-Za-z0-9]+", name) if word)


def _hidden(value: str) -> str:
    opening = _OPENING_QUOTE.match(value)
    if opening is None:
        secret = value.rstrip(",;)} \t\r")
        return (MARK if secret else "") + value[len(secret) :]
    quote = opening[0]
    is_closed = len(value) > len(quote) and value.endswith(quote[-1])
    return quote + MARK + (quote if is_closed else "")


def _without_cards(match: re.Match[str]) -> str:
    """Replace each card number in a run of digit groups such as `12 4111 1111 1111 1111 09`."""
    run = match[0]
    groups = [group.span() for group in re.finditer("[0-9]+", run)]
    if match.string[match.end() : match.end() + 1].isalnum():
        groups.pop()
    kept, position, first = [], 0, 0
    while first < len(groups):
        last = _last_group_of_card(run, groups, first)
        if last is None:
            first += 1
            continue
        kept.append(run[position : groups[first][0]])
        position, first = groups[last][1], last + 1
    return MARK.join([*kept, run[position:]])


def _last_group_of_card(run: str, groups: list[tuple[int, int]], first: int) -> int | None:
    digits, found = "", None
    for index in range(first, len(groups)):
        start, end = groups[index]
        digits += run[start:end]
        is_too_short = end - start < 3
        if len(digits) > 19 or is_too_short:
            break
        if _is_card_number(digits):
            found = index
    return found


def _is_card(number: int) -> bool:
    return 10**12 <= number < 10**19 and _is_card_number(str(number))


def _is_card_number(digits: str) -> bool:
    # Cards begin with 2 to 6. Milliseconds and microseconds since 1970 begin with 1: a tenth of them would pass Luhn.
    return 13 <= len(digits) <= 19 and digits[0] in "23456" and _passes_luhn(digits)


def _passes_luhn(digits: str) -> bool:
    odd = sum(int(digit) for digit in digits[-1::-2])
    even = sum(sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (odd + even) % 10 == 0
