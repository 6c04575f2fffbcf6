"""Set a workspace up in Gitea or Forgejo: a user, a repository of theirs, and its first files.

The service is named `gitea`, with the token of an administrator:
`REDRIVE_SERVICES='{"gitea": {"base_url": "https://git.internal", "token": "…"}}'`. Each step may be repeated at any
point: what is there already is found. So a run that failed half-way is replayed, or started again, and completes.
"""

from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, Field

from redrive import SERVICE_CALL, ModuleContext, Pipeline, module
from redrive.connectors.gitea import Gitea

# A server that is being restarted is back within a minute.
POLICY = SERVICE_CALL.model_copy(
    update={"max_attempts": 6, "cap": timedelta(seconds=30), "timeout": timedelta(seconds=45)}
)
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")]


class Workspace(BaseModel):
    """What the caller sends. `files` are texts by their paths."""

    user: Name
    email: str = Field(pattern=r"^[^@\s]+@[^@\s]+$", max_length=254)
    repository: Name
    files: dict[str, str] = Field(default={"README.md": "# Workspace\n"}, max_length=50)


class Account(BaseModel):
    """A user that exists."""

    id: int
    login: str


class Home(BaseModel):
    """A repository that exists."""

    full_name: str
    url: str


class Content(BaseModel):
    """The files that exist, by their paths, with the ids of their contents."""

    files: dict[str, str]


@module("create-user", policy=POLICY)
async def create_user(ctx: ModuleContext, given: Workspace) -> Account:
    """Create the user, or find it."""
    gitea = Gitea(ctx.http.service("gitea"))
    await gitea.wait_ready(timedelta(seconds=20))
    user = await gitea.create_user(given.user, given.email)
    return Account(id=user.id, login=user.login)


@module("create-repository", policy=POLICY)
async def create_repository(ctx: ModuleContext, given: Workspace) -> Home:
    """Create the repository, or find it."""
    made = await Gitea(ctx.http.service("gitea")).create_repository(given.user, given.repository)
    return Home(full_name=made.full_name, url=made.html_url)


@module("add-files", policy=POLICY)
async def add_files(ctx: ModuleContext, given: Workspace) -> Content:
    """Commit the files that are not there yet."""
    gitea = Gitea(ctx.http.service("gitea"))
    made = {
        path: await gitea.create_file(given.user, given.repository, path, text.encode())
        for path, text in given.files.items()
    }
    return Content(files={path: file.sha for path, file in made.items()})


Pipeline("provision-workspace", create_user, create_repository, add_files)
