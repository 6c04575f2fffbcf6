"""What `docs/api.md` shows is run as it is written."""

import asyncio
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from redrive.access import Role
from tests.integration.console.conftest import MakeToken
from tests.integration.dead_letters.lab import Case

PAGE = Path(__file__).parents[3] / "docs" / "api.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
async def test_the_page_works_as_written(live: str, make_token: MakeToken, tenant: str, case: Case) -> None:
    """Every block runs, none fails, and each request is answered with what the page says. The pipeline is a test's."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 8
    written = '{"pipeline": "hello", "payload": {"name": "Ada"}}'
    script = "set -eu\n" + "\necho\n".join(blocks)
    assert written in script
    script = script.replace(written, json.dumps({"pipeline": "three", "payload": {"case": case.name}}))
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        script,
        env=os.environ | {"CONSOLE": live, "TOKEN": await make_token(Role.ADMIN), "TENANT": tenant},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), timeout=120)
    said = out.decode()
    assert process.returncode == 0, err.decode() + said
    assert f'"tenant":"{tenant}"' in said
    assert "event: resync" in said
    # There is no dead letter here to plan for, and the page says so; nothing else is refused.
    assert re.findall(r'"code":"(\w+)"', said) == ["invalid_input"]
    assert "no open dead letter fits the selection" in said
