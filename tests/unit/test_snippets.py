"""Python in the pages: every block is valid, what it imports exists, and those of connectors fit their examples.

Blocks that stand alone are run by `tests/integration/runs/test_modules_page.py` and by the tests of their pages.
"""

import ast
import re
from types import ModuleType

import pytest

from docs_site.pages import ROOT, pages
from redrive import Registry
from redrive.examples import feedback, plans, workspace

BLOCKS = [
    pytest.param(block, id=f"{page}-{number}")
    for page in pages()
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL))
]


def parsed(block: str) -> ast.Module:
    """Return the code of a block, which may await outside of a function."""
    code = compile(block, "a page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
    assert isinstance(code, ast.Module)
    return code


@pytest.mark.parametrize("block", BLOCKS)
def test_what_a_block_imports_exists(block: str) -> None:
    """A name that was renamed in the code is renamed in the pages."""
    imports = [node for node in parsed(block).body if isinstance(node, ast.Import | ast.ImportFrom)]
    ours = [node for node in imports if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("redrive")]
    exec(compile(ast.Module(body=[*ours], type_ignores=[]), "a page", "exec"), {})  # noqa: S102  # our own pages


@pytest.mark.parametrize(
    ("page", "example", "name"),
    [
        ("gitea", workspace, "create-repository"),
        ("llm", feedback, "judge"),
        ("opencode", plans, "write-plan"),
    ],
)
def test_a_connectors_block_fits_its_example(page: str, example: ModuleType, name: str) -> None:
    """It is a module of the example that the page names: same name, same models."""
    block = re.findall(r"```python\n(.*?)```", (ROOT / f"docs/connectors/{page}.md").read_text(), re.DOTALL)[0]
    registry = Registry()
    code = parsed(block)
    code.body = [node for node in code.body if not (isinstance(node, ast.ImportFrom) and node.module == "redrive")]
    exec(compile(code, page, "exec"), {**vars(example), "module": registry.module})  # noqa: S102  # our own pages
    (example_module,) = [each for each in vars(example).values() if getattr(each, "name", None) == name]
    assert registry.modules[name].input_model is example_module.input_model
    assert registry.modules[name].output_model is example_module.output_model
