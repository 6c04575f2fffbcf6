"""Texts that a console hands out and must recognise: signed, so that nobody else can make or change one. Pure."""

import hashlib
import hmac
from base64 import urlsafe_b64encode
from typing import Final

_SEPARATOR: Final = "."


class Seal:
    """Signs texts with the key that all consoles share. A signature is valid for one purpose only."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def sign(self, purpose: str, text: str) -> str:
        """Return the signature and the text."""
        return f"{self._mark(purpose, text)}{_SEPARATOR}{text}"

    def read(self, purpose: str, signed: str) -> str | None:
        """Return the text, or None: it was not signed here, or not for this."""
        mark, _, text = signed.partition(_SEPARATOR)
        expected = self._mark(purpose, text)
        return text if hmac.compare_digest(mark.encode("utf-8", "replace"), expected.encode()) else None

    def _mark(self, purpose: str, text: str) -> str:
        # A purpose has no line break, so that no two pairs share a message.
        message = f"{purpose}\n{text}".encode("utf-8", "surrogatepass")
        return urlsafe_b64encode(hmac.digest(self._key, message, hashlib.sha256)).decode().rstrip("=")
