"""Finds the secrets of a text. Pure, and linear in the length of the text, whatever it holds.

Two stages. RE2, an automaton that reads each character once, finds what a secret can begin with: a name (`password`),
the beginning of a known format (`ghp_`), digits enough for a card. At such a place a rule examines what follows: it
hides it, and the search continues after it, or it gives up after a bounded number of characters. The number of places
is also bounded: in a text with more of them, the rest is hidden unread.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

import re2

from redrive.redaction.card_numbers import cards_in
from redrive.redaction.formats import FORMATS, WITHIN
from redrive.redaction.names import (
    ANYWHERE,
    AS_WORD,
    AT_END,
    LAST_WORD,
    NAMED,
    NAMING,
    PLURAL,
    WHOLE_LINE,
    Names,
    Sensitivity,
    plain,
    spelled,
)

MARK: Final = "[redacted]"
_MARK: Final = MARK.encode()
# The maximum number of places examined. A page of a log has a handful; a text with thousands was made to cost time.
MOST_PLACES: Final = 1_500


class Span(NamedTuple):
    """What is hidden: from `start` to before `end`."""

    start: int
    end: int


class Effort:
    """The remaining budget for a text, or for all texts of a document."""

    def __init__(self, places: int = MOST_PLACES) -> None:
        self.places = places

    def spend(self, places: int = 1) -> bool:
        """Take some, and return whether there was enough."""
        self.places -= places
        return self.places >= 0


class Page:
    """A text as the rules read it: one ASCII byte for each character, in original and in lower case."""

    def __init__(self, text: str) -> None:
        # The line break lets a name at the very end be seen as a whole word.
        self.plain = text.encode("ascii", "replace") + b"\n"
        self.low = self.plain.lower()
        self.text = text
        self._ahead: dict[bytes, int] = {}

    def find(self, literal: bytes, position: int) -> int:
        """Return the next position of a literal, or the end. For increasing positions it reads each byte once."""
        found = self._ahead.get(literal, -1)
        if found < position:
            found = self.low.find(literal, position)
            self._ahead[literal] = found = len(self.text) if found < 0 else found
        return found


Rule: TypeAlias = Callable[[Page, int, int], Span | None]

_QUOTE: Final = rb"(?:\\{0,64}+[\"'`]|%22|&quot;|&#3[49];|&#x2[27];|\?)"
_TAIL: Final = rb"[a-z0-9_.-]{0,32}+"
_SPACE: Final = rb"(?:[ \t]{0,8}(?:\r?\n|\\{1,64}+n)[ \t]{0,40}(?=\\{0,64}+[\"'])|[ \t]{0,8})"
_ASSIGNED: Final = rb"(?:" + _QUOTE + rb")?\]?[ \t]{0,8}(?:=>|:=|==|[:=]|%3[ad])" + _SPACE
_TAIL_ASSIGNED: Final = re.compile(_TAIL + _ASSIGNED)
_BARE_ASSIGNED: Final = re.compile(_ASSIGNED)
# A backslash escapes the quote after it, but inside escaped JSON a value ends at the next quote.
_QUOTED: Final = re.compile(
    rb"((?:\\{0,64}+\"){3})[^\0]{0,4096}?(?:\\{0,64}+\"){3}|[bruf]{0,2}(?:(\\{1,64}+\")[^\"\n]*+\"?|(\\{1,64}+')[^'\n]*+'?"
    rb"|(\")(?:[^\"\\\n]|\\.)*+\"?|(')(?:[^'\\\n]|\\.)*+'?|(`)[^`\n]*+`?)"
    rb"|((?:%22|&quot;|&#3[49];|&#x2[27];)).*?(?:%22|&quot;|&#3[49];|&#x2[27];|$)",
    re.MULTILINE,
)
_CLOSING: Final = re.compile(rb"(?:(?:\\{0,64}+\"){3}|\\{0,64}+[\"'`]|%22|&quot;|&#3[49];|&#x2[27];)$")
_BLOCK: Final = re.compile(rb"[|>][+-]?[ \t]*(?:\r?\n((?:[ \t]++[^\n]*+\n?)++)|\\{1,64}+n([^\"\n]++))")
_BARE: Final = re.compile(rb"<[^<>\n]{0,256}+>|[^\s\"'&<>]++")
_LINE: Final = re.compile(rb"[^\n]++")
_BRACKETS: Final = re.compile(rb"[\[({]|[\])}]|\"(?:[^\"\\\n]|\\.){0,512}+\"|'(?:[^'\\\n]|\\.){0,512}+'|\0")
_MOST_BRACKETS: Final = 2_000
_NUMBER: Final = re.compile(rb"[+-]?[0-9][0-9_,.]*+(?![a-z0-9_-])")

# After a name that is itself a value: `"name": "DB_PASSWORD", "value": ...`, `key="x" value="..."`.
_NAMED_AFTER: Final = re.compile(
    _TAIL + _QUOTE + rb"[\s,;](?:[^{}<>\0]{0,160}?[\"'\\\s,])?(?:" + "|".join(NAMED).encode() + rb")" + _ASSIGNED
)
_ELEMENT: Final = re.compile(_TAIL + rb"(?:</[a-z]{1,16}>(?:\s|\\{1,64}+[nrt]){0,16}<[a-z]{1,16})?>")
_ELEMENT_TEXT: Final = re.compile(rb"[^<\0]++")
# The other way round: `"value": "...", "name": "DB_PASSWORD"`.
_NAMED_BEFORE: Final = re.compile(
    rb"(?:" + "|".join(NAMED).encode() + rb")" + _ASSIGNED + rb"(?P<value>\\{0,64}+\"[^\"\n]{0,2048}+\""
    rb"|\\{0,64}+'[^'\n]{0,2048}+'|[^\s\"'&<>,;]{1,256}+)"
    rb"[\s,;](?:[^{}<>\0]{0,160}?[\"'\\\s,])?(?:" + "|".join(NAMING).encode() + rb")" + _ASSIGNED
    + rb"\\{0,64}+[\"']?(?P<name>[a-z0-9_. -]{1,64})"
)  # fmt: skip
# In a list of two: `["Authorization", "..."]`.
_FIRST_OF_PAIR: Final = re.compile(rb"[\[(]\s{0,8}\\{0,64}+[\"'][a-z0-9_.-]{0,40}$")
_SECOND_OF_PAIR: Final = re.compile(_TAIL + rb"\\{0,64}+[\"'],\s{0,8}(?=\\{0,64}+[\"'])")
_OPTION: Final = re.compile(rb"(?:^|[\s\"'`(\[,=])--?[a-z0-9_.-]{0,40}$")
_ARGUMENT: Final = re.compile(rb"\\{0,64}+[\"'`]?,?[ \t]{1,8}(?:\\{0,64}+[\"'`])?(?P<value>[^\s\"'`\\,-][^\s\"'`\\]*+)")
_OPTION_ARGUMENT: Final = re.compile(_TAIL + _ARGUMENT.pattern)
_SQL_LITERAL: Final = re.compile(rb"[ \t]{1,8}(')((?:[^'\\\n]|\\.)*+)'?")
_PAIR: Final = re.compile(
    rb"(?:\\{0,64}+[\"'`])?[,=]?[ \t]{0,8}(?:\\{0,64}+[\"'`])?[^\s:\"'`/]{1,128}:(?P<value>(?!//)[^\s\"'`\\]++)"
)
_IDS: Final = re.compile(rb"[^0-9]\d+:\d+$")
_SCHEME: Final = re.compile(
    rb"bearer[ \t]{1,8}(?!(?:tokens?|auth\w{0,12}|scheme|credentials?)\b)(?P<value>[a-z0-9._~+/=:-]{4,}+)"
    rb"|(?:basic|negotiate|ntlm|apikey|api-key)[ \t]{1,8}(?!(?:tokens?|auth\w{0,12}|scheme|credentials?)\b)"
    rb"(?P<code>[a-z0-9._~+/=-]{8,}+)"
)
_LIKE_CODE: Final = re.compile(rb".[^\n]*?[A-Z0-9=]")
_URL_PASSWORD: Final = re.compile(rb"://[^\s/:@?#\"'<>]*+:(?P<value>[^\s/?#\"'<>]*)@")
_PEM: Final = re.compile(rb"-----begin [a-z0-9 ]{0,40}private key(?: block)?-----")
_PEM_END: Final = re.compile(rb"-----end [a-z0-9 ]{0,40}private key(?: block)?-----")
_LONGEST_PEM: Final = 8_192
_PUTTY: Final = re.compile(rb"private-lines:[ \t]*[0-9]+[ \t]*(?:(?:\r?\n|\\{1,64}+n)[a-z0-9+/=]++(?=\s|\\|\"|$))++")
_NETRC: Final = re.compile(rb"login[ \t]{1,8}[^\s]{1,128}[ \t]{1,8}password[ \t]{1,8}(?P<value>[^\s]++)")
_IDENTIFIED: Final = re.compile(
    rb"identified (?:with [a-z0-9_]{1,40} )?by[ \t]{1,8}(?:password[ \t]{1,8})?(?P<value>(?:'[^'\n]*+'?|[^\s;']++))"
)
_MYSQL: Final = re.compile(
    rb"(?:mysql|mysqldump|mysqladmin|mariadb|sshpass)\b[^\n|;]{0,200}? -p(?P<value>[^\s\"'-][^\s]*+)"
)
# Pydantic shows what was sent without the name that marks it as secret.
_SENT: Final = re.compile(rb"input_value=(?P<value>[^\n]*?)(?=, input_type=|\n|$)")
_TWILIO: Final = re.compile(rb"(?<![A-Za-z0-9])SK[0-9a-f]{32}(?![A-Za-z0-9])")

_CARD_BEGINS: Final = r"[2-6](?:[ .-]?[0-9]){12}"
_URL_BEGINS: Final = r"://[^\s/:@?#\"'<>]{0,128}:"
_TWILIO_BEGINS: Final = r"sk[0-9a-f]{8}"
_SEPARATORS: Final = b" _.-"


def hidden(page: Page, start: int, *, line: bool = False) -> Span | None:
    """Return the value at this position: quoted, in brackets, a block of lines, or up to the next space."""
    low = page.low
    quoted = _QUOTED.match(low, start)
    if quoted:
        return _inside(page, quoted)
    first = low[start : start + 1]
    if first in (b"[", b"{", b"(") and not low.startswith(_MARK, start):
        return Span(start, _closing_bracket(page, start))
    block = _BLOCK.match(low, start) if first in (b"|", b">") else None
    if block:
        lines = block.lastindex or 0
        return Span(block.start(lines), block.start(lines) + len(block[lines].rstrip(b" \t\r\n\\")))
    found = (_LINE if line else _BARE).match(low, start)
    if found is None:
        return None
    kept = len(found[0].rstrip(b",;)} \t\r" if first != b"<" else b""))
    return Span(start, start + kept) if kept else None


def _inside(page: Page, quoted: re.Match[bytes]) -> Span:
    opening = next(index for index in range(1, len(quoted.groups()) + 1) if quoted[index] is not None)
    start, end = quoted.end(opening), quoted.end()
    closing = _CLOSING.search(page.low, max(start, end - 256), end)
    # A text that is cut has no closing quote: then the last one is the opening one.
    return Span(start, max(start, closing.start()) if closing else end)


def _closing_bracket(page: Page, start: int) -> int:
    depth = 0
    for count, token in enumerate(_BRACKETS.finditer(page.low, start)):
        if token[0] in (b"[", b"(", b"{"):
            depth += 1
        elif token[0] in (b"]", b")", b"}"):
            depth -= 1
        if depth == 0:
            return token.end()
        if token[0] == b"\0" or count > _MOST_BRACKETS:
            break
    return len(page.text)


class Scanner:
    """Find secrets by name, by shape, and those that are our own."""

    def __init__(self, names: Names, own: Iterable[str] = ()) -> None:
        self._names = names
        self._rules: dict[bytes, list[Rule]] = {}
        self._by_name: dict[bytes, Rule] = {}
        for literal, rest in FORMATS.items():
            self._add(literal.lower(), _format_rule(literal, rest))
        for secret in own:
            self._add(secret.lower(), _own_rule(secret))
        for literal, rule in self._special().items():
            self._add(literal, rule)
        everywhere = [*self._rules_in_order(), *self._name_rules()]
        self._begins = re2.compile(
            ("|".join([_CARD_BEGINS, *everywhere, self._word_rules(), _URL_BEGINS, _TWILIO_BEGINS])).encode()
        )

    def next_place(self, text: bytes, position: int) -> int:
        """Return the next position that must be examined, in a lower-case text; -1 for none."""
        found = self._begins.search(text, position)
        return found.start() if found else -1

    def spans(self, text: str, effort: Effort) -> list[Span]:
        """Return the spans to hide, in order."""
        page, position, spans = Page(text), 0, list[Span]()
        while found := self._begins.search(page.low, position):
            start, end = found.span()
            if not effort.spend():
                spans.append(Span(start, len(text)))
                break
            if page.low[start : start + 1].isdigit() and self._rules.get(page.low[start:end]) is None:
                position = self._cards(page, start, spans, effort)
                continue
            span = self._judge(page, start, end)
            if span is None or span.end <= start:
                position = start + 1
            else:
                spans.append(Span(span.start, min(span.end, len(text))))
                position = max(span.end, start + 1)
        return spans

    def _cards(self, page: Page, start: int, spans: list[Span], effort: Effort) -> int:
        groups = cards_in(page.low, start)
        effort.spend(groups.number // 2)
        spans += [Span(*card) for card in groups.cards]
        if effort.places < 0:
            spans.append(Span(groups.end, len(page.text)))
            return len(page.low)
        return groups.end

    def _judge(self, page: Page, start: int, end: int) -> Span | None:
        found = page.low[start:end]
        for rule in self._rules.get(found, ()):
            span = rule(page, start, end)
            if span:
                return span
        whole = self._by_name.get(found.translate(None, _SEPARATORS))
        if whole:
            return whole(page, start, start + len(found.rstrip()))
        if found.startswith(b"://"):
            return _value_of(_URL_PASSWORD.match(page.low, start))
        if found.startswith(b"sk"):
            return _value_of(_TWILIO.match(page.plain, start), 0)
        # A word was found with the character that ends it.
        last = self._by_name.get(b"\0" + found[:-1].translate(None, _SEPARATORS))
        return last(page, start, end - 1) if last else None

    def _add(self, literal: str, rule: Rule) -> None:
        self._rules.setdefault(literal.encode("ascii", "replace"), []).append(rule)

    def _rules_in_order(self) -> list[str]:
        """Return patterns of all literals, longest first; a prefix of another literal also has the other's rules."""
        literals = sorted(self._rules, key=len, reverse=True)
        for literal in literals:
            self._rules[literal] = [
                rule for other in literals if literal.startswith(other) for rule in self._rules[other][:1]
            ] + self._rules[literal][1:]
        return [re.escape(literal.decode()) for literal in literals]

    def _name_rules(self) -> list[str]:
        for name in ANYWHERE:
            rule = _NameRule(self._names, tail=True, line=name in WHOLE_LINE, literal=name.startswith("pass"))
            self._by_name[plain(name).encode()] = rule
        for name in AT_END:
            self._by_name[plain(name).encode()] = _NameRule(self._names)
        for name in AS_WORD:
            self._by_name[plain(name).encode()] = _NameRule(self._names, tail=True, whole=True)
        for name in PLURAL:
            self._by_name[plain(name).encode()] = _NameRule(self._names, numbers=True)
        return [spelled(name) for name in sorted((*PLURAL, *ANYWHERE, *AT_END, *AS_WORD), key=len, reverse=True)]

    def _word_rules(self) -> str:
        words = sorted({*LAST_WORD, *self._names.extra}, key=len, reverse=True)
        for name in words:
            key = plain(name).encode("ascii", "replace")
            self._by_name[b"\0" + key] = _NameRule(self._names, whole=True)
        return rf"(?:{'|'.join(spelled(name) for name in words if spelled(name))})[^a-z0-9]"

    def _special(self) -> dict[str, Rule]:
        special: dict[str, Rule] = {
            "-----begin": _pem,
            "-----end": _pem_end,
            "private-lines:": lambda page, start, _end: _value_of(_PUTTY.match(page.low, start), 0),
            "input_value=": lambda page, start, _end: _value_of(_SENT.match(page.low, start)),
            "login ": lambda page, start, _end: _value_of(_NETRC.match(page.low, start)),
            "identified ": lambda page, start, _end: _value_of(_IDENTIFIED.match(page.low, start)),
            "-p ": _password_option,
            '-p"': _password_option,
            "-p'": _password_option,
            "-p\\": _password_option,
        }
        special |= dict.fromkeys(
            ("bearer ", "bearer\t", "basic ", "negotiate ", "ntlm ", "apikey ", "api-key "), _scheme
        )
        special |= dict.fromkeys(("mysql", "mariadb", "sshpass"), _mysql)
        special |= {
            f"{option}{after}": _user_option for option in ("-u", "--user", "--proxy-user") for after in " \"'=\\"
        }
        special |= {f"{name}{after}": self._named_before for name in NAMED for after in "\"'\\"}
        return special

    def _named_before(self, page: Page, start: int, _end: int) -> Span | None:
        found = _NAMED_BEFORE.match(page.low, start)
        if found is None or self._names.judge(_text_of(page, found, "name")) is not Sensitivity.ALL:
            return None
        return hidden(page, found.start("value"))


class _NameRule:
    """Hide what follows a name: `a=b`, `a: b`, `"a": "b"`, `--a b`, `<a>b</a>`, `"name": "a", "value": "b"`."""

    def __init__(
        self,
        names: Names,
        *,
        tail: bool = False,
        whole: bool = False,
        line: bool = False,
        numbers: bool = False,
        literal: bool = False,
    ) -> None:
        self._names = names
        self._tail, self._whole, self._line, self._numbers, self._literal = tail, whole, line, numbers, literal

    def __call__(self, page: Page, start: int, end: int) -> Span | None:
        if self._whole and not (_begins_word(page, start) and _ends_word(page, end)):
            return None
        assigned = (_TAIL_ASSIGNED if self._tail else _BARE_ASSIGNED).match(page.low, end)
        if assigned:
            return self._value(page, assigned.end())
        named = _NAMED_AFTER.match(page.low, end)
        if named:
            return self._value(page, named.end())
        return (
            self._argument(page, start, end)
            or self._second(page, start, end)
            or self._element(page, end)
            or self._quoted(page, end)
        )

    def _value(self, page: Page, start: int) -> Span | None:
        if self._numbers and _NUMBER.match(page.low, start):
            return None
        return hidden(page, start, line=self._line)

    def _argument(self, page: Page, start: int, end: int) -> Span | None:
        argument = _OPTION_ARGUMENT.match(page.low, end)
        if argument is None or not _OPTION.search(page.low, max(0, start - 44), start):
            return None
        return None if self._numbers and _NUMBER.match(argument["value"]) else _value_of(argument)

    def _second(self, page: Page, start: int, end: int) -> Span | None:
        second = _SECOND_OF_PAIR.match(page.low, end)
        is_pair = second and _FIRST_OF_PAIR.search(page.low, max(0, start - 60), start)
        return hidden(page, second.end()) if second and is_pair else None

    def _element(self, page: Page, end: int) -> Span | None:
        element = _ELEMENT.match(page.low, end)
        text = _ELEMENT_TEXT.match(page.low, element.end()) if element else None
        return Span(*text.span()) if text and text[0].strip() else None

    def _quoted(self, page: Page, end: int) -> Span | None:
        literal = _SQL_LITERAL.match(page.low, end) if self._literal else None
        return Span(*literal.span(2)) if literal else None


def _begins_word(page: Page, start: int) -> bool:
    before, first = page.plain[start - 1 : start], page.plain[start : start + 1]
    return not before.isalnum() or (first.isupper() and not before.isupper())


def _ends_word(page: Page, end: int) -> bool:
    last, after = page.plain[end - 1 : end], page.plain[end : end + 1]
    return not after.isalnum() or (after.isupper() and not last.isupper())


def _text_of(page: Page, found: re.Match[bytes], group: str) -> str:
    start, end = found.span(group)
    return page.text[start:end]


def _value_of(found: re.Match[bytes] | None, group: str | int = "value") -> Span | None:
    return Span(*found.span(group)) if found and found[group] else None


def _format_rule(literal: str, rest: str) -> Rule:
    before = r"(?<![A-Za-z0-9_-])" if literal == "eyJ" else "" if literal in WITHIN else r"(?<![A-Za-z0-9])"
    pattern = re.compile(f"{before}{re.escape(literal)}(?P<value>{rest})".encode())
    group = "value" if literal in WITHIN else 0
    return lambda page, start, _end: _value_of(pattern.match(page.plain, start), group)


def _own_rule(secret: str) -> Rule:
    def rule(page: Page, start: int, _end: int) -> Span | None:
        return Span(start, start + len(secret)) if page.text.startswith(secret, start) else None

    return rule


def _pem(page: Page, start: int, _end: int) -> Span | None:
    begin = _PEM.match(page.low, start)
    if begin is None:
        return None
    end = page.find(b"-----end", begin.end())
    closing = _PEM_END.match(page.low, end)
    return Span(start, closing.end() if closing else end)


def _pem_end(page: Page, start: int, _end: int) -> Span | None:
    """Hide what precedes the end of a key whose beginning was cut off."""
    closing = _PEM_END.match(page.low, start)
    return Span(max(0, start - _LONGEST_PEM), closing.end()) if closing else None


def _scheme(page: Page, start: int, _end: int) -> Span | None:
    if not _begins_word(page, start):
        return None
    found = _SCHEME.match(page.low, start)
    if found is None or found["value"]:
        return _value_of(found)
    # "basic knowledge" is no secret: encoded credentials have capitals or digits.
    is_code = _LIKE_CODE.match(page.plain, found.start("code"), found.end("code"))
    return _value_of(found, "code") if is_code else None


def _mysql(page: Page, start: int, _end: int) -> Span | None:
    return _value_of(_MYSQL.match(page.low, start))


def _password_option(page: Page, start: int, _end: int) -> Span | None:
    if page.plain[start - 1 : start] not in (b"", b" ", b"\t", b"\n", b'"', b"'", b"`") or page.plain[start + 1] != ord(
        "p"
    ):
        return None
    found = _ARGUMENT.match(page.low, start + 2)
    if found is None or found["value"][:1] in b"/.~$" or b"/" in found["value"] or _is_port(found["value"]):
        return None
    return _value_of(found)


def _user_option(page: Page, start: int, end: int) -> Span | None:
    if page.plain[start - 1 : start] not in (b"", b" ", b"\t", b"\n", b'"', b"'", b"`"):
        return None
    found = _PAIR.match(page.low, end - 1)
    pair = page.low[end - 1 : found.end()] if found else b""
    return None if _IDS.search(pair) else _value_of(found)


def _is_port(value: bytes) -> bool:
    return value.replace(b":", b"").isdigit()


def argument_of(option: str, argument: str, *, is_secret: bool) -> str:
    """Return the argument of a command line option, without its secret."""
    if is_secret:
        return argument if argument.startswith("-") else MARK
    line = Page(f"{option} {argument}")
    span = _SHORT_OPTIONS[option](line, 0, len(option) + 1) if option in _SHORT_OPTIONS else None
    return argument if span is None else f"{line.text[len(option) + 1 : span.start]}{MARK}{line.text[span.end :]}"


_SHORT_OPTIONS: Final[dict[str, Rule]] = {
    "-p": _password_option,
    "-u": _user_option,
    "--user": _user_option,
    "--proxy-user": _user_option,
}
