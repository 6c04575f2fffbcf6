"""Run the connectors' tests against real servers: `python -m tests.services` gets them, starts them and runs the tests.

Ends as pytest does, and with 2 when it cannot run. Servers listen on this machine only, and their state is temporary.
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from redrive.errors import StackError
from redrive.logs import configure_logging
from tests.services.gitea import running_gitea
from tests.services.model import Model, done
from tests.services.opencode import PASSWORD, OpenCodeServer
from tests.services.programs import GITEA, OPENCODE, build_gitea, install_opencode
from tests.unit.redrive.conftest import listening

TESTS = (
    "tests/unit/connectors/test_gitea.py",
    "tests/integration/connectors/test_workspace_drill.py",
    "tests/unit/connectors/test_opencode.py",
    "tests/services",
)


async def run_tests(words: list[str]) -> int:
    """Bring the servers up and run the tests that want one."""
    gitea, program = build_gitea(), install_opencode()
    with tempfile.TemporaryDirectory(prefix="redrive-services-", ignore_cleanup_errors=True) as directory:
        state = Path(directory)
        async with running_gitea(gitea, state) as place, listening() as model:
            model.otherwise = Model(done).answer
            agent = OpenCodeServer(program, state / "opencode", f"{model.url}/v1")
            try:
                await agent.start()
                print(f"Gitea {GITEA} at {place.url}, OpenCode {OPENCODE} at {agent.url}", flush=True)
                given = {
                    "REDRIVE_TEST_GITEA": f"{place.url} {place.token}",
                    "REDRIVE_TEST_OPENCODE": f"{agent.url} {PASSWORD}",
                    "REDRIVE_TEST_OPENCODE_PROGRAM": str(program),
                }
                command = (sys.executable, "-m", "pytest", *(words or TESTS), "-k", "real or services")
                tests = await asyncio.create_subprocess_exec(*command, env=os.environ | given)
                return await tests.wait()
            finally:
                await agent.stop()


def main() -> None:
    """Run it as a program."""
    configure_logging("error")
    try:
        sys.exit(asyncio.run(run_tests(sys.argv[1:])))
    except StackError as error:
        print(f"SERVICES: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
