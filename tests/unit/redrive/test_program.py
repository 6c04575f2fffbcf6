import gc
from pathlib import Path

import pytest

from redrive.processes.program import say_ready


@pytest.fixture
def thawed() -> None:
    gc.unfreeze()


def test_a_ready_process_is_seen_and_its_libraries_are_not_looked_through_again(thawed: None, tmp_path: Path) -> None:
    """The file is there, and the garbage collector has little left to look at."""
    say_ready(tmp_path / "ready")
    assert (tmp_path / "ready").exists()
    assert gc.get_freeze_count() > 10 * len(gc.get_objects())


def test_nobody_has_to_wait_for_a_process(thawed: None) -> None:
    """Without a file, only the collector is told."""
    say_ready(None)
    assert gc.get_freeze_count() > 0
