"""Ask a language model: one call within its deadline and budget, its answer checked, its tokens counted."""

import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, Literal, TypeVar, overload

from pydantic import BaseModel, ValidationError

from redrive.categories import Category
from redrive.connectors.llm.answers import (
    Answer,
    AnswerRefused,
    AnswerUnfit,
    Api,
    Message,
    Question,
    Reply,
    Texts,
    Usage,
)
from redrive.connectors.llm.anthropic import Anthropic
from redrive.connectors.llm.budget import Budget, Spending
from redrive.connectors.llm.openai import OpenAi
from redrive.connectors.llm.refusals import event_error, refusal_error
from redrive.connectors.llm.server_sent_events import ErrorEvent, broken
from redrive.connectors.probes import Probe, probe
from redrive.contracts import MIB
from redrive.errors import ServiceError, Terminal
from redrive.http import Refusal, ServiceClient, ServiceResponse, bearer
from redrive.metrics import count_tokens

M = TypeVar("M", bound=BaseModel)

# A streamed token is an event of some 300 bytes.
RESPONSE_LIMIT: Final = 16 * MIB
_APIS: Final[dict[str, Api]] = {"openai": OpenAi(), "anthropic": Anthropic()}
# Tokens are of three to four bytes: this is rather too many than too few.
_BYTES_PER_TOKEN: Final = 3
_ERRORS_TOLD: Final = 5


@dataclass(frozen=True)
class Llm:
    """A language model at a service: `Llm(ctx.http.service("openai"), model="gpt-5-mini")`.

    Inside a step a call is made once, and Temporal retries what is transient. `timeout` bounds a call, and with
    `stream` also `idle_timeout` the time without a byte. `repairs` is how often an answer that does not fit is sent
    back with what is wrong. `parameters` are further fields of the API's body. With `texts="redacted"`, errors and log
    lines may hold redacted parts of the provider's messages and of answers; by default they hold none.
    """

    service: ServiceClient
    _: KW_ONLY
    model: str
    api: Literal["openai", "anthropic"] = "openai"
    max_tokens: int = 1024
    timeout: timedelta = timedelta(seconds=50)
    idle_timeout: timedelta = timedelta(seconds=20)
    stream: bool = False
    repairs: int = 0
    budget: Budget | None = None
    texts: Texts = "hidden"
    parameters: dict[str, Any] = field(default_factory=dict)

    @overload
    async def ask(
        self, prompt: str | Sequence[Message], *, returns: type[M], system: str | None = None, operation: str = "ask"
    ) -> Answer[M]: ...
    @overload
    async def ask(
        self,
        prompt: str | Sequence[Message],
        *,
        returns: None = None,
        system: str | None = None,
        operation: str = "ask",
    ) -> Answer[str]: ...
    async def ask(
        self,
        prompt: str | Sequence[Message],
        *,
        returns: type[BaseModel] | None = None,
        system: str | None = None,
        operation: str = "ask",
    ) -> Answer[Any]:
        """Return the model's answer as text, or as `returns`. Each question of a step needs its own `operation`."""
        question = self._question(prompt, system, returns)
        usage = Usage()
        problem = ""
        for repair in range(self.repairs + 1):
            reply = await self._reply(question, operation if repair == 0 else f"{operation}.repair-{repair}")
            usage += reply.usage
            if reply.stop == "refused":
                raise AnswerRefused(self._told(f"{operation}: the model refused to answer", reply), usage=usage)
            if returns is None:
                return _answer(reply.text, reply, usage)
            value = _fitting(reply, returns)
            if isinstance(value, BaseModel):
                return _answer(value, reply, usage)
            problem = f"it was cut off after {self.max_tokens} tokens" if reply.stop == "length" else value
            question = _corrected(question, reply, problem)
        raise AnswerUnfit(self._told(f"{operation}: the answer does not fit: {problem}", reply), usage=usage)

    async def probe(self) -> Probe:
        """Return whether the provider can be used now. Costs no tokens."""
        api = _APIS[self.api]
        return await probe(self._client(api), path="/models", headers=api.headers)

    def _question(
        self, prompt: str | Sequence[Message], system: str | None, returns: type[BaseModel] | None
    ) -> Question:
        schema = returns.model_json_schema() if returns else None
        if returns and (schema or {}).get("type") != "object" and "$ref" not in (schema or {}):
            raise Terminal(f"{returns.__name__} is not an object: ask for a model with fields")
        messages = [Message(role="user", text=prompt)] if isinstance(prompt, str) else list(prompt)
        return Question(
            model=self.model,
            messages=messages,
            system=system,
            max_tokens=self.max_tokens,
            schema=schema,
            schema_name=re.sub(r"[^a-zA-Z0-9_-]", "_", returns.__name__)[:64] if returns else "",
            stream=self.stream,
            parameters=self.parameters,
        )

    async def _reply(self, question: Question, operation: str) -> Reply:
        """Make one call and read its answer."""
        api = _APIS[self.api]
        body = api.body(question)
        began = time.monotonic()
        async with self._spending(body) as spending:
            response = await self._client(api).post(
                api.path,
                operation=operation,
                json=body,
                headers=api.headers,
                timeout=self.timeout,
                idle_timeout=self.idle_timeout if self.stream else None,
                refused=self._refused,
            )
            reply = self._read(api, response, operation)
            spending.usage = reply.usage
        count_tokens(self.model, reply.usage.input_tokens, reply.usage.output_tokens)
        self.service.log.info(
            "llm.answered",
            operation=operation,
            model=reply.model or self.model,
            input_tokens=reply.usage.input_tokens,
            output_tokens=reply.usage.output_tokens,
            stop=reply.stop,
            latency_ms=round((time.monotonic() - began) * 1000, 1),
        )
        return reply

    def _client(self, api: Api) -> ServiceClient:
        sign_in = api.sign_in if self.service.sign_in is bearer else self.service.sign_in
        # The user's id is not the provider's business.
        return replace(self.service, sign_in=sign_in, user_id=None, response_limit=RESPONSE_LIMIT)

    @asynccontextmanager
    async def _spending(self, body: dict[str, Any]) -> AsyncIterator[Spending]:
        if self.budget is None:
            yield Spending()
            return
        needed = self.max_tokens + len(str(body).encode(errors="replace")) // _BYTES_PER_TOKEN
        async with self.budget.spending(needed) as spending:
            yield spending

    def _refused(self, refusal: Refusal) -> ServiceError:
        return refusal_error(refusal, _APIS[self.api], self.texts, self.service.excerpt)

    def _read(self, api: Api, response: ServiceResponse, operation: str) -> Reply:
        """Read an answer, or raise what is wrong with it. An error may also come with a status of success."""
        try:
            return api.streamed(response) if self.stream else api.reply(response)
        except ErrorEvent as event:
            problem = event.body
        except ValidationError:
            problem = _error_of(response)
        if problem is not None:
            raise event_error(operation, problem, self.texts, self.service.excerpt)
        if self.stream:
            raise broken(f"{operation}: an event does not fit the {self.api} API")
        raise ServiceError(
            f"{operation}: the answer does not fit the {self.api} API: look at the service's base_url",
            category=Category.SERIALIZATION,
            status=response.status,
        )

    def _told(self, text: str, reply: Reply) -> str:
        shown = self.service.excerpt(reply.text.encode()) if self.texts == "redacted" else ""
        return f"{text}: {shown}" if shown else text


def _answer(value: Any, reply: Reply, usage: Usage) -> Answer[Any]:
    return Answer(value, reply.text, usage, reply.model, reply.id, is_cut=reply.stop == "length")


def _fitting(reply: Reply, returns: type[BaseModel]) -> BaseModel | str:
    """Return the answer as its model, or what is wrong with it: names and rules, none of its values."""
    try:
        return returns.model_validate_json(_json_of(reply.text))
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
    told = [f"{'.'.join(str(part)[:50] for part in each['loc'][:8]) or 'answer'}: {_rule(each)}" for each in found]
    more = f" and {len(told) - _ERRORS_TOLD} more" if len(told) > _ERRORS_TOLD else ""
    return "; ".join(told[:_ERRORS_TOLD]) + more


def _rule(error: Any) -> str:
    # A validator's own message may quote the answer.
    return str(error["type"]) if error["type"] in {"value_error", "assertion_error"} else str(error["msg"])


def _json_of(text: str) -> str:
    """Return the JSON of an answer, without the fence that some models put around it."""
    fenced = re.fullmatch(r"\s*```(?:json)?\s*\n(.*)\n\s*```\s*", text, re.DOTALL)
    return fenced[1] if fenced else text


def _corrected(question: Question, reply: Reply, problem: str) -> Question:
    request = f"That answer does not fit the schema: {problem}. Give the whole answer again, as JSON that fits."
    turns = [Message(role="assistant", text=reply.text or "{}"), Message(role="user", text=request)]
    return replace(question, messages=[*question.messages, *turns])


def _error_of(response: ServiceResponse) -> Any:
    """Return the error object of an answer with a successful status, as some proxies give it."""
    try:
        body = response.json()
    except ServiceError:
        return None
    return body if isinstance(body, dict) and body.get("error") else None
