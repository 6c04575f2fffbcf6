"""`redrive run …` and `redrive modules` against a real worker process."""

import asyncio
import signal
import uuid
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.integration.cli.command import COMMAND, CommandLine

ADA = '{"name": "Ada"}'


async def test_start_prints_the_id_alone(redrive: CommandLine) -> None:
    """The id on stdout is all that a script has to read."""
    started = await redrive("run", "start", "hello", "--payload", ADA)
    run_id = started.out.strip()
    assert started.code == 0
    assert (await redrive("run", "status", run_id, "--json")).document["run_id"] == run_id


async def test_start_with_wait_shows_progress_and_result(redrive: CommandLine) -> None:
    """Steps are told as they change, and the result stands at the end."""
    said = await redrive("run", "start", "heal", "--wait")
    assert said.code == 0
    assert "heal  RETRYING  attempt 1 of 3  unknown: the terminal is restarting" in said.out
    assert "heal  SUCCESS  attempt 2 of 3" in said.out
    assert said.out.rstrip().endswith("result: {}")


@pytest.mark.parametrize("source", ["-", "--file=-"])
async def test_payload_comes_from_stdin(redrive: CommandLine, source: str) -> None:
    """A dash reads standard input, in both places where one may write it."""
    said = await redrive("run", "start", "hello", source, "--wait", "--json", stdin=ADA)
    assert said.document["output"] == {"text": "Hello, Ada!"}


async def test_payload_comes_from_a_file(redrive: CommandLine) -> None:
    """A relative path is taken from the current directory."""
    (redrive.directory / "ada.json").write_text(ADA)
    said = await redrive("run", "start", "hello", "--file", "ada.json", "--wait", "--json")
    assert said.document["output"] == {"text": "Hello, Ada!"}


async def test_a_step_that_is_tried_again_is_listed(redrive: CommandLine) -> None:
    """While it waits it is in the list, with the error; the status of the run has when it began."""
    tenant = f"tenant-{uuid.uuid4().hex[:12]}"
    run_id = (await redrive("run", "start", "linger", "--tenant", tenant)).out.strip()

    of = ("run", "retrying", "--tenant", tenant)

    async def listed() -> list[dict[str, object]]:
        return list((await redrive(*of, "--json")).document["retrying"])

    (row,) = await eventually(listed)
    table = await redrive(*of)
    status = (await redrive("run", "status", run_id, "--json")).document
    assert (row["run_id"], row["step"], row["attempt"], row["max_attempts"]) == (run_id, "linger", 1, 2)
    assert "unknown: the terminal is restarting" in table.out
    assert (status["steps"][0]["started_at"] is None, status["steps"][0]["finished_at"]) == (False, None)


async def test_same_key_gives_the_same_run(redrive: CommandLine) -> None:
    """A second start with the key prints the same id and says that nothing was started."""
    words = ["run", "start", "hello", "--payload", ADA, "--key", "cli:ada"]
    first, second = await redrive(*words), await redrive(*words)
    assert first.out == second.out
    assert "nothing new was started" in second.err
    assert (await redrive(*words, "--json")).document["is_cached"] is True


async def test_a_key_is_shown_listed_and_reset(redrive: CommandLine) -> None:
    """An operator sees whose run a key is, and lets it start another one; never while the run is open by accident."""
    tenant = f"tenant-{uuid.uuid4().hex[:12]}"
    of = ("--tenant", tenant)
    start = ("run", "start", "hello", "--payload", ADA, *of, "--key", "cli:keys", "--ttl", "7d")
    ended = (await redrive(*start, "--wait", "--json")).document
    answer = (await redrive(*start, "--json")).document
    shown = (await redrive("keys", "show", "cli:keys", *of, "--json")).document
    listed = (await redrive("keys", "list", *of, "--status", "completed", "--json")).document
    why = ("--reason", "a test", "--by", "ada", "--yes")
    reset = await redrive("keys", "reset", "cli:keys", *of, *why)
    anew = (await redrive(*start, "--json")).document
    audit = (await redrive("audit", "list", *of, "--json")).document
    assert (answer["is_cached"], answer["run_id"], answer["response"]) == (True, ended["run_id"], ended["output"])
    assert (shown["status"], shown["response"]) == ("completed", ended["output"])
    assert [row["key"] for row in listed["keys"]] == ["cli:keys"]
    assert (anew["is_cached"], anew["run_id"] != ended["run_id"]) == (False, True)
    assert anew["run_id"] in reset.out
    assert [line["action"] for line in audit] == ["key_reset"]


async def test_a_key_whose_run_is_open_is_reset_by_force_only(redrive: CommandLine) -> None:
    """The refusal says what to do; a key that nobody has is said to be unknown."""
    of = ("--tenant", f"tenant-{uuid.uuid4().hex[:12]}")
    why = ("--reason", "a test", "--by", "ada", "--yes")
    parked = await redrive("run", "start", "refuse", *of, "--key", "cli:open", "--wait", "--json")
    refused = await redrive("keys", "reset", "cli:open", *of, *why)
    forced = await redrive("keys", "reset", "cli:open", *of, *why, "--force")
    unknown = await redrive("keys", "show", "cli:nobody", *of)
    assert (parked.code, refused.code, forced.code, unknown.code) == (5, 1, 0, 1)
    assert "is open; wait for its end, cancel it, or reset with --force [key_in_use]" in refused.sentence
    assert "[key_not_found]" in unknown.sentence


@pytest.mark.parametrize("json", [[], ["--json"]])
async def test_parked_run_gives_exit_code_5(redrive: CommandLine, json: list[str]) -> None:
    """The error is shown as it is, markup of a terminal included, and stdout stays readable by a script."""
    said = await redrive("run", "start", "refuse", "--wait", *json)
    assert said.code == 5
    assert "/refuse`" in said.sentence
    assert said.sentence.endswith("[run_parked]")
    assert "the [red]card[/red] is stolen" in said.out
    if json:
        assert said.document["status"] == "DLQ_PENDING"


async def test_failed_run_gives_exit_code_3(redrive: CommandLine) -> None:
    """A run whose dead letter was discarded has FAILED: a wait for it says so."""
    words = ("run", "start", "refuse", "--key", "cli:failed", "--json")
    run_id = (await redrive(*words)).document["run_id"]
    letter = f"{run_id}/refuse"

    async def recorded() -> bool:
        return (await redrive("dlq", "show", letter)).code == 0

    await eventually(recorded)
    assert (await redrive("dlq", "discard", letter, "--reason", "a test", "--yes")).code == 0
    said = await redrive(*words, "--wait")
    assert said.code == 3
    assert said.sentence.endswith("[run_failed]")
    assert said.document["status"] == "FAILED"


async def test_canceled_run_gives_exit_code_4(redrive: CommandLine) -> None:
    """A run that somebody cancels ends the wait for it."""
    waiting = await redrive.start("run", "start", "wait", "--wait", "--key", "cli:canceled")
    run_id = await _started(waiting)
    said = await redrive("run", "cancel", run_id, "--reason", "a test", "--json")
    assert said.document == {"run_id": run_id, "requested": "cancel"}
    _, err = await waiting.communicate()
    assert waiting.returncode == 4
    assert err.decode() == f"redrive: run {run_id} was CANCELED [run_canceled]\n"


async def test_ctrl_c_ends_the_wait_and_not_the_run(redrive: CommandLine) -> None:
    """The run goes on, and its id is the last thing said."""
    waiting = await redrive.start("run", "start", "wait", "--wait")
    run_id = await _started(waiting)
    waiting.send_signal(signal.SIGINT)
    _, err = await waiting.communicate()
    assert waiting.returncode == 130
    assert err.decode() == f"no longer waiting; run {run_id} goes on: see `redrive run status {run_id}`\n"
    assert (await redrive("run", "status", run_id, "--json")).document["status"] == "RUNNING"
    assert (await redrive("run", "cancel", run_id, "--reason", "the test is over")).code == 0


async def _started(waiting: asyncio.subprocess.Process) -> str:
    assert waiting.stdout
    return (await waiting.stdout.readline()).decode().removesuffix(" started\n")


async def test_unknown_names_are_refused(redrive: CommandLine) -> None:
    """A pipeline, a payload and a run that do not fit are named, and the known ones with them."""
    pipeline = await redrive("run", "start", "helo")
    assert (pipeline.code, pipeline.out) == (1, "")
    assert "'helo'" in pipeline.sentence
    assert "hello" in pipeline.sentence
    assert "name" in (await redrive("run", "start", "hello", "--payload", '{"nmae": 1}')).sentence
    for words in (["status", "run-0"], ["cancel", "run-0", "--reason", "x"]):
        run = await redrive("run", *words)
        assert (run.code, run.out) == (1, "")
        assert "'run-0'" in run.sentence


async def test_ended_run_cannot_be_canceled(redrive: CommandLine) -> None:
    """The refusal says that the run has ended."""
    run_id = (await redrive("run", "start", "hello", "--payload", ADA, "--wait", "--json")).document["run_id"]
    said = await redrive("run", "cancel", run_id, "--reason", "too late")
    assert said.code == 1
    assert "has ended already" in said.sentence


async def test_list_shows_what_was_asked_for(redrive: CommandLine) -> None:
    """Tenant, pipeline and status narrow the list; the status may be written either way."""
    run_id = (await redrive("run", "start", "refuse", "--tenant", "lister", "--wait", "--json")).document["run_id"]
    await redrive("run", "start", "hello", "--payload", ADA, "--tenant", "lister", "--wait")

    async def listed(status: str) -> list[str]:
        said = await redrive("run", "list", "--tenant", "lister", "--status", status, "--json")
        return [row["run_id"] for row in said.document]

    assert await eventually(lambda: listed("dlq-pending")) == [run_id]
    assert await listed("DLQ_PENDING") == [run_id]
    first = await redrive("run", "list", "--tenant", "lister", "--limit", "1", "--json")
    assert (len(first.document), first.err) == (1, "there are more: add --limit 10\n")
    assert (await redrive("run", "list", "--tenant", "lister", "--limit", "2")).err == ""
    table = await redrive("run", "list", "--tenant", "lister", "--pipeline", "refuse")
    assert f" {run_id} " in table.out
    assert "refuse (validation)" in table.out
    assert len(table.out.splitlines()) == 2


async def test_empty_list_says_so(redrive: CommandLine) -> None:
    """A table without rows would look like a mistake; scripts get an empty list."""
    said = await redrive("run", "list", "--tenant", "nobody")
    assert (said.code, said.out, said.err) == (0, "", "no runs\n")
    assert (await redrive("run", "list", "--tenant", "nobody", "--json")).document == []


async def test_modules_lists_what_the_worker_knows(redrive: CommandLine) -> None:
    """People read fields and policies, scripts the schemas."""
    table = await redrive("modules")
    assert "reserve → charge → ship" in table.out
    assert "item, quantity" in table.out
    assert "dash (fast) → refuse" in table.out
    assert "2 s, fast" in table.out
    document = (await redrive("modules", "--json")).document
    hello = next(module for module in document["modules"] if module["name"] == "hello")
    assert hello["input_schema"]["required"] == ["name"]


async def test_without_a_worker_it_says_what_to_start(redrive: CommandLine) -> None:
    """Nobody on the task queue: a sentence within seconds, not a wait for ever."""
    said = await redrive("modules", REDRIVE_TASK_QUEUE="nobody-is-here")
    assert said.code == 1
    assert "`redrive worker`" in said.sentence


async def test_a_start_without_a_worker_says_that_the_run_waits(redrive: CommandLine) -> None:
    """The id is on stdout as ever; with --wait the command keeps waiting, and ends with the run when a worker comes."""
    queue = f"queue-{uuid.uuid4().hex[:12]}"
    ready = redrive.directory / queue
    started = await redrive("run", "start", "hello", "--payload", ADA, REDRIVE_TASK_QUEUE=queue)
    waiting = await redrive.start("run", "start", "hello", "--payload", ADA, "--wait", REDRIVE_TASK_QUEUE=queue)
    assert waiting.stderr
    told = (await waiting.stderr.readline()).decode()
    worker = await redrive.start(
        "worker", "--modules", "examples", REDRIVE_TASK_QUEUE=queue, REDRIVE_READY_FILE=str(ready)
    )
    out, _ = await asyncio.wait_for(waiting.communicate(), 60)
    worker.send_signal(signal.SIGTERM)
    await worker.communicate()
    assert (started.code, started.out.startswith("run-"), started.err) == (0, True, told)
    assert told.startswith("no worker is running: the run waits in Temporal")
    assert "redrive worker --modules" in told
    assert waiting.returncode == 0
    assert "Hello, Ada!" in out.decode()


async def test_migrate_tells_what_it_did(redrive: CommandLine) -> None:
    """A schema that is up to date stays as it is."""
    assert (await redrive("migrate")).out == "the schema is up to date\n"
    assert (await redrive("migrate", "--json")).document == {"applied": []}


async def test_closed_pipe_is_no_error_to_show(redrive: CommandLine, tmp_path: Path) -> None:
    """`redrive modules --json | head -1` prints one line and no traceback."""
    process = await asyncio.create_subprocess_shell(
        f"{COMMAND} modules --json | head -c 1; {COMMAND} modules --help | true",
        env=redrive.variables | {"PATH": "/usr/bin:/bin"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert (out.decode(), err.decode()) == ("{", "")


async def test_labels_are_given_and_filtered_by(redrive: CommandLine) -> None:
    """A run is listed by its labels, several of which all have to fit; a wrong label is explained."""
    name = uuid.uuid4().hex
    started = await redrive(
        "run", "start", "hello", "--payload", ADA, "--label", f"mission_id={name}", "--label", "stage_id=2", "--wait"
    )
    assert started.code == 0

    async def listed(*labels: str) -> list[str]:
        words = [word for label in labels for word in ("--label", label)]
        return [row["run_id"] for row in (await redrive("run", "list", *words, "--json")).document]

    [run_id] = await eventually(lambda: listed(f"mission_id={name}", "stage_id=2"))
    assert await listed(f"mission_id={name}", "stage_id=3") == []
    assert (await redrive("run", "status", run_id, "--json")).document["labels"] == {
        "mission_id": name,
        "stage_id": "2",
    }
    wrong = await redrive("run", "start", "hello", "--payload", ADA, "--label", "mission")
    assert wrong.code != 0
    assert "a label is name=value" in wrong.err
    nothing = await redrive("dlq", "list", "--label", f"mission_id={name}", "--json")
    assert nothing.document["dead_letters"] == []
