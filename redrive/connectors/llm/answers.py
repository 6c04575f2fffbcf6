"""What is asked of a language model and what comes back, in the words of neither API."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, Field

from redrive.categories import Category
from redrive.errors import ServiceError
from redrive.http import Refusal, ServiceResponse

T = TypeVar("T")
Texts = Literal["hidden", "redacted"]
Stop = Literal["end", "length", "refused"]


class Message(BaseModel):
    """One turn of a conversation."""

    role: Literal["user", "assistant"]
    text: str = Field(repr=False)


class Usage(BaseModel):
    """The tokens that were used. A module may return it as a part of its output."""

    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens, output_tokens=self.output_tokens + other.output_tokens
        )


@dataclass(frozen=True)
class Answer(Generic[T]):
    """A model's answer. `usage` counts the repairs also; `is_cut` says that `max_tokens` ended it."""

    value: T = field(repr=False)
    text: str = field(repr=False)
    usage: Usage
    model: str
    id: str
    is_cut: bool = False


@dataclass(frozen=True)
class Question:
    """One call: what an API's body is made of."""

    model: str
    messages: Sequence[Message] = field(repr=False)
    system: str | None = field(repr=False)
    max_tokens: int
    schema: dict[str, Any] | None = field(repr=False)
    schema_name: str
    stream: bool
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class Reply:
    """One answer, as an API gave it."""

    text: str = field(repr=False)
    usage: Usage
    model: str
    id: str
    stop: Stop


class Api(Protocol):
    """One of the two APIs: how to ask, how to read an answer, and what its errors mean."""

    @property
    def path(self) -> str:
        """Where it is, below the service's base URL."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """What every request carries."""
        ...

    def sign_in(self, token: str) -> Mapping[str, str]:
        """Return the headers that carry the token."""
        ...

    def body(self, question: Question) -> dict[str, Any]:
        """Return the request's body."""
        ...

    def reply(self, response: ServiceResponse) -> Reply:
        """Read a whole answer."""
        ...

    def streamed(self, response: ServiceResponse) -> Reply:
        """Read an answer that came as a stream of events."""
        ...

    def retry_after(self, refusal: Refusal) -> float | None:
        """Return the seconds until the rate limit that was hit is reset."""
        ...


class AnswerRefused(ServiceError):
    """A content filter, or the model itself, refused to answer. Asking again does not help."""

    code = "answer_refused"

    def __init__(self, message: str, *, status: int | None = None, usage: Usage | None = None) -> None:
        super().__init__(message, category=Category.PROVIDER_4XX, status=status)
        self.usage = usage or Usage()


class ContextTooLong(ServiceError):
    """The prompt is longer than the model reads. A module may catch this, shorten it and ask again."""

    code = "context_too_long"

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message, category=Category.TOO_LARGE, status=status)


class AnswerUnfit(ServiceError):
    """The answer does not fit the model that was asked for, also after the allowed repairs."""

    code = "answer_unfit"

    def __init__(self, message: str, *, usage: Usage) -> None:
        super().__init__(message, category=Category.VALIDATION, status=200)
        self.usage = usage
