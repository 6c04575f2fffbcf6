"""`redrive bulk …`: its commands. Each is imported when it is called: lists do without Temporal's SDK."""

from cyclopts import App

app = App(name="bulk")
app.command("redrive.starter.cli.bulk.commands:plan", help="Show what a bulk operation would do, and its hash.")
app.command("redrive.starter.cli.bulk.commands:replay", help="Replay all dead letters that match.")
app.command("redrive.starter.cli.bulk.commands:resolve", help="Resolve all dead letters that match with one output.")
app.command(
    "redrive.starter.cli.bulk.commands:discard",
    name=["discard", "ignore"],
    help="Discard all dead letters that match; their runs end FAILED.",
)
app.command("redrive.starter.cli.bulk.lists:show", help="Show a bulk operation: its progress, and how it ended.")
app.command("redrive.starter.cli.bulk.watch:watch", help="Follow a bulk operation until it has ended.")
app.command("redrive.starter.cli.bulk.lists:list_operations", name="list", help="List the newest bulk operations.")
app.command("redrive.starter.cli.bulk.lists:items", help="List the items of a bulk operation and their outcomes.")
app.command("redrive.starter.cli.bulk.controls:pause", help="Send nothing more for now; commands under way finish.")
app.command("redrive.starter.cli.bulk.controls:resume", help="Continue after a pause.")
app.command("redrive.starter.cli.bulk.controls:stop", help="End it: commands under way finish, the rest is skipped.")
app.command("redrive.starter.cli.bulk.controls:approve", help="Approve a plan that somebody else tried to start.")
