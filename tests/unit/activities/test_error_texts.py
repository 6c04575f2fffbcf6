"""What is kept of an error: never the value of a field that is secret by its name."""

import json
import re
import traceback
from collections.abc import Callable

import pytest
from pydantic import BaseModel, ValidationError

from redrive.activities.attempts import error_text, redacted_stack
from redrive.modules import error_place
from redrive.redaction.redactor import Redactor

CANARY = "canary-4711"


class Account(BaseModel):
    """What a module reads from somewhere."""

    iban: int


def refused() -> ValidationError:
    """Return the error of a model that a module uses itself."""
    with pytest.raises(ValidationError) as caught:
        Account.model_validate({"iban": CANARY})
    return caught.value


def test_value_under_a_configured_name_is_in_neither_text_nor_stack() -> None:
    """A module that validates by itself tells which field, not what stood there."""
    error, redactor = refused(), Redactor(["iban"])
    assert error_text(error, redactor).startswith("Account: iban: ")
    assert CANARY not in error_text(error, redactor)
    assert CANARY not in redacted_stack(error, redactor)
    assert CANARY in error_text(error, Redactor()), "the test can fail"


def test_value_is_not_in_the_stack_of_an_error_that_came_of_it() -> None:
    """Causes and groups are in the stack, too."""
    cause, redactor = refused(), Redactor(["iban"])
    error = RuntimeError("the account is wrong")
    error.__cause__ = ExceptionGroup("two", [ValueError("other"), cause])
    stack = redacted_stack(error, redactor)
    assert CANARY not in stack
    assert "iban" in stack
    assert CANARY in "".join(traceback.format_exception(error)), "the test can fail"


def test_broken_text_is_replaced() -> None:
    """An error that cannot tell itself is told all the same."""

    class Broken(Exception):
        def __str__(self) -> str:
            raise KeyError

    assert error_text(Broken(), Redactor()) == "(its text cannot be shown: KeyError)"


def raised(function: Callable[[], object]) -> BaseException:
    """Return what a function raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any
        function()
    return caught.value


def test_the_place_of_an_error_is_the_authors_own_line() -> None:
    """A library's frames below it are left out: the line that called it is the one to look at."""

    def reads() -> object:
        return json.loads("{")

    place = error_place(raised(reads))
    assert re.fullmatch(r"tests/unit/activities/test_error_texts\.py:\d+ in reads", place)


def test_the_place_of_an_error_outside_of_all_own_code_is_unknown() -> None:
    """A traceback of libraries alone names none."""
    error = raised(lambda: json.loads("{"))
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # type: ignore[union-attr]  # it has both
    assert error_place(error) == ""
