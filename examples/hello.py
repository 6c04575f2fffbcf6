"""The smallest pipeline: one module, no service."""

from pydantic import BaseModel

from redrive import ModuleContext, Pipeline, module


class Name(BaseModel):
    """Whom to greet."""

    name: str


class Greeting(BaseModel):
    """The greeting."""

    text: str


@module("hello")
async def hello(ctx: ModuleContext, given: Name) -> Greeting:
    """Greet somebody by name."""
    ctx.log.info("hello.greeting")
    return Greeting(text=f"Hello, {given.name}!")


Pipeline("hello", hello)
