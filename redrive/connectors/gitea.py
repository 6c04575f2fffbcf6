"""Gitea and Forgejo: users, repositories and files. Whatever is created here can be created again.

A create of something that is there with the same content is a success, so a step may be repeated at any point. If it is
there with other content, that is a conflict, which says what differs; nothing is overwritten.
"""

import asyncio
import hashlib
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, Field, SecretStr, ValidationError

from redrive.categories import TRANSIENT_CATEGORIES, Category
from redrive.connectors.probes import Probe, probe
from redrive.errors import ServiceError, Terminal
from redrive.http import ServiceClient, ServiceResponse

M = TypeVar("M", bound=BaseModel)

OLDEST: Final = (1, 20)
# What the server allows; a slash or a dot alone would name something else.
_NAME: Final = re.compile(r"(?!\.+$)[A-Za-z0-9._-]{1,100}")
_POLL: Final = timedelta(seconds=0.5)
# A commit starts git and its hooks, which takes a busy server longer than other answers.
_COMMIT: Final = timedelta(seconds=30)
_GONE: Final = 404
# A repository that is there is a 409; a user or a file is a 422, as is a name that is not valid.
_MAY_EXIST: Final = frozenset({409, 422})


class Version(BaseModel):
    """A server's version. Forgejo has its own, and tells which Gitea it is compatible with."""

    version: str

    @property
    def is_forgejo(self) -> bool:
        """Whether it is Forgejo."""
        return "+gitea-" in self.version

    @property
    def gitea(self) -> tuple[int, ...]:
        """The version of Gitea's API: `1.22.0` and `9.0.3+gitea-1.22.0` are both (1, 22, 0)."""
        numbers = re.match(r"v?(\d{1,9}(?:\.\d{1,9}){0,3})", self.version.rpartition("+gitea-")[2])
        return tuple(int(number) for number in numbers[1].split(".")) if numbers else ()


class User(BaseModel):
    """A user."""

    id: int
    login: str
    email: str = ""


class Repository(BaseModel):
    """A repository."""

    id: int
    name: str
    full_name: str
    private: bool = False
    description: str = ""
    default_branch: str = ""
    html_url: str = ""


class File(BaseModel):
    """A file of a branch."""

    path: str
    sha: str
    type: str = "file"
    content: str | None = Field(default=None, repr=False)

    def read(self) -> bytes:
        """Return what is in it."""
        return b64decode(self.content or "")


class _Created(BaseModel):
    content: File


@dataclass(frozen=True)
class Gitea:
    """A Gitea or Forgejo server: `Gitea(ctx.http.service("gitea"))`. Its base URL is the server's, without `/api`."""

    service: ServiceClient

    async def version(self, oldest: tuple[int, ...] = OLDEST) -> Version:
        """Return the server's version, or raise if it is older than this version of Gitea's API."""
        found = await self.service.get("/api/v1/version", operation="gitea.version", returns=Version)
        if found.gitea < oldest:
            wanted = ".".join(str(number) for number in oldest)
            raise Terminal(
                f"the server is Gitea {found.version}; {wanted} or later is needed", category=Category.MISSING_CONFIG
            )
        return found

    async def wait_ready(self, timeout: timedelta = timedelta(seconds=30)) -> Version:
        """Wait until the server is healthy, and return its version. What waiting does not change is raised at once."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout.total_seconds()
        while True:
            left = deadline - loop.time()
            try:
                await self.service.get(
                    "/api/healthz", operation="gitea.health", timeout=timedelta(seconds=min(5.0, max(left, 0.1)))
                )
                return await self.version()
            except ServiceError as error:
                if error.category not in TRANSIENT_CATEGORIES or left <= _POLL.total_seconds():
                    raise
            await asyncio.sleep(_POLL.total_seconds())

    async def probe(self) -> Probe:
        """Return whether the server can be used now, with the service's token if it has one."""
        found = await probe(self.service, path="/api/healthz")
        if found.status == "unavailable" or self.service.token is None:
            return found
        # Health is told to anyone: only a call that signs in notices a wrong token.
        signed_in = await probe(self.service, path="/api/v1/user")
        return found if signed_in.status == "available" else signed_in

    async def user(self, name: str) -> User | None:
        """Return a user, or None."""
        return await self._find(f"/api/v1/users/{_name('user', name)}", "gitea.user", User)

    async def create_user(self, name: str, email: str, password: SecretStr | None = None) -> User:
        """Create a user, or return the one with this name and email address.

        Without a password it gets one that nobody knows. The password of a user that is there is not compared.
        """
        secret = password.get_secret_value() if password else secrets.token_urlsafe(32)
        wanted = {"username": _name("user", name), "email": email}
        body = wanted | {"password": secret, "must_change_password": False}
        made = await self._create("/api/v1/admin/users", "gitea.create_user", body)
        if made.status not in _MAY_EXIST:
            return _read(made, User)
        found = await self.user(name)
        if found is None:
            raise self._refused("gitea.create_user", f"user {name!r}", made)
        _same(f"user {name!r}", {"email": email.lower()}, {"email": found.email.lower()}, made.status)
        return found

    async def repository(self, owner: str, name: str) -> Repository | None:
        """Return a repository, or None."""
        return await self._find(_repository(owner, name), "gitea.repository", Repository)

    async def create_repository(
        self, owner: str, name: str, *, private: bool = True, description: str = "", default_branch: str = "main"
    ) -> Repository:
        """Create an empty repository of a user, or return the one that is like it."""
        wanted = {"private": private, "description": description, "default_branch": default_branch}
        path = f"/api/v1/admin/users/{_name('user', owner)}/repos"
        body = wanted | {"name": _name("repository", name)}
        made = await self._create(path, "gitea.create_repository", body)
        if made.status not in _MAY_EXIST:
            return _read(made, Repository)
        found = await self.repository(owner, name)
        if found is None:
            raise self._refused("gitea.create_repository", f"repository {owner}/{name}", made)
        _same(f"repository {owner}/{name}", wanted, found.model_dump(include=set(wanted)), made.status)
        return found

    async def file(self, owner: str, repository: str, path: str, branch: str = "main") -> File | None:
        """Return a file of a branch, or None."""
        return await self._find(_contents(owner, repository, path), "gitea.file", File, params={"ref": branch})

    async def create_file(
        self, owner: str, repository: str, path: str, content: bytes, *, message: str = "", branch: str = "main"
    ) -> File:
        """Commit a new file, or return the one that holds the same bytes."""
        # Answers repeat the content.
        large = replace(
            self, service=replace(self.service, response_limit=self.service.response_limit + 2 * len(content))
        )
        body = {"content": b64encode(content).decode(), "branch": branch, "message": message or f"Add {path}"}
        made = await large._create(_contents(owner, repository, path), "gitea.create_file", body, _COMMIT)
        if made.status not in _MAY_EXIST:
            return _read(made, _Created).content
        found = await large.file(owner, repository, path, branch)
        what = f"file {path!r} of {owner}/{repository}, branch {branch!r},"
        if found is None:
            raise self._refused("gitea.create_file", what, made)
        _same(what, {"sha": _blob_id(content, found.sha)}, {"sha": found.sha}, made.status)
        return found

    async def _find(
        self, path: str, operation: str, returns: type[M], params: Mapping[str, str] | None = None
    ) -> M | None:
        found = await self.service.get(path, operation=operation, params=params, expected={_GONE})
        return None if found.status == _GONE else _read(found, returns)

    async def _create(
        self, path: str, operation: str, body: Mapping[str, Any], timeout: timedelta | None = None
    ) -> ServiceResponse:
        return await self.service.post(path, operation=operation, json=body, expected=_MAY_EXIST, timeout=timeout)

    def _refused(self, operation: str, what: str, made: ServiceResponse) -> ServiceError:
        """Return the error of a create that was refused though nothing of that name is there."""
        category = Category.CONFLICT if made.status == 409 else Category.VALIDATION
        text = f"{operation}: {what} was refused ({made.status}): {self.service.excerpt(made.body)}"
        return ServiceError(text, category=category, status=made.status)


def _name(kind: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Terminal(f"{kind} {name!r}: a name is 1 to 100 letters, digits, dots, dashes and underscores")
    return name


def _repository(owner: str, name: str) -> str:
    return f"/api/v1/repos/{_name('user', owner)}/{_name('repository', name)}"


def _contents(owner: str, repository: str, path: str) -> str:
    if not path or path.startswith("/"):
        raise Terminal(f"file {path!r}: a path is relative to the repository, and not empty")
    return f"{_repository(owner, repository)}/contents/{quote(path)}"


def _read(response: ServiceResponse, returns: type[M]) -> M:
    found = response.json()
    problem = (
        "is a directory" if isinstance(found, list) else "does not fit Gitea's API: look at the service's base_url"
    )
    with suppress(ValidationError):
        return returns.model_validate(found)
    category = Category.CONFLICT if isinstance(found, list) else Category.SERIALIZATION
    raise ServiceError(f"what was found for {returns.__name__} {problem}", category=category, status=response.status)


def _same(what: str, wanted: Mapping[str, Any], found: Mapping[str, Any], status: int) -> None:
    differing = [f"{name} {found[name]!r}, not {wanted[name]!r}" for name in wanted if found[name] != wanted[name]]
    if differing:
        raise ServiceError(
            f"{what} is there with other content: {'; '.join(differing)}", category=Category.CONFLICT, status=status
        )


def _blob_id(content: bytes, like: str) -> str:
    """Return the id that git gives to a file's content, in the same hash as another id."""
    algorithm = "sha256" if len(like) == 64 else "sha1"
    return hashlib.new(algorithm, b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
