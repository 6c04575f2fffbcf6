"""What a plan says of each pipeline and step, and which starts are refused."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from redrive import InvalidInput, ModuleContext, Pipeline, Registry
from redrive.activities.bulk import known_steps
from redrive.bulk import ITEMS_LIMIT, BulkCommand, BulkStart, plan_hash
from redrive.dead_letters import Mode, Verb
from redrive.errors import PlanChanged, UnsafeEffects
from redrive.modules import Module
from redrive.store.bulk.operations import Members
from redrive.store.bulk.plans import KnownSteps, judge, planned_groups, unsafe_steps


class Nothing(BaseModel):
    """No fields."""


@pytest.fixture
def shop() -> KnownSteps:
    """A pipeline of three steps: what looks, what is keyed, what is not."""
    registry = Registry()

    def add(name: str, effect: Any) -> Module[Nothing, Nothing]:
        @registry.module(name, effect=effect)
        async def work(ctx: ModuleContext, given: Nothing) -> Nothing:
            return given

        return work

    Pipeline("order", add("look", "none"), add("charge", "keyed"), add("mail", "unsafe"), registry=registry)
    return known_steps(registry)


def command(verb: Any = Verb.REPLAY, **options: Any) -> BulkCommand:
    """Return a command."""
    return BulkCommand(tenant="acme", verb=verb, **options)


@pytest.mark.parametrize(
    ("given", "step", "again", "afterwards"),
    [
        (command(), "charge", ["charge"], ["mail"]),
        (command(from_step="look"), "charge", ["look", "charge"], ["mail"]),
        (command(mode=Mode.STEP_ONLY), "charge", ["charge"], []),
        (command(), "mail", ["mail"], []),
        (command(from_step="mail"), "charge", [], []),
        (command(Verb.RESOLVE, output={}), "charge", [], ["mail"]),
        (command(Verb.DISCARD), "charge", [], []),
    ],
)
def test_a_plan_names_what_runs_again_and_what_follows(
    shop: KnownSteps, given: BulkCommand, step: str, again: list[str], afterwards: list[str]
) -> None:
    """From the step that the replay begins with to the dead one; later ones run for the first time."""
    (group,) = planned_groups(shop, given, Members(3, "digest", [("order", step, False, 3)]))
    assert ([planned.name for planned in group.run_again], group.afterwards) == (again, afterwards)


def test_what_the_worker_does_not_know_is_said(shop: KnownSteps) -> None:
    """A pipeline or module of another release has no known effect."""
    (group,) = planned_groups(shop, command(), Members(1, "digest", [("gone", "step", False, 1)]))
    assert [(planned.name, planned.effect) for planned in group.run_again] == [("step", None)]
    assert "not known" in (group.note or "")


@pytest.mark.parametrize(
    ("given", "again", "note"),
    [
        (command(), ["charge"], "what follows is decided by the workflow's own code"),
        (command(Verb.RESOLVE, output="paid"), [], "what follows is decided by the workflow's own code"),
        (
            command(mode=Mode.STEP_ONLY),
            [],
            "'Order' is no pipeline, which mode and from_step are for: these will be skipped",
        ),
    ],
)
def test_of_a_foreign_workflow_no_pipeline_is_looked_for(
    shop: KnownSteps, given: BulkCommand, again: list[str], note: str
) -> None:
    """Its own code decides what follows; a module that it calls has a known effect."""
    (group,) = planned_groups(shop, given, Members(3, "digest", [("Order", "charge", True, 3)]))
    assert ([planned.name for planned in group.run_again], group.note) == (again, note)
    assert all(planned.effect == "keyed" for planned in group.run_again)


def test_an_output_is_any_json_and_belongs_to_resolve() -> None:
    """An activity may return null; who forgets the output is told so."""
    for output in ({"id": 1}, "paid", 5, None):
        given = command(Verb.RESOLVE, output=output)
        assert BulkCommand.model_validate_json(given.model_dump_json()).output == output
    for wrong in ({"verb": "resolve"}, {"verb": "replay", "output": "paid"}):
        with pytest.raises(ValidationError, match="belongs to resolve, and to no other verb"):
            BulkCommand.model_validate({"tenant": "acme", **wrong})


def test_only_what_runs_again_can_be_unsafe(shop: KnownSteps) -> None:
    """A later step that was never reached repeats nothing."""
    groups = planned_groups(
        shop, command(), Members(2, "digest", [("order", "charge", False, 1), ("order", "mail", False, 1)])
    )
    assert unsafe_steps(groups[:1]) == []
    assert unsafe_steps(groups) == ["mail"]


@pytest.mark.parametrize(
    ("members", "error"),
    [
        (Members(0, "digest", []), InvalidInput),
        (Members(ITEMS_LIMIT + 1, "digest", []), InvalidInput),
        (Members(1, "another digest", [("order", "charge", False, 1)]), PlanChanged),
        (Members(1, "digest", [("order", "mail", False, 1)]), UnsafeEffects),
    ],
)
def test_a_start_is_refused(shop: KnownSteps, members: Members, error: type[Exception]) -> None:
    """None, too many, others than planned, or unsafe without a yes."""
    start = BulkStart(
        request_id="r", command=command(), plan_hash=plan_hash(command(), "digest"), requested_by="ada", reason="why"
    )
    with pytest.raises(error):
        judge(shop, start, members)
    judge(shop, start.model_copy(update={"allow_unsafe": True}), Members(1, "digest", [("order", "mail", False, 1)]))
