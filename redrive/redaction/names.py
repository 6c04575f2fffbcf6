"""Names of secrets: `db_password`, `X-Api-Key`, `--token`. Pure."""

import re
from collections.abc import Iterable
from enum import Enum
from typing import Final

# Sensitive anywhere in a name: db_password, passwordHash, X-Api-Key.
ANYWHERE: Final = (
    "pass word", "passwd", "pass phrase", "pass code", "secret", "api key", "authorization", "cookie", "private key",
    "access key", "account key", "shared key", "master key", "ssh key", "credential", "card number", "credit card",
    "connection string", "encryption key", "signing key", "seed phrase", "mnemonic", "recovery code", "security code",
    "pin code", "jaas config",
)  # fmt: skip
# Sensitive at the end of a name: access_token, but not token_count.
AT_END: Final = ("token", "jwt", "signature", "client assertion")
# Sensitive at the end of a name unless the value is a number: refresh_tokens, but not max_tokens: 512.
PLURAL: Final = ("tokens", "jwts")
_COUNTED: Final = frozenset({"max", "min", "num", "total", "used", "prompt", "completion", "input", "output", "cached"})
# Sensitive as a separate word: card.cvv, but not "session".
AS_WORD: Final = ("auth", "cvv", "cvv2", "cvc", "cvn", "ssn", "pwd", "pw", "otp", "totp", "dsn")
# Sensitive as the last word: db_pass and user.pin, but not pass_count.
LAST_WORD: Final = ("pass", "pin", "sig", "hmac")
# Their value extends to the end of the line: `Cookie: a=1; b=2`.
WHOLE_LINE: Final = ("authorization", "cookie")

# A member with a name, next to one with its value: {"name": "DB_PASSWORD", "value": ...}.
NAMING: Final = ("name", "key", "field", "header", "variable", "parameter", "property", "option", "attribute")
NAMED: Final = ("value", "values", "val", "content", "default", "data")

_WORD_BREAK: Final = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
# Longer texts are not names.
LONGEST_NAME: Final = 128


class Sensitivity(Enum):
    """What a name says about its value."""

    NONE = "nothing"
    TEXT = "secret unless it is a number"
    ALL = "secret"


def plain(name: str) -> str:
    """Return a name without case and separators."""
    return "".join(character for character in name.lower() if character.isalnum())


_ANYWHERE: Final = tuple(plain(name) for name in ANYWHERE)
_AT_END: Final = tuple(plain(name) for name in AT_END)


class Names:
    """Judge names. `extra` are further ones, matched whole."""

    def __init__(self, extra: Iterable[str] = ()) -> None:
        self.extra = tuple(name for name in extra if plain(name))
        self._extra = frozenset(plain(name) for name in self.extra)

    def judge(self, name: str) -> Sensitivity:
        """Tell whether the value under this name is secret."""
        if len(name) > LONGEST_NAME:
            # A name is read to its end: that is where a long one has its significant word.
            name = name[-LONGEST_NAME:]
        short = plain(name)
        words = [word.lower() for word in _WORD_BREAK.split(name) if word]
        if (
            short in self._extra
            or any(known in short for known in _ANYWHERE)
            or short.endswith(_AT_END)
            or any(word in AS_WORD for word in words)
            or (words and words[-1] in LAST_WORD)
        ):
            return Sensitivity.ALL
        is_plural = short.endswith(PLURAL) and _COUNTED.isdisjoint(words)
        return Sensitivity.TEXT if is_plural else Sensitivity.NONE


def spelled(name: str) -> str:
    """Return a pattern for the ways to write a name in lower case: `api key`, `api_key`, `apikey`."""
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    return r"[ _.-]?".join(re.escape(word) for word in words)
