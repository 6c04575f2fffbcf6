"""Runs that ask a language model: retries, the budget over steps and attempts, metrics, and what records hold."""

import json
from datetime import timedelta

import httpx

from redrive import Category, ModuleContext, Pipeline, Registry, RunStatus
from redrive.connectors.llm import Budget, Llm
from redrive.dead_letters import LetterId
from redrive.postgres.database import open_pool
from redrive.settings import ServiceSettings
from redrive.store.dead_letters.lists import get_letter
from redrive.store.runs import add_to_counter
from tests.conftest import WorkerFactory, eventually
from tests.integration.runs.samples import Number, milliseconds, quick, run_until_settled
from tests.integration.runs.test_metrics import free_address
from tests.unit.connectors.llm_answers import completion, openai_error
from tests.unit.redrive.conftest import Server, reply, reset

WORDS = "the lamp arrived broken and Zq-nobody-may-read-this"
VERDICT = {"mood": "bad", "topics": ["delivery"]}


def services(server: Server) -> dict[str, ServiceSettings]:
    """The settings under which the server is the language model."""
    return {"llm": ServiceSettings(base_url=server.url)}


async def test_example_waits_for_the_limit_and_returns_its_tokens(worker: WorkerFactory, server: Server) -> None:
    """After a 429 the step waits until the provider's reset, and the result tells what all answers cost."""
    limited = openai_error("slow down", "tokens", "rate_limit_exceeded")
    server.on(
        "/chat/completions",
        reply(429, limited, x_ratelimit_remaining_tokens="0", x_ratelimit_reset_tokens="1.25s"),
        reply(200, completion(json.dumps(VERDICT))),
        reply(200, completion("We are sorry.")),
    )
    async with worker(services=services(server)) as running:
        view = await run_until_settled(running.redrive, "answer-feedback", {"feedback": WORDS})
        result = await running.redrive.result(view.run_id)
    assert view.status is RunStatus.SUCCESS
    (entry,) = view.steps[0].attempts
    assert (entry.category, entry.delay) == (Category.RATE_LIMIT, timedelta(seconds=1.25))
    assert result.output == {"draft": "We are sorry.", "usage": {"input_tokens": 18, "output_tokens": 24}}
    keys = [request.headers["idempotency-key"] for request in server.received]
    assert keys == [f"{view.run_id}:judge:ask", f"{view.run_id}:judge:ask", f"{view.run_id}:draft:ask"]


async def test_dead_letter_holds_neither_prompt_nor_answer(worker: WorkerFactory, server: Server) -> None:
    """A refusal is a dead letter after one attempt; its record hides the prompt, and the run still has it."""
    server.on("/chat/completions", reply(200, completion("Zq-an-answer", reason="content_filter")))
    async with worker(services=services(server)) as running:
        view = await run_until_settled(running.redrive, "answer-feedback", {"feedback": WORDS})
        assert running.settings.database_url is not None
        async with await open_pool(running.settings.database_url.get_secret_value()) as pool:
            letter_id = LetterId(tenant=view.tenant, run_id=view.run_id, step="judge")
            letter = await eventually(lambda: get_letter(pool, view.tenant, letter_id.workflow_id))
    assert (view.status, len(server.received)) == (RunStatus.DLQ_PENDING, 1)
    assert letter.payload == {"feedback": "[redacted]"}
    assert "Zq" not in letter.model_dump_json()
    assert "refused" in letter.message


async def test_budget_is_of_the_run(worker: WorkerFactory, registry: Registry, server: Server) -> None:
    """Attempts and steps share the tokens: what a broken call may have cost counts, and the next may not be made."""

    async def ask(ctx: ModuleContext, max_tokens: int) -> Number:
        service, budget = ctx.http.service("llm"), Budget(ctx.counters, 1300)
        return Number(n=(await Llm(service, model="m", max_tokens=max_tokens, budget=budget).ask("Hi")).usage.total)

    @registry.module("first", policy=quick(max_attempts=2, base=milliseconds(1)))
    async def first(ctx: ModuleContext, given: Number) -> Number:
        return await ask(ctx, 500)

    @registry.module("second", policy=quick(max_attempts=3))
    async def second(ctx: ModuleContext, given: Number) -> Number:
        return await ask(ctx, 900)

    Pipeline("two", first, second, registry=registry)
    server.on("/chat/completions", reset, reply(200, completion("Hello")))
    async with worker(services=services(server)) as running:
        view = await run_until_settled(running.redrive, "two")
        assert running.settings.database_url is not None
        async with await open_pool(running.settings.database_url.get_secret_value()) as pool:
            used = await add_to_counter(pool, tenant=view.tenant, run_id=view.run_id, name="llm_tokens", amount=0)
    assert [step.status.value for step in view.steps] == ["SUCCESS", "DLQ"]
    assert used is not None
    assert 521 < used < 600  # 500 and the prompt of the broken call, 21 of the answer
    assert len(server.received) == 2
    failure = view.steps[1].failure
    assert failure is not None
    assert failure.category is Category.TOO_LARGE
    assert f"used {used} of its 1300 tokens" in failure.message


async def test_tokens_are_counted_as_metrics(worker: WorkerFactory, server: Server) -> None:
    """The worker serves the tokens by model and kind."""
    server.on("/chat/completions", reply(200, completion(json.dumps(VERDICT))))
    address = free_address()
    async with worker(services=services(server), metrics_address=address) as running, httpx.AsyncClient() as http:
        await run_until_settled(running.redrive, "answer-feedback", {"feedback": "fine"})
        text = (await http.get(f"http://{address}/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("workflow_llm_tokens_total{")]
    counted = {("input" if 'kind="input"' in line else "output"): line.rpartition(" ")[2] for line in lines}
    assert counted == {"input": "18", "output": "24"}
    assert all('model="gpt-5-mini"' in line for line in lines)
