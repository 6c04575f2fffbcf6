"""Plans of bulk operations as tables for a terminal."""

from rich.console import Group

from redrive.bulk import BulkPlan, PlannedGroup
from redrive.documents import changed_paths
from redrive.starter.cli.terminal import Facts, Listing, plain


def plan_view(plan: BulkPlan) -> Group:
    """Return what a bulk operation would do."""
    groups = Listing("pipeline", "step", "dead letters", "run again", "afterwards")
    for group in plan.groups:
        groups.add_row(*map(plain, (group.pipeline, group.step, str(group.count), _again(group), _after(group))))
    command = plan.command
    edited, unsafe = changed_paths(command.input_patch or {}), ", ".join(plan.unsafe)
    approval = "a start of this plan waits until another person has approved it, within an hour"
    facts = Facts(
        {
            "plan": plan.hash,
            "to do": f"{command.verb} {plan.count} dead letters of tenant {command.tenant}",
            "until": command.selection.until.isoformat() if command.selection.until else None,
            "care": _care(plan),
            "edited": ", ".join(edited),
            "unsafe": f"{unsafe}: add --allow-unsafe to repeat them" if unsafe else None,
            "approval": approval if plan.approval_needed else None,
        }
    )
    notes = [plain(f"{group.pipeline}: {group.note}", "yellow") for group in plan.groups if group.note]
    return Group(facts, groups, *notes)


def _again(group: PlannedGroup) -> str:
    return ", ".join(f"{step.name} ({step.effect or 'effect not known'})" for step in group.run_again) or "none"


def _after(group: PlannedGroup) -> str:
    return ", ".join(group.afterwards) or "none"


def _care(plan: BulkPlan) -> str:
    command = plan.command
    rate = f"{command.rate:g} a second" if command.rate else "as fast as they are taken"
    canary = f"a canary of {command.canary} first, " if command.canary else ""
    return f"{canary}{command.parallelism} at once, {rate}, stop when more than {command.stop_percent:g} % fail"
