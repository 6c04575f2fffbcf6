"""An identity provider (OpenID Connect): its keys, its tokens, and the code flow with PKCE for browsers.

No state of a sign-in is kept here: state, nonce and verifier are computed from a secret in the browser's own cookie, so
that any console can finish what another began.
"""

import asyncio
import hashlib
import hmac
import time
from base64 import urlsafe_b64encode
from typing import Any, Final
from urllib.parse import urlencode

import httpx
import jwt
from pydantic import BaseModel, ValidationError

from redrive.console.problems import Refusal
from redrive.console.seals import Seal
from redrive.errors import Unavailable
from redrive.field_types import header_problem
from redrive.settings import OidcSettings
from redrive.store.access import new_secret

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
KEYS_LAST: Final = 600.0
# A token may name any key: for an unknown one we ask the provider, but at most this often.
KEYS_PAUSE: Final = 5.0
LEEWAY: Final = 30
SUBJECT_LIMIT: Final = 255
FLOW_LASTS: Final = 600
_TIMEOUT: Final = 10.0
_PURPOSE: Final = "sign-in"


class Discovery(BaseModel):
    """The provider's metadata."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str


class Provider:
    """The provider that the settings name."""

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        self._http = httpx.AsyncClient(timeout=_TIMEOUT)
        self._discovery: Discovery | None = None
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched = float("-inf")
        self._fetching = asyncio.Lock()

    async def close(self) -> None:
        """Close the connections to it."""
        await self._http.aclose()

    async def subject(self, token: str, *, nonce: str | None = None) -> str:
        """Return the member that a token names, or refuse it. With a nonce it is the id token of a sign-in."""
        settings = self._settings
        audience = settings.client_id if nonce else settings.audience or settings.client_id
        claims = await self._claims(token, audience)
        given = str(claims.get("nonce", "")).encode("utf-8", "replace")
        if nonce is not None and not hmac.compare_digest(given, nonce.encode()):
            raise _refused("it belongs to another sign-in")
        if settings.claim == "email" and claims.get("email_verified") is not True:
            raise _refused("the provider has not verified the email address in it")
        subject = claims.get(settings.claim)
        if not isinstance(subject, str) or len(subject) > SUBJECT_LIMIT or header_problem(subject):
            raise _refused(f"it has no usable claim {settings.claim!r}")
        return subject

    async def _claims(self, token: str, audience: str) -> dict[str, Any]:
        try:
            header = jwt.get_unverified_header(token)
            key = await self._key(header.get("kid"))
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=audience,
                issuer=self._settings.issuer,
                leeway=LEEWAY,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as error:
            raise _refused(str(error)) from None
        return claims

    async def _key(self, kid: object) -> jwt.PyJWK:
        if not isinstance(kid, str):
            raise _refused("its header names no key")
        now = time.monotonic()
        if now - self._fetched > KEYS_LAST or (kid not in self._keys and now - self._fetched > KEYS_PAUSE):
            await self._fetch_keys(now)
        if kid not in self._keys:
            raise _refused("it is signed with a key that the provider does not have")
        return self._keys[kid]

    async def _fetch_keys(self, asked: float) -> None:
        async with self._fetching:
            if self._fetched > asked:
                return
            document = await self._get((await self.discovery()).jwks_uri)
            try:
                found = jwt.PyJWKSet.from_dict(document).keys
            except jwt.PyJWTError as error:
                raise Unavailable(f"the identity provider's keys cannot be read: {error}") from None
            self._keys = {key.key_id: key for key in found if key.key_id}
            self._fetched = time.monotonic()

    async def discovery(self) -> Discovery:
        """Return the provider's endpoints."""
        if self._discovery is None:
            issuer = self._settings.issuer
            document = await self._get(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            try:
                found = Discovery.model_validate(document)
            except ValidationError as error:
                raise Unavailable(f"the identity provider at {issuer} does not describe itself: {error}") from None
            if found.issuer != issuer:
                raise Unavailable(f"REDRIVE_OIDC issuer {issuer!r}: the provider there calls itself {found.issuer!r}")
            self._discovery = found
        return self._discovery

    async def _get(self, url: str) -> Any:
        try:
            answer = await self._http.get(url)
            answer.raise_for_status()
            return answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise Unavailable(f"the identity provider did not answer at {url} ({type(error).__name__})") from None

    async def authorization_url(self, flow: "Flow", redirect_uri: str) -> str:
        """Return the address for a browser that wants to sign in."""
        query = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": "openid email",
            "state": flow.state,
            "nonce": flow.nonce,
            "code_challenge": flow.challenge,
            "code_challenge_method": "S256",
        }
        endpoint = (await self.discovery()).authorization_endpoint
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

    async def exchange(self, code: str, flow: "Flow", redirect_uri: str) -> str:
        """Exchange the code that a browser brought back for its member, or refuse."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": self._settings.client_id,
            "code_verifier": flow.verifier,
        }
        if self._settings.client_secret:
            form["client_secret"] = self._settings.client_secret.get_secret_value()
        try:
            answer = await self._http.post((await self.discovery()).token_endpoint, data=form)
            document = answer.json() if answer.is_success else {}
        except (httpx.HTTPError, ValueError) as error:
            raise Unavailable(f"the identity provider did not trade the code ({type(error).__name__})") from None
        token = document.get("id_token") if isinstance(document, dict) else None
        if not isinstance(token, str):
            raise _refused(f"the provider did not take the code (status {answer.status_code})")
        return await self.subject(token, nonce=flow.nonce)


class Flow:
    """One sign-in under way, known by a secret in the browser's cookie, which is signed and valid for ten minutes."""

    def __init__(self, secret: str, following: str, ends: int) -> None:
        self.following = following
        self.state = _derived("state", secret)
        self.nonce = _derived("nonce", secret)
        self.verifier = _derived("verifier", secret)
        self._text = f"{ends} {secret} {following}"

    @classmethod
    def begun(cls, following: str, now: float) -> "Flow":
        """Begin a sign-in that leads to a path of the console."""
        return cls(new_secret(""), following, int(now) + FLOW_LASTS)

    @classmethod
    def read(cls, seal: Seal, cookie: str, now: float) -> "Flow | None":
        """Return the sign-in of a cookie; None: no console made it, or it has expired."""
        text = seal.read(_PURPOSE, cookie)
        if text is None:
            return None
        ends, secret, following = text.split(" ", 2)
        return cls(secret, following, int(ends)) if now < int(ends) else None

    def signed(self, seal: Seal) -> str:
        """Return the cookie's value. It is signed, so that nobody can plant a sign-in in another browser."""
        return seal.sign(_PURPOSE, self._text)

    @property
    def challenge(self) -> str:
        """The verifier's hash, which the provider compares."""
        return urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).decode().rstrip("=")


def _derived(purpose: str, secret: str) -> str:
    return hmac.new(secret.encode(), purpose.encode(), hashlib.sha256).hexdigest()


def _refused(why: str) -> Refusal:
    return Refusal(
        401,
        "unauthorized",
        f"the identity provider's token is not accepted: {why}",
        "sign in again",
        headers={"WWW-Authenticate": "Bearer"},
    )
