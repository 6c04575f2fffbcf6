"""Filters by labels: what is one, and what is not."""

import pytest

from redrive.errors import InvalidInput
from redrive.field_types import LABEL_LIMIT, checked_label_filter


@pytest.mark.parametrize(
    "label",
    [
        "mission_id=42",
        "mission_id=42,stage_id=2",
        f"a={'x' * 128}",
        "a=b=c",
        ",".join(f"a{number}=1" for number in range(LABEL_LIMIT)),
    ],
)
def test_pairs_of_names_and_values_are_a_filter(label: str) -> None:
    """One pair, or several with commas between them."""
    assert checked_label_filter(label) == label


@pytest.mark.parametrize(
    "label",
    [
        "",
        "mission_id",
        "mission_id=",
        "=42",
        "Mission=42",
        "a=1,",
        "a=1,,b=2",
        "a=1\n",
        "a=1\n,b=2",
        "a=\N{NO-BREAK SPACE}",
        "a=\x85",
        "a=\udc80",
        f"a={'x' * 129}",
        ",".join(f"a{number}=1" for number in range(LABEL_LIMIT + 1)),
    ],
)
def test_what_no_label_can_be_is_refused(label: str) -> None:
    """A newline at the end as well, which Python's `$` alone would let pass."""
    with pytest.raises(InvalidInput, match="not name=value"):
        checked_label_filter(label)
