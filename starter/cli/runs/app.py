"""`redrive run …`: its commands. Each is imported when it is called: a list of runs loads no models."""

from cyclopts import App

app = App(name="run")
app.command("redrive.starter.cli.runs.commands:start", help="Start a run of PIPELINE and print its id.")
app.command("redrive.starter.cli.runs.commands:status", help="Show a run's steps, attempts, errors and result.")
app.command("redrive.starter.cli.runs.lists:list_runs", name="list", help="List runs, newest first.")
app.command(
    "redrive.starter.cli.runs.commands:list_retrying",
    name="retrying",
    help="List the steps in retry, and failing activities of other workflows.",
)
app.command(
    "redrive.starter.cli.runs.commands:pause_activity",
    name="pause-activity",
    help="Pause a failing activity of a workflow that is no pipeline run.",
)
app.command(
    "redrive.starter.cli.runs.commands:unpause_activity",
    name="unpause-activity",
    help="Let a paused activity of a workflow that is no pipeline run go on.",
)
app.command(
    "redrive.starter.cli.runs.commands:retry_activity",
    name="retry-activity",
    help="Have a failing activity of a workflow that is no pipeline run tried again now.",
)
app.command("redrive.starter.cli.runs.commands:cancel", help="Cancel an open run.")
app.command(
    "redrive.starter.cli.runs.commands:go_on",
    name="continue",
    help="Let a PARTIAL run continue with its later steps.",
)
