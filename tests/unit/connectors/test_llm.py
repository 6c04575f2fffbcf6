"""Language models: what is sent, what an answer becomes, and what each error means."""

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, RootModel, field_validator
from structlog.testing import LogCapture

from redrive.categories import Category
from redrive.connectors.llm import (
    Answer,
    AnswerRefused,
    AnswerUnfit,
    Budget,
    ContextTooLong,
    Llm,
    Message,
    OverBudget,
    Usage,
)
from redrive.errors import ServiceError, Terminal, Transient
from redrive.modules import MemoryCounters
from tests.unit.connectors.conftest import ClientFactory
from tests.unit.connectors.llm_answers import (
    anthropic_chunks,
    anthropic_error,
    completion,
    message,
    openai_chunks,
    openai_error,
    stream,
    text_block,
    tool_block,
)
from tests.unit.redrive.conftest import Answer as HttpAnswer
from tests.unit.redrive.conftest import Received, Server, endless, hang, reply, reset

PATHS = {"openai": "/chat/completions", "anthropic": "/messages"}
SECRET = "Zq-what-nobody-may-read"


class Verdict(BaseModel):
    """What the model is asked for."""

    mood: Literal["good", "bad"]
    score: int = Field(ge=0, le=10)


LlmFactory = Callable[..., Llm]


@pytest.fixture
def llm(client: ClientFactory) -> LlmFactory:
    """Make a model at the server."""

    def make(**options: Any) -> Llm:
        return Llm(options.pop("service", None) or client(), **({"model": "gpt-5-mini"} | options))

    return make


def verdict(api: str, given: Any) -> dict[str, Any]:
    """A structured answer of an API."""
    if api == "anthropic":
        return message(tool_block(given), reason="tool_use")
    return completion(json.dumps(given))


def sent(server: Server, index: int = -1) -> dict[str, Any]:
    """The body of a request."""
    body: dict[str, Any] = json.loads(server.received[index].body)
    return body


async def failure(model: Llm, **options: Any) -> ServiceError:
    """Ask, and return the error."""
    with pytest.raises(ServiceError) as caught:
        await model.ask(SECRET, **options)
    return caught.value


async def test_chat_completion_is_asked_as_documented(llm: LlmFactory, server: Server) -> None:
    """Model, messages, limit and parameters are in the body; token, key and request id in the headers, no user id."""
    server.on("/chat/completions", reply(200, completion("Hello there")))
    answer = await llm(parameters={"temperature": 0}).ask("Hi", system="Be brief", operation="greet")
    assert answer == Answer(
        "Hello there",
        "Hello there",
        Usage(input_tokens=9, output_tokens=12),
        "gpt-5-mini-2025-08-07",
        "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
    )
    assert answer.usage.total == 21
    assert sent(server) == {
        "model": "gpt-5-mini",
        "messages": [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}],
        "max_completion_tokens": 1024,
        "temperature": 0,
    }
    headers = server.received[0].headers
    assert headers["authorization"] == "Bearer Zq-the-token"
    assert (headers["idempotency-key"], headers["x-request-id"]) == ("run-1:step:greet", "req-1")
    assert "x-redrive-user" not in headers


async def test_message_is_asked_as_documented(llm: LlmFactory, server: Server) -> None:
    """Anthropic's API has its own header for the key, a version, and the system prompt as a field."""
    server.on("/messages", reply(200, message(text_block("Hel"), text_block("lo"))))
    turns = [
        Message(role="user", text="Hi"),
        Message(role="assistant", text="Yes?"),
        Message(role="user", text="Greet me"),
    ]
    answer = await llm(api="anthropic", max_tokens=99).ask(turns, system="Be brief")
    assert (answer.value, answer.usage) == ("Hello", Usage(input_tokens=9, output_tokens=12))
    body = sent(server)
    assert (body["system"], body["max_tokens"]) == ("Be brief", 99)
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    headers = server.received[0].headers
    assert (headers["x-api-key"], headers["anthropic-version"]) == ("Zq-the-token", "2023-06-01")
    assert "authorization" not in headers


async def test_own_way_to_sign_in_is_kept(llm: LlmFactory, client: ClientFactory, server: Server) -> None:
    """A service with another header for its key, as Azure has, gets that; `max_tokens` replaces the newer name."""
    server.on("/chat/completions", reply(200, completion("x")))
    service = client(sign_in=lambda token: {"api-key": token})
    await llm(service=service, parameters={"max_tokens": 7}).ask("Hi")
    assert server.received[0].headers["api-key"] == "Zq-the-token"
    assert "authorization" not in server.received[0].headers
    assert (sent(server)["max_tokens"], "max_completion_tokens" in sent(server)) == (7, False)


@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_structured_answer_becomes_its_model(llm: LlmFactory, server: Server, api: str) -> None:
    """The model's JSON schema is sent, and the answer is parsed into it."""
    server.on(PATHS[api], reply(200, verdict(api, {"mood": "good", "score": 7})))
    answer = await llm(api=api).ask("How was it?", returns=Verdict)
    assert answer.value == Verdict(mood="good", score=7)
    body = sent(server)
    if api == "openai":
        chosen = body["response_format"]["json_schema"]
        assert (body["response_format"]["type"], chosen["name"], chosen["strict"]) == ("json_schema", "Verdict", True)
        assert chosen["schema"]["additionalProperties"] is False
    else:
        assert body["tool_choice"] == {"type": "tool", "name": "Verdict"}
        assert body["tools"][0]["input_schema"]["required"] == ["mood", "score"]


async def test_schema_is_strict_where_it_can_be(llm: LlmFactory, server: Server) -> None:
    """Every property is required in strict mode, also of inner models; one with free names is sent as it is."""

    class Inner(BaseModel):
        note: str = Field(default="", max_length=10, description="why")

    class Outer(BaseModel):
        inner: Inner = Field(description="more")
        others: list[Inner] = []
        default: str | None = None

    class Free(BaseModel):
        names: dict[str, int]

    server.on("/chat/completions", reply(200, completion('{"inner": {}, "names": {}}')))
    await llm().ask("?", returns=Outer)
    schema = sent(server)["response_format"]["json_schema"]["schema"]
    assert schema["required"] == ["inner", "others", "default"]
    assert schema["$defs"]["Inner"]["required"] == ["note"]
    assert "maxLength" not in schema["$defs"]["Inner"]["properties"]["note"]
    assert schema["properties"]["inner"] == {"$ref": "#/$defs/Inner"}
    await llm().ask("?", returns=Free)
    assert sent(server)["response_format"]["json_schema"]["strict"] is False
    assert sent(server)["response_format"]["json_schema"]["schema"] == Free.model_json_schema()


async def test_answer_has_to_be_an_object(llm: LlmFactory, server: Server) -> None:
    """Neither API gives a bare list: asking for one is refused before a call."""
    with pytest.raises(Terminal, match="ask for a model with fields"):
        await llm().ask("?", returns=RootModel[list[int]])
    assert server.received == []


async def test_fenced_json_is_read(llm: LlmFactory, server: Server) -> None:
    """Servers without structured output answer with a fence around the JSON."""
    server.on("/chat/completions", reply(200, completion('```json\n{"mood": "bad", "score": 1}\n```')))
    assert (await llm().ask("?", returns=Verdict)).value.score == 1


@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_schema_error_is_terminal_at_once(llm: LlmFactory, server: Server, api: str) -> None:
    """An answer that does not fit is no reason to ask again, and the error names fields, not values."""
    server.on(PATHS[api], reply(200, verdict(api, {"mood": SECRET, "score": 99})))
    error = await failure(llm(api=api), returns=Verdict)
    assert isinstance(error, AnswerUnfit)
    assert (error.category, error.usage.output_tokens, len(server.received)) == (Category.VALIDATION, 12, 1)
    assert "mood: Input should be 'good' or 'bad'" in str(error)
    assert "score" in str(error)
    assert SECRET not in str(error)


@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_repair_sends_back_what_is_wrong(llm: LlmFactory, server: Server, api: str) -> None:
    """With `repairs`, the answer goes back with its problem, under another key, and all tokens are counted."""
    server.on(
        PATHS[api],
        reply(200, verdict(api, {"mood": "good"})),
        reply(200, verdict(api, {"mood": "good", "score": 3})),
    )
    answer = await llm(api=api, repairs=2).ask("?", returns=Verdict, operation="judge")
    assert (answer.value.score, answer.usage) == (3, Usage(input_tokens=18, output_tokens=24))
    first, second, third = sent(server)["messages"]
    assert [turn["role"] for turn in (first, second, third)] == ["user", "assistant", "user"]
    assert json.loads(second["content"]) == {"mood": "good"}
    assert "score: Field required" in third["content"]
    assert [request.headers["idempotency-key"] for request in server.received] == [
        "run-1:step:judge",
        "run-1:step:judge.repair-1",
    ]


async def test_repairs_are_limited(llm: LlmFactory, server: Server) -> None:
    """After the allowed repairs the error is terminal, with the tokens of all calls."""
    server.on("/chat/completions", reply(200, completion("no JSON")))
    error = await failure(llm(repairs=2), returns=Verdict)
    assert isinstance(error, AnswerUnfit)
    assert (len(server.received), error.usage.total) == (3, 63)


async def test_message_of_a_validator_is_not_recorded(llm: LlmFactory, server: Server) -> None:
    """A validator may quote the answer, so only its kind is told; of many problems, five."""

    class Picky(BaseModel):
        name: str
        a: int
        b: int
        c: int
        d: int
        e: int

        @field_validator("name")
        @classmethod
        def _refuse(cls, value: str) -> str:
            raise ValueError(f"not {value}")

    server.on("/chat/completions", reply(200, completion(json.dumps({"name": SECRET}))))
    error = await failure(llm(), returns=Picky)
    assert "name: value_error" in str(error)
    assert "and 1 more" in str(error)
    assert SECRET not in str(error)


async def test_cut_answer_says_so(llm: LlmFactory, server: Server) -> None:
    """A text that the limit ended is marked; a structured answer that it ended is an error that names the limit."""
    server.on("/chat/completions", reply(200, completion('{"mood": "go', reason="length")))
    assert (await llm().ask("?")).is_cut
    assert "cut off after 1024 tokens" in str(await failure(llm(), returns=Verdict))


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("openai", completion(None, refusal="I cannot help with that.")),
        ("openai", completion("", reason="content_filter")),
        ("anthropic", message(text_block("I cannot"), reason="refusal")),
    ],
    ids=["refusal", "filter", "anthropic"],
)
async def test_refusal_of_the_model_is_terminal(
    llm: LlmFactory, server: Server, api: str, body: dict[str, Any]
) -> None:
    """A refusal is not asked for again, and what it cost is known."""
    server.on(PATHS[api], reply(200, body))
    error = await failure(llm(api=api, repairs=3), returns=Verdict)
    assert isinstance(error, AnswerRefused)
    assert (error.category, error.usage.total, len(server.received)) == (Category.PROVIDER_4XX, 21, 1)
    assert "cannot" not in str(error)


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("openai", completion(None, refusal="I cannot help with that.")),
        ("anthropic", message(text_block("I cannot help with that."), reason="refusal")),
    ],
    ids=["openai", "anthropic"],
)
async def test_words_of_a_refusal_are_recorded_if_texts_are(
    llm: LlmFactory, server: Server, api: str, body: dict[str, Any]
) -> None:
    """Whoever lets texts be recorded reads why the model refused."""
    server.on(PATHS[api], reply(200, body))
    assert "I cannot help with that." in str(await failure(llm(api=api, texts="redacted"), returns=Verdict))


TRANSIENT = {Category.TIMEOUT, Category.NETWORK, Category.RATE_LIMIT, Category.PROVIDER_5XX}


@pytest.mark.parametrize(
    ("api", "status", "body", "category"),
    [
        ("openai", 408, None, Category.TIMEOUT),
        ("openai", 409, openai_error("locked", "conflict", None), Category.PROVIDER_5XX),
        ("openai", 429, openai_error("Rate limit", "tokens", "rate_limit_exceeded"), Category.RATE_LIMIT),
        ("openai", 429, openai_error("no credit", "insufficient_quota", "insufficient_quota"), Category.PROVIDER_4XX),
        ("openai", 500, openai_error("oops", "server_error", None), Category.PROVIDER_5XX),
        ("openai", 503, b"<html>overloaded</html>", Category.PROVIDER_5XX),
        ("openai", 400, openai_error("bad", "invalid_request_error", None, "messages"), Category.PROVIDER_4XX),
        ("openai", 401, openai_error("no key", "invalid_request_error", "invalid_api_key"), Category.PROVIDER_4XX),
        ("openai", 403, {"error": "Forbidden country"}, Category.PROVIDER_4XX),
        ("openai", 404, openai_error("no model", "invalid_request_error", "model_not_found"), Category.PROVIDER_4XX),
        ("anthropic", 401, anthropic_error("authentication_error", "invalid x-api-key"), Category.PROVIDER_4XX),
        ("anthropic", 402, anthropic_error("billing_error", "pay"), Category.PROVIDER_4XX),
        ("anthropic", 429, anthropic_error("rate_limit_error", "slow down"), Category.RATE_LIMIT),
        ("anthropic", 500, anthropic_error("api_error", "oops"), Category.PROVIDER_5XX),
        ("anthropic", 504, anthropic_error("timeout_error", "late"), Category.PROVIDER_5XX),
        ("anthropic", 529, anthropic_error("overloaded_error", "Overloaded"), Category.PROVIDER_5XX),
    ],
)
async def test_error_status_is_classified(
    *, llm: LlmFactory, server: Server, api: str, status: int, body: Any, category: Category
) -> None:
    """Each documented error has its category, the same in the error and in the log line."""
    server.on(PATHS[api], reply(status, body))
    error = await failure(llm(api=api))
    assert (error.status, error.category) == (status, category)


@pytest.mark.parametrize("api", PATHS)
async def test_wrong_address_is_told(llm: LlmFactory, server: Server, api: str) -> None:
    """Whoever forgets the /v1 of the base URL learns where to look, whatever is at that address."""
    server.on(PATHS[api], reply(404, b"<html>not found</html>"))
    assert str(await failure(llm(api=api))).endswith(
        "answered 404: look at the service's base_url and at the name of the model"
    )


@pytest.mark.parametrize(
    ("api", "status", "body"),
    [
        ("openai", 400, openai_error("too many", "invalid_request_error", "context_length_exceeded", "messages")),
        ("openai", 400, {"object": "error", "message": "This model's maximum context length is 4096 tokens."}),
        ("anthropic", 400, anthropic_error("invalid_request_error", "prompt is too long: 9 tokens > 8 maximum")),
        ("anthropic", 413, anthropic_error("request_too_large", "Request exceeds the maximum size")),
    ],
    ids=["openai", "vllm", "anthropic", "size"],
)
async def test_too_long_a_prompt_is_an_error_of_its_own(
    llm: LlmFactory, server: Server, api: str, status: int, body: Any
) -> None:
    """A module can tell a prompt that is too long from other refusals, and shorten it."""
    server.on(PATHS[api], reply(status, body))
    error = await failure(llm(api=api))
    assert isinstance(error, ContextTooLong)
    assert (error.category, error.status) == (Category.TOO_LARGE, status)


async def test_content_filter_of_the_service_is_a_refusal(llm: LlmFactory, server: Server) -> None:
    """A prompt that a filter stops, as Azure's does with status 400, is a refusal."""
    server.on("/chat/completions", reply(400, openai_error("filtered", "", "content_filter", "prompt")))
    assert isinstance(await failure(llm()), AnswerRefused)


DATE = "Tue, 20 Oct 2026 10:00:00 GMT"


@pytest.mark.parametrize(
    ("api", "headers", "seconds"),
    [
        ("openai", {"retry_after_ms": "1500", "retry_after": "9"}, 1.5),
        ("openai", {"retry_after": "9", "x_ratelimit_reset_tokens": "6m0s"}, 9),
        ("openai", {"x_ratelimit_reset_requests": "120ms", "x_ratelimit_reset_tokens": "6m0s"}, 360),
        (
            "openai",
            {
                "x_ratelimit_remaining_requests": "0",
                "x_ratelimit_reset_requests": "8.64s",
                "x_ratelimit_remaining_tokens": "149984",
                "x_ratelimit_reset_tokens": "6m0s",
            },
            8.64,
        ),
        ("openai", {"x_ratelimit_reset_requests": "soon"}, None),
        ("openai", {}, None),
        ("anthropic", {"retry_after": "7"}, 7),
        (
            "anthropic",
            {
                "date": DATE,
                "anthropic_ratelimit_requests_remaining": "49",
                "anthropic_ratelimit_requests_reset": "2026-10-20T10:05:00Z",
                "anthropic_ratelimit_input_tokens_remaining": "0",
                "anthropic_ratelimit_input_tokens_reset": "2026-10-20T10:00:21Z",
            },
            21,
        ),
        ("anthropic", {"date": DATE, "anthropic_ratelimit_tokens_reset": "2026-10-20T09:59:00Z"}, 0),
        ("anthropic", {"anthropic_ratelimit_tokens_reset": "2026-10-20T09:59:00"}, None),
    ],
)
async def test_rate_limit_tells_when_to_ask_again(
    llm: LlmFactory, server: Server, api: str, headers: dict[str, str], seconds: float | None
) -> None:
    """`Retry-After` is obeyed; without it, the reset of the limit that is used up."""
    server.on(PATHS[api], reply(429, anthropic_error("rate_limit_error", "slow"), **headers))
    error = await failure(llm(api=api))
    assert error.retry_after == (None if seconds is None else timedelta(seconds=seconds))


@pytest.mark.parametrize("texts", ["hidden", "redacted"])
async def test_prompts_and_answers_are_recorded_by_policy(
    llm: LlmFactory, server: Server, logged: LogCapture, texts: str
) -> None:
    """Errors and log lines hold codes only; with `redacted`, the provider's words also, without secrets."""
    problem = openai_error(f"you said: {SECRET}, password=hunter22", "invalid_request_error", "bad", "messages")
    server.on("/chat/completions", reply(400, problem), reply(200, completion(f"I say {SECRET}")))
    model = llm(texts=texts)
    refused = await failure(model)
    unfit = await failure(model, returns=Verdict)
    assert "invalid_request_error, bad, messages" in str(refused)
    recorded = f"{refused} {unfit} {logged.entries}"
    assert "hunter22" not in recorded
    assert "Zq-the-token" not in recorded
    assert (SECRET in str(refused), SECRET in str(unfit)) == ((texts == "redacted"),) * 2
    assert SECRET not in repr(await llm().ask("Hi"))


@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_stream_is_put_together(llm: LlmFactory, server: Server, api: str) -> None:
    """A streamed answer is the same as a whole one: text, tokens, model, end."""
    deltas = [{"type": "text_delta", "text": part} for part in ("Hel", "lo ✓")]
    events = openai_chunks("Hel", "lo ✓") if api == "openai" else anthropic_chunks(*deltas)
    server.on(PATHS[api], stream(": keep-alive\n\n", *events))
    answer = await llm(api=api, stream=True).ask("Hi")
    assert (answer.value, answer.is_cut) == ("Hello ✓", False)
    assert answer.usage == Usage(input_tokens=9, output_tokens=12 if api == "openai" else 15)
    assert answer.model
    assert answer.id
    assert sent(server)["stream"] is True


async def test_streamed_tool_input_becomes_the_model(llm: LlmFactory, server: Server) -> None:
    """The parts of a tool's input are joined to the structured answer."""
    parts = ['{"mood": "go', 'od", "sc', 'ore": 4}']
    deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts]
    server.on("/messages", stream(*anthropic_chunks(*deltas, reason="tool_use")))
    assert (await llm(api="anthropic", stream=True).ask("?", returns=Verdict)).value.score == 4


def dribble(events: list[str], pause: float) -> HttpAnswer:
    """Send a stream in drops: each byte is progress, and the end is far."""

    async def answer(_request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for byte in "".join(events).encode():
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(pause)

    return answer


def stalled(events: list[str]) -> HttpAnswer:
    """Begin a stream, then say nothing more."""

    async def answer(request: Received, writer: asyncio.StreamWriter) -> None:
        await stream(*events)(request, writer)
        await writer.drain()
        await hang(request, writer)

    return answer


def cut_short(events: list[str]) -> HttpAnswer:
    """Begin a stream of a promised length, then cut the connection."""

    async def answer(_request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + "".join(events).encode())
        await writer.drain()

    return answer


FIRST = {"openai": openai_chunks("Hello")[:2], "anthropic": anthropic_chunks({"type": "text_delta", "text": "Hel"})[:4]}


@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("answer", "category"),
    [
        (lambda first: stream(*first), Category.NETWORK),
        (lambda first: stream(*first, "data: {half"), Category.NETWORK),
        (lambda first: stream(*first, "data: [1, 2]\n\n"), Category.NETWORK),
        (lambda first: stream(*first, 'data: {"choices": 1, "delta": 2}\n\n'), Category.NETWORK),
        (cut_short, Category.NETWORK),
        (lambda _: reset, Category.NETWORK),
        (stalled, Category.TIMEOUT),
        (lambda _: hang, Category.TIMEOUT),
        (lambda first: dribble(first, 0.05), Category.TIMEOUT),
        (lambda _: endless(b": ping\n\n", pause=0.02), Category.TIMEOUT),
    ],
    ids=["ends", "half", "no object", "no event", "cut", "reset", "stalls", "hangs", "dribbles", "pings"],
)
async def test_broken_stream_is_transient(
    llm: LlmFactory, server: Server, api: str, answer: Callable[[list[str]], HttpAnswer], category: Category
) -> None:
    """A stream that ends early, is cut, hangs or dribbles past the deadline is asked for again."""
    server.on(PATHS[api], answer(FIRST[api]))
    model = llm(api=api, stream=True, timeout=timedelta(seconds=0.4), idle_timeout=timedelta(seconds=0.2))
    assert (await failure(model)).category is category


async def test_stall_is_noticed_before_the_deadline(llm: LlmFactory, server: Server) -> None:
    """With a stream, silence is noticed after `idle_timeout`, long before the whole answer is due."""
    server.on("/chat/completions", stalled(FIRST["openai"]))
    model = llm(stream=True, timeout=timedelta(seconds=60), idle_timeout=timedelta(seconds=0.1))
    async with asyncio.timeout(10):
        error = await failure(model)
    assert error.category is Category.TIMEOUT
    assert str(error).endswith("/chat/completions sent nothing for 0.1 s")


@pytest.mark.parametrize(
    ("api", "event", "category", "kind"),
    [
        ("anthropic", anthropic_error("overloaded_error", SECRET), Category.PROVIDER_5XX, ServiceError),
        ("anthropic", anthropic_error("rate_limit_error", SECRET), Category.RATE_LIMIT, ServiceError),
        ("anthropic", anthropic_error("invalid_request_error", SECRET), Category.PROVIDER_4XX, ServiceError),
        ("openai", openai_error(SECRET, "server_error", None), Category.PROVIDER_5XX, ServiceError),
        ("openai", openai_error(SECRET, "", "context_length_exceeded"), Category.TOO_LARGE, ContextTooLong),
        ("openai", openai_error(SECRET, "", "content_filter"), Category.PROVIDER_4XX, AnswerRefused),
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
async def test_error_with_a_status_of_success_is_classified(
    *,
    llm: LlmFactory,
    server: Server,
    api: str,
    event: dict[str, Any],
    category: Category,
    kind: type[ServiceError],
    streamed: bool,
) -> None:
    """Providers report errors inside a stream, and some proxies as a whole answer with status 200."""
    told = f"event: error\ndata: {json.dumps(event)}\n\n"
    server.on(PATHS[api], stream(*FIRST[api], told) if streamed else reply(200, event))
    error = await failure(llm(api=api, stream=streamed))
    assert (type(error), error.category) == (kind, category)
    assert SECRET not in str(error)


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"[]", b'{"choices": "x"}'])
async def test_answer_of_another_api_is_told(llm: LlmFactory, server: Server, body: bytes) -> None:
    """A base URL that leads elsewhere is a clear error, and terminal."""
    server.on("/chat/completions", reply(200, body))
    error = await failure(llm())
    assert error.category is Category.SERIALIZATION
    assert "base_url" in str(error)


async def test_tokens_are_logged(llm: LlmFactory, server: Server, logged: LogCapture) -> None:
    """Each answer is a log line with the model and its tokens, and no text."""
    server.on("/chat/completions", reply(200, completion(SECRET)))
    await llm().ask(SECRET, operation="greet")
    [line] = [entry for entry in logged.entries if entry["event"] == "llm.answered"]
    assert (line["operation"], line["model"]) == ("greet", "gpt-5-mini-2025-08-07")
    assert (line["input_tokens"], line["output_tokens"]) == (9, 12)
    assert SECRET not in str(logged.entries)


async def test_budget_counts_what_was_used(llm: LlmFactory, server: Server) -> None:
    """An answer costs its tokens, not those that were reserved for it."""
    server.on("/chat/completions", reply(200, completion("x")))
    counters = MemoryCounters()
    model = llm(budget=Budget(counters, 2000))
    await model.ask("Hi")
    await model.ask("Hi")
    assert counters.values == {"llm_tokens": 42}


async def test_budget_that_is_used_up_stops_before_the_call(llm: LlmFactory, server: Server) -> None:
    """A call that may exceed the budget is not made, and the error says how much is left."""
    counters = MemoryCounters({"llm_tokens": 990})
    with pytest.raises(OverBudget, match="used 990 of its 2000 tokens") as caught:
        await llm(budget=Budget(counters, 2000)).ask("Hi")
    assert (caught.value.category, caught.value.used) == (Category.TOO_LARGE, 990)
    assert server.received == []
    assert counters.values == {"llm_tokens": 990}


async def test_budget_keeps_what_a_broken_call_may_have_cost(llm: LlmFactory, server: Server) -> None:
    """A refused call is free; one that broke off may have been charged for, and keeps its reservation."""
    server.on("/chat/completions", reply(429), reply(200, b"<html>"), reset)
    counters = MemoryCounters()
    model = llm(budget=Budget(counters, 5000))
    await failure(model)
    await failure(model)
    assert counters.values == {"llm_tokens": 0}
    await failure(model)
    assert counters.values["llm_tokens"] > 1024


async def test_answer_is_not_lost_if_the_budget_cannot_be_settled(llm: LlmFactory, server: Server) -> None:
    """What has been paid for is returned, though the count stays too high."""

    class Flaky(MemoryCounters):
        async def add(self, name: str, amount: int, *, limit: int | None = None) -> int | None:
            if amount < 0:
                raise Transient("the database is down")
            return await super().add(name, amount, limit=limit)

    server.on("/chat/completions", reply(200, completion("Hello")))
    counters = Flaky()
    assert (await llm(budget=Budget(counters, 5000)).ask("Hi")).value == "Hello"
    assert counters.values["llm_tokens"] > 1024
