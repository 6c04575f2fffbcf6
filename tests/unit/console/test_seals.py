"""Signed texts: known again by any console of the deployment, for one purpose, and by nobody else."""

from hypothesis import given
from hypothesis import strategies as st

from redrive.console.seals import Seal

SEAL = Seal(b"k" * 32)


@given(st.text(), st.text(alphabet="abc -", max_size=10))
def test_a_signed_text_is_read_by_whoever_has_the_key(text: str, purpose: str) -> None:
    """For its purpose, and for no other; with the key, and with no other."""
    signed = SEAL.sign(purpose, text)
    assert Seal(b"k" * 32).read(purpose, signed) == text
    assert SEAL.read(f"{purpose}x", signed) is None
    assert Seal(b"l" * 32).read(purpose, signed) is None


@given(st.text(), st.text(), st.integers(min_value=0), st.characters())
def test_a_changed_text_is_not_read(text: str, made_up: str, place: int, character: str) -> None:
    """Nor one that was made up."""
    signed = SEAL.sign("p", text)
    place %= len(signed)
    changed = signed[:place] + character + signed[place + 1 :]
    assert (SEAL.read("p", changed) is None) == (changed != signed)
    assert SEAL.read("p", made_up) is None
