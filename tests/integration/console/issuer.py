"""A small identity provider: real HTTP, real keys, the code flow with PKCE. It lets everybody in whom a test names."""

import base64
import contextlib
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

CLIENT = "redrive-console"


class Issuer:
    """What the provider knows. `person` is whoever sits at the browser; `nonce` is put in place of the right one."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.person = "ada@example.org"
        self.nonce: str | None = None
        self.keys_asked = 0
        self._codes: dict[str, dict[str, str]] = {}
        self.rotate()

    def rotate(self) -> None:
        """Take a new key, and forget the old one."""
        self.key_id = secrets.token_hex(4)
        self._key = ec.generate_private_key(ec.SECP256R1())

    def token(self, **changes: Any) -> str:
        """Sign a token for a person, with claims changed or, with None, left out."""
        now = int(time.time())
        claims = {
            "iss": self.address,
            "aud": CLIENT,
            "sub": "user-1",
            "email": self.person,
            "email_verified": True,
            "iat": now,
            "exp": now + 300,
        } | changes
        held = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(held, self._key, algorithm="ES256", headers={"kid": self.key_id})

    def public_keys(self) -> dict[str, Any]:
        """Return the keys that tokens are checked with."""
        self.keys_asked += 1
        key = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self._key.public_key()))
        return {"keys": [key | {"kid": self.key_id, "use": "sig", "alg": "ES256"}]}

    def authorize(self, asked: dict[str, str]) -> str:
        """Let the person in, and return where their browser goes next."""
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked | {"person": self.person}
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def trade(self, form: dict[str, str]) -> dict[str, str] | None:
        """Trade a code for a token, once, and only for whoever holds the verifier."""
        asked = self._codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if asked is None or challenge != asked["code_challenge"] or form["redirect_uri"] != asked["redirect_uri"]:
            return None
        nonce = self.nonce or asked["nonce"]
        return {"id_token": self.token(email=asked["person"], nonce=nonce), "token_type": "Bearer"}

    def description(self) -> dict[str, str]:
        """Return where the provider has what."""
        return {
            "issuer": self.address,
            "authorization_endpoint": f"{self.address}/authorize",
            "token_endpoint": f"{self.address}/token",
            "jwks_uri": f"{self.address}/keys",
        }


class _Handler(BaseHTTPRequestHandler):
    issuer: Issuer

    def do_GET(self) -> None:
        path, query = urlsplit(self.path).path, urlsplit(self.path).query
        if path == "/authorize":
            self.send_response(302)
            self.send_header("Location", self.issuer.authorize(_fields(query)))
            self.end_headers()
        elif path == "/keys":
            self._answer(self.issuer.public_keys())
        else:
            self._answer(self.issuer.description())

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self._answer(self.issuer.trade(_fields(form)))

    def _answer(self, document: Any) -> None:
        self.send_response(400 if document is None else 200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def log_message(self, *_: object) -> None:
        pass


def _fields(query: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(query).items()}


@contextlib.contextmanager
def serving_issuer() -> Iterator[Issuer]:
    """Run the provider for the length of a block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    issuer = Issuer(f"http://127.0.0.1:{server.server_port}")
    server.RequestHandlerClass = type("Handler", (_Handler,), {"issuer": issuer})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
