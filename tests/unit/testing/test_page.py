"""The examples of docs/testing.md, run as written by a plain pytest."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "testing.md"


def test_the_pages_examples_run(tmp_path: Path) -> None:
    """All blocks are one test file; every test of it passes without any further plugin."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "test_shop.py").write_text("\n".join(blocks))
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    without = [word for name in ("asyncio", "anyio", "cov", "xdist", "timeout") for word in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *without, "test_shop.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
