"""Ask a language model for a structured answer: what a customer's message is about, and a draft of a reply.

The service is named `llm`: any OpenAI-compatible endpoint, for example
`REDRIVE_SERVICES='{"llm": {"base_url": "https://api.openai.com/v1", "token": "sk-…"}}'`. A rate limit is waited for as
long as the provider says; a refusal, or an answer that does not fit, is a dead letter at once. The customer's words
are in no record.
"""

from datetime import timedelta
from typing import Literal

from pydantic import BaseModel, Field

from redrive import Hidden, ModuleContext, Pipeline, module
from redrive.connectors.llm import Budget, Llm, Usage

MODEL = "gpt-5-mini"
TOKENS_PER_RUN = 20_000


class Feedback(BaseModel):
    """What the caller sends."""

    feedback: Hidden[str] = Field(min_length=1, max_length=20_000)


class Verdict(BaseModel):
    """What the model is asked for."""

    mood: Literal["good", "neutral", "bad"]
    topics: list[str]


class Judged(BaseModel):
    """The verdict, and what it cost."""

    verdict: Verdict
    usage: Usage


class ToAnswer(BaseModel):
    """The payload's text and the output of the step `judge`."""

    feedback: str
    judge: Judged


class Drafted(BaseModel):
    """A draft for a person to check, and what both steps cost."""

    draft: Hidden[str]
    usage: Usage


def model_for(ctx: ModuleContext) -> Llm:
    """Return the model, with the budget that all steps and attempts of the run share."""
    return Llm(ctx.http.service("llm"), model=MODEL, budget=Budget(ctx.counters, TOKENS_PER_RUN))


@module("judge", timeout=timedelta(minutes=1))
async def judge(ctx: ModuleContext, given: Feedback) -> Judged:
    """Find the mood and the topics of a message."""
    answer = await model_for(ctx).ask(given.feedback, system="Judge this customer's message.", returns=Verdict)
    return Judged(verdict=answer.value, usage=answer.usage)


@module("draft", timeout=timedelta(minutes=1))
async def draft(ctx: ModuleContext, given: ToAnswer) -> Drafted:
    """Draft a reply."""
    system = f"Draft a short reply to this customer. Topics: {', '.join(given.judge.verdict.topics)}."
    answer = await model_for(ctx).ask(given.feedback, system=system)
    return Drafted(draft=answer.text, usage=given.judge.usage + answer.usage)


Pipeline("answer-feedback", judge, draft)
