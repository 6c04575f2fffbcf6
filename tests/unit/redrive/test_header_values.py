"""Texts that become headers: refused where they come in, by the rule that the sender has."""

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from redrive import Redrive, Registry
from redrive.contracts import RunInput
from redrive.documents import validated_run_input
from redrive.errors import InvalidInput, Terminal
from redrive.events import parse_envelope
from redrive.field_types import header_problem
from redrive.http import ServiceClient
from redrive.settings import ServiceSettings, Settings

BAD = {
    "a line break": "a\nb",
    "a carriage return": "a\r\nx-admin: yes",
    "a NUL": "a\0b",
    "a tab": "a\tb",
    "DEL": "a\x7f",
    "a control character of Latin-1": "a\x85b",
    "a space before": " a",
    "a space after": "a ",
    "a wide space after": "a\u3000",
    "a lone surrogate": "a\ud800",
    "nothing": "",
}
FIELDS = ("correlation_id", "user_id")


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
@pytest.mark.parametrize("field", [*FIELDS, "key"])
def test_a_run_is_refused_at_its_start(field: str, text: str) -> None:
    """The sentence names the field: without this the run would begin, and every HTTP step of it die."""
    with pytest.raises(InvalidInput, match=field):
        validated_run_input(pipeline="p", **{field: text})


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
@pytest.mark.parametrize("field", FIELDS)
async def test_a_client_refuses_before_it_asks_anybody(field: str, text: str) -> None:
    """`Redrive.start` says what is wrong without a server."""
    client = Redrive(None, task_queue="none", registry=Registry())  # type: ignore[arg-type]  # nobody is asked
    with pytest.raises(InvalidInput, match=field):
        await client.start("p", {}, **{field: text})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["correlationId", "userId"])
def test_an_event_is_refused_by_the_bridge(field: str) -> None:
    """A producer's event with such an id is buried with a sentence, and no run is started for it."""
    body = f'{{"dedupeKey": "k", "type": "t", "source": "s", "{field}": "a\\nb"}}'.encode()
    with pytest.raises(InvalidInput, match="it is sent as an HTTP header and holds the control character"):
        parse_envelope(body)


def test_settings_are_refused_at_the_start_of_a_process() -> None:
    """A token from a file with its line break, and a name that is no header's, say so at once and do not show it."""
    with pytest.raises(ValidationError, match="control character") as refused:
        ServiceSettings(base_url="http://x", token=SecretStr("hunter2\n"))
    assert "hunter2" not in str(refused.value)
    with pytest.raises(ValidationError):
        Settings(user_header="x user\n")


# Once: each reads the certificates of the machine.
HTTP = httpx.AsyncClient()


@given(st.text(max_size=300) | st.sampled_from(list(BAD.values())))
def test_what_is_taken_can_be_sent(text: str) -> None:
    """One rule: what the run takes, the HTTP client sends; what the client would refuse, the run refuses."""
    client = ServiceClient(HTTP, user_id=text or None, request_id=text or None)
    try:
        RunInput(pipeline="p", correlation_id=text, user_id=text)
    except ValidationError:
        assert header_problem(text) or len(text) > 255
        return
    headers = client._headers(None, has_body=False, extra={})
    assert (b"x-request-id", text.encode()) in headers.raw
    with pytest.raises(Terminal, match="control character"):
        client._headers(None, has_body=False, extra={"x": f"{text}\n"})
