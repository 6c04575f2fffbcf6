"""A Gitea that keeps users, repositories and files in memory, and answers as Gitea 1.26 does."""

import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from redrive.examples.site import Request

TOKEN = "1e777171889444740d4bdb0748c185a6ddfcb209"  # noqa: S105 - of a stand-in
Found = tuple[int, Any]


def problem(status: int, message: str) -> Found:
    """Gitea's error body."""
    return status, {"message": message, "url": "http://localhost:3000/api/swagger"}


@dataclass
class Gitea:
    """What the server keeps. Set `token` to break or fix the credentials."""

    token: str = TOKEN
    version: str = "1.26.0"
    users: dict[str, dict[str, Any]] = field(default_factory=dict)
    repositories: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[tuple[str, str, str], bytes] = field(default_factory=dict)

    def respond(self, request: Request) -> Found:
        """Answer any request with a status and a body."""
        place, given = request.path, request.document
        if place == "/api/healthz":
            return 200, {"status": "pass", "description": "Gitea"}
        if place == "/api/v1/version":
            return 200, {"version": self.version}
        if request.headers.get("authorization", "") not in {f"Bearer {self.token}", f"token {self.token}"}:
            return problem(401, "invalid username, password or token")
        routes: list[tuple[str, str, Callable[..., Found]]] = [
            ("GET", r"/api/v1/user", lambda: (200, {"id": 1, "login": "root", "email": "root@example.com"})),
            ("GET", r"/api/v1/users/([^/]+)", self._user),
            ("POST", r"/api/v1/admin/users", lambda: self._create_user(given)),
            ("POST", r"/api/v1/admin/users/([^/]+)/repos", lambda owner: self._create_repository(owner, given)),
            ("GET", r"/api/v1/repos/([^/]+)/([^/]+)", lambda owner, name: self._repository(f"{owner}/{name}")),
            (
                "GET",
                r"/api/v1/repos/([^/]+/[^/]+)/contents/(.+)",
                lambda full, path: self._file(full, path, request.query.get("ref", "main")),
            ),
            (
                "POST",
                r"/api/v1/repos/([^/]+/[^/]+)/contents/(.+)",
                lambda full, path: self._create_file(full, path, given),
            ),
        ]
        for method, pattern, act in routes:
            if method == request.method and (match := re.fullmatch(pattern, place)):
                return act(*match.groups())
        return problem(404, "not found")

    def _user(self, name: str) -> Found:
        found = self.users.get(name.lower())
        return (200, found) if found else problem(404, f"user redirect does not exist [name: {name}]")

    def _create_user(self, given: dict[str, Any]) -> Found:
        name, email = given["username"], given["email"]
        if name.lower() in self.users:
            return problem(422, f"user already exists [name: {name}]")
        if any(user["email"] == email for user in self.users.values()):
            return problem(422, f"e-mail already in use [email: {email}]")
        user = {"id": len(self.users) + 2, "login": name, "email": email, "is_admin": False}
        self.users[name.lower()] = user
        return 201, user

    def _repository(self, full: str) -> Found:
        found = self.repositories.get(full.lower())
        return (200, found) if found else (404, {"errors": None, "message": "not found", "url": ""})

    def _create_repository(self, owner: str, given: dict[str, Any]) -> Found:
        if owner.lower() not in self.users:
            return problem(404, f"user redirect does not exist [name: {owner}]")
        full = f"{owner}/{given['name']}"
        if full.lower() in self.repositories:
            return problem(409, "The repository with the same name already exists.")
        made = {"id": len(self.repositories) + 1, "full_name": full, "html_url": f"http://x/{full}", "empty": True}
        self.repositories[full.lower()] = given | made
        return 201, given | made

    def _file(self, full: str, path: str, branch: str) -> Found:
        if any(place == full and part == branch and name.startswith(f"{path}/") for place, part, name in self.files):
            return 200, [{"type": "file", "path": path, "sha": "0" * 40}]
        found = self.files.get((full, branch, path))
        if found is None:
            return problem(404, "not found")
        return 200, _shown(path, found)

    def _create_file(self, full: str, path: str, given: dict[str, Any]) -> Found:
        if full.lower() not in self.repositories:
            return problem(404, "not found")
        where = (full, given["branch"], path)
        if where in self.files or self._file(full, path, given["branch"])[0] == 200:
            return problem(422, f"repository file already exists [path: {path}]")
        self.files[where] = b64decode(given["content"])
        return 201, {"content": _shown(path, self.files[where]), "commit": {"sha": "ee39b209"}}


def _shown(path: str, content: bytes) -> dict[str, Any]:
    blob = b"blob %d\0" % len(content) + content
    sha = hashlib.sha1(blob, usedforsecurity=False).hexdigest()
    shown = {"name": path.rpartition("/")[2], "path": path, "sha": sha, "type": "file", "size": len(content)}
    return shown | {"encoding": "base64", "content": b64encode(content).decode()}
