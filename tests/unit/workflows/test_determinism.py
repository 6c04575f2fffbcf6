"""What workflow code may use: it runs outside Temporal's sandbox, so this is what keeps it deterministic."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "workflows").glob("*.py"))
ALLOWED = {
    "asyncio",
    "collections",
    "contextlib",
    "datetime",
    "re",
    "typing",
    "pydantic",
    "pydantic_core",
    "temporalio",
}
ALLOWED |= {"redrive", "workflows"}
FORBIDDEN_CALLS = {"now", "utcnow", "today", "sleep", "open", "print", "input", "create_subprocess_exec"}
FROM_TEMPORAL = {"workflow"}


def imports(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


def forbidden_calls(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            ours = isinstance(owner, ast.Name) and owner.id in FROM_TEMPORAL
            if name in FORBIDDEN_CALLS and not ours:
                found.append(f"{name} in line {node.lineno}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_workflow_file_imports_only_what_is_deterministic(path: Path) -> None:
    """A workflow file imports nothing that could bring a clock, random numbers, threads or I/O."""
    assert imports(ast.parse(path.read_text())) <= ALLOWED


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_workflow_file_asks_only_temporal_for_the_time(path: Path) -> None:
    """A workflow file calls no clock, sleep or file but Temporal's own."""
    assert forbidden_calls(ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    "source", ["import random", "from time import time", "import datetime as d\nd.datetime.now()", "open('x')"]
)
def test_the_check_notices_what_is_not_deterministic(source: str) -> None:
    """Code with a clock, random numbers or a file is found."""
    tree = ast.parse(source)
    assert not imports(tree) <= ALLOWED or forbidden_calls(tree)
