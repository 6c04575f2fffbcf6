"""What a bulk operation would do: how many items there are, which steps run again, and which effects that repeats."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from redrive.bulk import ITEMS_LIMIT, BulkCommand, BulkPlan, BulkStart, PlannedGroup, PlannedStep, plan_hash
from redrive.contracts import Catalog, Effect
from redrive.dead_letters import Mode, Verb
from redrive.errors import InvalidInput, PlanChanged, UnsafeEffects
from redrive.postgres.tenancy import Pool
from redrive.store.bulk.operations import Members, find_members


@dataclass(frozen=True)
class KnownSteps:
    """What a plan needs of pipelines and modules: a worker knows its own, others what workers have published."""

    pipelines: Mapping[str, list[str]]
    effects: Mapping[str, Effect]

    @classmethod
    def published(cls, catalog: Catalog) -> "KnownSteps":
        """Return what a catalog tells."""
        return cls(
            pipelines={pipeline.name: pipeline.steps for pipeline in catalog.pipelines},
            effects={module.name: module.effect for module in catalog.modules},
        )


async def plan_bulk(pool: Pool, known: KnownSteps, command: BulkCommand) -> BulkPlan:
    """Return what a bulk operation would do, or raise `InvalidInput`."""
    until = command.selection.until or datetime.now(UTC)
    # Later failures do not belong to it: otherwise no plan would stay valid while steps keep failing.
    fixed = command.model_copy(update={"selection": command.selection.model_copy(update={"until": until})})
    members = await find_members(pool, fixed)
    _check_size(members)
    return planned(known, fixed, members)


def planned(known: KnownSteps, command: BulkCommand, members: Members) -> BulkPlan:
    """Return the plan of a command to these dead letters, by the pipelines that are known."""
    groups = planned_groups(known, command, members)
    return BulkPlan(
        hash=plan_hash(command, members.digest),
        command=command,
        count=members.count,
        groups=groups,
        unsafe=unsafe_steps(groups),
    )


def judge(known: KnownSteps, start: BulkStart, members: Members) -> BulkPlan:
    """Return the plan of a start, or refuse it: the dead letters changed, or unsafe effects are not confirmed."""
    _check_size(members)
    plan = planned(known, start.command, members)
    if plan.hash != start.plan_hash:
        raise PlanChanged(
            f"plan {start.plan_hash!r} does not hold any more: the dead letters it is about, or the command, have "
            f"changed ({members.count} dead letters now); plan it again"
        )
    if plan.unsafe and not start.allow_unsafe:
        raise UnsafeEffects(
            f"{', '.join(plan.unsafe)}: running again repeats effects that no key guards; say yes to that "
            "(`allow_unsafe`, `--allow-unsafe`), or choose other dead letters"
        )
    return plan


def _check_size(members: Members) -> None:
    if members.count == 0:
        raise InvalidInput("no open dead letter fits the selection: there is nothing to do")
    if members.count > ITEMS_LIMIT:
        raise InvalidInput(f"more than {ITEMS_LIMIT} dead letters fit, the limit: choose fewer, by time say")


def planned_groups(known: KnownSteps, command: BulkCommand, members: Members) -> list[PlannedGroup]:
    """Return what happens for each pipeline and step, by the pipelines that are known."""
    return [
        (_foreign_group if is_foreign else _group)(
            known, command, PlannedGroup(pipeline=pipeline, step=step, count=count)
        )
        for pipeline, step, is_foreign, count in members.groups
    ]


def unsafe_steps(groups: list[PlannedGroup]) -> list[str]:
    """Return the steps that run again and whose effects no idempotency key protects."""
    return sorted({step.name for group in groups for step in group.run_again if step.effect is Effect.UNSAFE})


def _group(known: KnownSteps, command: BulkCommand, group: PlannedGroup) -> PlannedGroup:
    names, step = known.pipelines.get(group.pipeline, []), group.step
    note = None
    if step not in names:
        names, note = [step], f"pipeline {group.pipeline!r} has no step {step!r} here: what follows is not known"
    dead = names.index(step)
    if command.verb is not Verb.REPLAY:
        later = names[dead + 1 :] if command.verb is Verb.RESOLVE else []
        return group.model_copy(update={"afterwards": later, "note": note})
    first = command.from_step or step
    if first not in names[: dead + 1]:
        note = f"from_step {first!r} is not one of the steps up to {step!r}: these will be skipped"
        return group.model_copy(update={"note": note})
    again = [_step(known, name) for name in names[names.index(first) : dead + 1]]
    later = names[dead + 1 :] if command.mode is Mode.FROM_STEP else []
    return group.model_copy(update={"run_again": again, "afterwards": later, "note": note})


def _foreign_group(known: KnownSteps, command: BulkCommand, group: PlannedGroup) -> PlannedGroup:
    """Return what happens in workflows that are no pipeline runs: their own code decides what comes next."""
    if command.mode is Mode.STEP_ONLY or command.from_step is not None:
        note = f"{group.pipeline!r} is no pipeline, which mode and from_step are for: these will be skipped"
        return group.model_copy(update={"note": note})
    again = [_step(known, group.step)] if command.verb is Verb.REPLAY else []
    return group.model_copy(update={"run_again": again, "note": "what follows is decided by the workflow's own code"})


def _step(known: KnownSteps, name: str) -> PlannedStep:
    return PlannedStep(name=name, effect=known.effects.get(name))
