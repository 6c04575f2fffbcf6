"""An operator's changes for a replay: edits of the input as a JSON Merge Patch, and outputs. Pure except for files."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redrive.contracts import PAYLOAD_LIMIT
from redrive.documents import json_problem, parse_json
from redrive.errors import InvalidInput, TooLarge
from redrive.starter.cli.errors import WrongUsage

_STDIN = Path("-")


def input_patch(settings: Sequence[str], patch: Path | None) -> dict[str, Any] | None:
    """Return the edit of a step input that `--set` or `--patch` asks for; None without either."""
    if settings and patch is not None:
        raise WrongUsage("give --set or --patch, not both")
    if patch is not None:
        return read_object("--patch", patch)
    return _set(settings) if settings else None


def read_object(option: str, file: Path) -> dict[str, Any]:
    """Read a JSON object from a file, or from standard input for `-`."""
    try:
        text = sys.stdin.buffer.read() if file == _STDIN else file.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{option}: cannot read {str(file)!r}: {error.strerror}") from error
    return parse_object(option, text)


def chosen_output(output: str | None, file: Path | None) -> dict[str, Any]:
    """Return the output from `--output` or `--output-file`; one of them is needed."""
    if output is not None and file is None:
        return parse_object("--output", output)
    if file is not None and output is None:
        return read_object("--output-file", file)
    raise WrongUsage("give one of --output and --output-file")


def parse_object(option: str, text: bytes | str) -> dict[str, Any]:
    """Read a JSON object that a step may take or return."""
    value = _json(option, text)
    if not isinstance(value, dict):
        raise InvalidInput(f"{option}: a JSON object is needed, not {type(value).__name__}")
    return value


def _json(option: str, text: bytes | str) -> Any:
    if len(text) > PAYLOAD_LIMIT:
        raise TooLarge(f"{option}: {len(text)} bytes; the limit is {PAYLOAD_LIMIT}")
    try:
        value = parse_json(text)
    except TooLarge as error:
        raise TooLarge(f"{option}: {error}") from None
    except ValueError as error:
        raise InvalidInput(f"{option}: not valid JSON: {error}") from error
    problem = json_problem(value)
    if problem:
        raise InvalidInput(f"{option}{problem}")
    return value


def _set(settings: Sequence[str]) -> dict[str, Any]:
    patch: dict[str, Any] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        names = path.split(".")
        if not equals or not all(names):
            raise InvalidInput(f"--set {setting!r}: write path=value, such as --set 'customer.age=42'")
        _put(patch, names, _set_value(path, text), setting)
    return patch


def _set_value(path: str, text: str) -> Any:
    try:
        return _json(f"--set {path}", text)
    except InvalidInput as error:
        raise InvalidInput(f"{error}; the value is JSON, so text has quotes: --set '{path}=\"text\"'") from error


def _put(patch: dict[str, Any], names: list[str], value: Any, setting: str) -> None:
    *parents, last = names
    for name in parents:
        inner = patch.setdefault(name, {})
        if not isinstance(inner, dict):
            raise WrongUsage(f"--set {setting!r}: contradicts another --set")
        patch = inner
    if last in patch:
        raise WrongUsage(f"--set {setting!r}: contradicts another --set")
    patch[last] = value
