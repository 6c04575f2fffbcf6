"""Edits of a step's input, as one types them."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from redrive.documents import changed_paths
from redrive.errors import InvalidInput
from redrive.starter.cli.dead_letters.commands import input_patch

PATCHES: list[tuple[list[str], dict[str, Any]]] = [
    (["a=1"], {"a": 1}),
    (["a.b=true", "a.c=null"], {"a": {"b": True, "c": None}}),
    (['a="x=y"'], {"a": "x=y"}),
    (['a={"b": [1]}'], {"a": {"b": [1]}}),
    (["item=lamp", "due=2026-05-01"], {"item": "lamp", "due": "2026-05-01"}),
    (["a.name=Ada Lovelace", "a.zip=01010"], {"a": {"name": "Ada Lovelace", "zip": "01010"}}),
]


@pytest.mark.parametrize(("settings", "patch"), PATCHES)
def test_settings_become_a_merge_patch(settings: list[str], patch: dict[str, Any]) -> None:
    """Dots make objects, values are JSON or bare words."""
    assert input_patch(settings, None) == patch


@pytest.mark.parametrize("setting", ["", "a", "=1", "a..b=1", ".a=1", "a=", "a={x", "a=[1", "a=NaN", 'a="\\u0000"'])
def test_wrong_setting_is_refused(setting: str) -> None:
    """The sentence names the option."""
    with pytest.raises(InvalidInput, match=r"^--set "):
        input_patch([setting], None)


@pytest.mark.parametrize("settings", [["a=1", "a=2"], ["a=1", "a.b=2"], ["a.b=1", "a=2"]])
def test_contradiction_is_refused(settings: list[str]) -> None:
    """A later setting does not undo an earlier one in silence."""
    with pytest.raises(InvalidInput, match="contradicts"):
        input_patch(settings, None)


@given(st.text("abc", min_size=1), st.recursive(st.none() | st.integers() | st.text("xyz"), st.lists))
def test_any_json_value_is_taken_as_it_is(name: str, value: Any) -> None:
    """What is written as JSON is what the patch holds."""
    assert input_patch([f"{name}={to_json(value).decode()}"], None) == {name: value}


def test_patch_comes_from_a_file(tmp_path: Path) -> None:
    """The file holds a JSON object."""
    (tmp_path / "good.json").write_text('{"a": {"b": 1}}')
    assert input_patch([], tmp_path / "good.json") == {"a": {"b": 1}}
    assert input_patch([], None) is None
    for text in ("[1]", "{", "1"):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(InvalidInput, match=r"^--patch: "):
            input_patch([], tmp_path / "bad.json")


def test_changed_paths_name_the_leaves() -> None:
    """An object is named by what is changed in it, an empty one by itself."""
    assert changed_paths({"a": {"b": 1, "c": {"d": None}}, "e": {}}) == ["a.b", "a.c.d", "e"]
