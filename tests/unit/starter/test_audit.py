"""What heads that were noted say of an audit log, and files of them."""

from pathlib import Path

import pytest

from redrive.errors import InvalidInput, RedriveError
from redrive.starter.cli.audit import _check_heads, read_heads
from redrive.starter.cli.errors import AuditBroken, HeadCut
from redrive.store.audit import Head, Match, read_head

HASH = "9f" * 32
HEAD = Head("acme", 7, HASH)


@pytest.mark.parametrize(
    ("matches", "error"),
    [
        ([Match.FITS], None),
        ([Match.CUT], HeadCut),
        ([Match.CUT, Match.FITS], None),
        ([Match.MISSING], AuditBroken),
        ([Match.CUT, Match.DIFFERS], AuditBroken),
        ([Match.FITS, Match.DIFFERS], AuditBroken),
    ],
)
def test_one_head_that_does_not_fit_is_enough(matches: list[Match], error: type[RedriveError] | None) -> None:
    """A head of before the cut says so, unless a later one of the same log fits."""
    heads = [(HEAD, match) for match in matches]
    if error is None:
        _check_heads(heads)
    else:
        with pytest.raises(error, match=r"row 7|row 7 of tenant 'acme'"):
            _check_heads(heads)


@pytest.mark.parametrize("text", ["", "7", "0:" + HASH, f"7:{HASH[:-1]}", f"7:{HASH}0", f"-7:{HASH}", "7:" + "z" * 64])
def test_what_is_no_head_is_refused(text: str) -> None:
    """A head that was mistyped is not taken for one that does not fit."""
    with pytest.raises(InvalidInput, match="not a head"):
        read_head("acme", text)


def test_a_file_of_heads_is_read_whole(tmp_path: Path) -> None:
    """Every line counts, each once; a line that was cut off by a crash is left out, and a wrong one is named."""
    file = tmp_path / "heads.jsonl"
    line = f'{{"at": "now", "tenant": "acme", "head": "7:{HASH}"}}\n'
    file.write_text(line + line + line.replace("acme", "beta") + '{"at": ')
    assert read_heads(file, None) == [HEAD, Head("beta", 7, HASH)]
    assert read_heads(file, "acme") == [HEAD]
    with pytest.raises(InvalidInput, match="has no head of tenant 'gamma'"):
        read_heads(file, "gamma")
    file.write_text(line + "{}\n")
    with pytest.raises(InvalidInput, match="line 2: not a head"):
        read_heads(file, None)
