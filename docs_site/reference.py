"""The pages of the reference that are made from the code: commands, settings, errors, the HTTP API."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from cyclopts import App
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from docs_site.api_reference import api
from docs_site.pages import REFERENCE, ROOT
from docs_site.tables import code, table
from redrive.bridges.events.settings import EventSettings
from redrive.bridges.rabbitmq.settings import RetrySettings
from redrive.categories import Category
from redrive.console.problems import Refusal, answer_to
from redrive.errors import RedriveError
from redrive.settings import Settings
from redrive.starter.cli import errors as cli_errors
from redrive.starter.cli.main import EXIT_CODES, app

_FAMILIES: Final[Mapping[str, type[BaseSettings]]] = {
    "Workers, consoles, callers": Settings,
    "The bridge from Redis Streams": EventSettings,
    "The retry scheduler on RabbitMQ": RetrySettings,
}


def write(directory: Path) -> list[str]:
    """Write all pages into a directory and return their paths in the site."""
    makers: dict[str, Callable[[], str]] = {"cli": cli, "settings": settings, "errors": errors, "api": api}
    directory.mkdir(parents=True)
    for name, make in makers.items():
        (directory / f"{name}.md").write_text(make())
    return [f"{REFERENCE}/{name}.md" for name in makers]


def cli() -> str:
    """Return every command, with its whole help."""
    for command in _commands(app):
        # The sentence of the list gives way to the docstring, as in the command's own `--help`.
        command.help = None
    text = app.generate_docs(output_format="markdown", recursive=True)
    text = re.sub(r"## Table of Contents.*?(?=\*\*Commands)", "", text, count=1, flags=re.DOTALL)
    return text.replace("```console\n", "```text\n").replace("# redrive\n", "# Command line\n", 1)


def _commands(parent: App) -> Iterator[App]:
    for name in parent:
        if name.startswith("-"):
            continue
        command = parent[name]
        if command.default_command:
            yield command
        else:
            yield from _commands(command)


def settings() -> str:
    """Return every setting: its name in the environment, its default, and what it does."""
    parts = [
        "# Settings",
        "Read from the environment, and from `.env` in the working directory; exported variables win. Durations are "
        "written as `PT30S` or `00:00:30`, tables as JSON. [Operations](../docs/operations.md#environment) says more "
        "on each.",
    ]
    for title, family in _FAMILIES.items():
        rows = [
            (code(environment_name(family, name)), _default(field), _limits(field), field.description or "")
            for name, field in family.model_fields.items()
        ]
        parts += [f"## {title}", table(("name", "default", "limits", "what it does"), rows)]
    return "\n\n".join(parts) + "\n"


def environment_name(family: type[BaseSettings], name: str) -> str:
    """Return a setting's name in the environment."""
    alias = family.model_fields[name].validation_alias
    return alias if isinstance(alias, str) else (family.model_config["env_prefix"] + name).upper()


def _default(field: FieldInfo) -> str:
    value = field.get_default()
    if value is None or value == ():
        return "none"
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_none=True)
    text = TypeAdapter(Any).dump_json(value).decode() if not isinstance(value, tuple) else ",".join(value)
    return code(text.strip('"'))


def _limits(field: FieldInfo) -> str:
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    found = [
        f"{word} {_shown(getattr(rule, name))}"
        for rule in field.metadata
        for name, word in words.items()
        if hasattr(rule, name)
    ]
    return ", ".join(found)


def _shown(limit: Any) -> str:
    return f"{limit.total_seconds():g} s" if isinstance(limit, timedelta) else str(limit)


def errors() -> str:
    """Return every error: its code, what it means, and how each interface answers."""
    kinds = sorted({*_kinds(RedriveError)}, key=lambda kind: kind.code)
    of_commands = [kind for kind in kinds if kind.__module__ == cli_errors.__name__]
    of_sdk = [kind for kind in kinds if kind.__module__ == RedriveError.__module__]
    refusals: dict[tuple[str, int], list[str]] = {}
    for name, status, action in sorted({*_refusals()}):
        refusals.setdefault((name, status), []).append(action)
    parts = [
        "# Errors",
        "Every error has a stable code: programs may decide by it. The message names the value and what to do.",
        "## In Python, and their answers elsewhere",
        "All are in `redrive.errors`. The HTTP API answers with the status and `application/problem+json`; commands "
        "end with the exit code.",
        table(
            ("code", "error", "HTTP status", "exit code", "meaning"),
            [(code(kind.code), code(kind.__name__), _status(kind), _exit(kind), _meaning(kind)) for kind in of_sdk],
        ),
        "## Of commands",
        table(
            ("code", "exit code", "meaning"), [(code(kind.code), _exit(kind), _meaning(kind)) for kind in of_commands]
        ),
        "## Of the HTTP API",
        table(
            ("code", "HTTP status", "what to do"),
            [(code(name), status, ", or: ".join(actions)) for (name, status), actions in refusals.items()],
        ),
        "## Categories of failed steps",
        "A step's failure has one of these categories; a policy decides by it what is retried: "
        + ", ".join(code(category.value) for category in Category)
        + ".",
    ]
    return "\n\n".join(parts) + "\n"


def _kinds(kind: type[RedriveError]) -> Iterator[type[RedriveError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)


def _status(kind: type[RedriveError]) -> int | str:
    """Return the HTTP status of an error that a request may lead to."""
    status, _ = answer_to(kind)
    return "" if status == HTTPStatus.INTERNAL_SERVER_ERROR else status


def _exit(kind: type[RedriveError]) -> int:
    return EXIT_CODES.get(kind, 1)


def _meaning(kind: type[RedriveError]) -> str:
    return (kind.__doc__ or "").partition("\n\n")[0]


def _refusals() -> Iterator[tuple[str, int, str]]:
    """Yield the refusals that the API writes out itself, where they are written."""
    for path in sorted((ROOT / "redrive" / "console").rglob("*.py")):
        for call in _calls(ast.parse(path.read_text()), Refusal.__name__):
            match call.args:
                case [
                    ast.Constant(value=int(status)),
                    ast.Constant(value=str(name)),
                    _,
                    ast.Constant(value=str(action)),
                    *_,
                ]:
                    yield name, status, action


def _calls(tree: ast.AST, name: str) -> Iterable[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            yield node
