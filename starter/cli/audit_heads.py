"""Files of heads of the audit log, as workers write them."""

from pathlib import Path

from pydantic_core import from_json

from redrive.errors import InvalidInput
from redrive.store.audit.heads import Head, read_head


def read_heads(file: Path, tenant: str | None) -> list[Head]:
    """Return the heads of all tenants, or of one, from a file.

    Each counts: a head recorded after somebody rewrote the log matches it, and only earlier ones do not. A worker that
    was killed may have left half a line at the end of the file; any other line must be complete.
    """
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"--heads {str(file)!r}: cannot be read: {error}") from None
    heads = [_read(line, f"--heads {str(file)!r}: line {number}") for number, line in enumerate(lines[:-1], 1)]
    chosen = list(dict.fromkeys(head for head in heads if tenant in {None, head.tenant}))
    if not chosen:
        raise InvalidInput(f"--heads {str(file)!r}: has no head{f' of tenant {tenant!r}' if tenant else ''}")
    return chosen


def _read(line: str, where: str) -> Head:
    try:
        document = from_json(line)
        return read_head(str(document["tenant"]), str(document["head"]))
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidInput(f'{where}: not a head; it reads like {{"at": …, "tenant": …, "head": …}}') from error
