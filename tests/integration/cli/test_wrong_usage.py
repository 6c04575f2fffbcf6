"""A refusal of the real process: one sentence on stderr, nothing on stdout, an exit code, never a traceback."""

import sys

import pytest

from tests.integration.cli.command import ROOT, CommandLine

REFUSALS = [
    (["run", "start", "hello", "--bogus"], 2, "unknown option: --bogus"),
    (["run", "list"], 1, "no Temporal server answers at 127.0.0.1:1"),
    (["worker", "--modules", "broken"], 1, "ImportError: the disk is on fire"),
]


@pytest.mark.parametrize(("words", "code", "said"), REFUSALS)
async def test_refusal_is_one_sentence(bare: CommandLine, words: list[str], code: int, said: str) -> None:
    """What a user sees is a sentence; a script sees the exit code and an empty stdout."""
    (bare.directory / "broken.py").write_text("raise ImportError('the disk is on fire')")
    answer = await bare(*words)
    assert (answer.code, answer.out) == (code, "")
    assert said in answer.sentence


async def test_worker_as_a_program_names_a_wrong_setting(bare: CommandLine) -> None:
    """`python worker.py` logs one line and ends with exit code 1."""
    process = await bare.start(str(ROOT / "worker.py"), program=sys.executable, REDRIVE_LOG_LEVEL="loud")
    out, err = await process.communicate()
    assert (process.returncode, out) == (1, b"")
    assert len(err.splitlines()) == 1
    assert b"REDRIVE_LOG_LEVEL: " in err
