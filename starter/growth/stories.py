"""The plan's five integration tests and four staging drills. Each plays on the running example and returns facts."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import asyncpg

from redrive import RunStatus
from redrive.dead_letters import Replay
from redrive.errors import RedriveError
from redrive.examples.growth.database import open_mission
from redrive.examples.growth.services import gitea as gitea_service
from redrive.examples.site import Request
from redrive.starter.growth.system import TENANT, Candidate, GrowthSystem, until

Facts = dict[str, Any]
PROJECTED = dict.fromkeys(("qscore", "service-session", "mission-stage", "artifact"), "succeeded")


@dataclass(frozen=True)
class Story:
    """A sentence of the plan, how it is tried, and what is then true."""

    title: str
    play: Callable[[GrowthSystem], Awaitable[Facts]]
    expected: Facts


async def duplicate_command(system: GrowthSystem) -> Facts:
    """Send one command eight times at once, and once more when its run has ended."""
    ann = Candidate.new()
    before = len(system.services.places["interview"].site.received)

    key = ann.key("workflow", "interview:run")
    commands = [system.start("interview-module", ann, ann.mission, key=key) for _ in range(8)]
    run_ids = set(await asyncio.gather(*commands))
    view = await system.settled(next(iter(run_ids)))
    run_ids.add(await system.start("interview-module", ann, ann.mission, key=key))
    calls = len(system.services.places["interview"].site.received) - before
    return {"commands": 9, "runs": len(run_ids), "status": view.status.value, "service calls": calls}


async def duplicate_event(system: GrowthSystem) -> Facts:
    """Send an event, wait for its projections, and send it twice more."""
    ann = await _with_mission(system)
    event = ann.completed(clarity=82, depth=64)
    await system.acknowledged([await system.emit(event)])
    projected = await system.projected(ann)
    state = await system.state(ann)
    await system.acknowledged([await system.emit(event) for _ in range(2)])
    return {
        "entries": 3,
        "stored": len(await system.stored(ann)),
        "projectors": projected,
        "state is the same": await system.state(ann) == state,
    }


async def late_acknowledgement(system: GrowthSystem) -> Facts:
    """Keep the record of a failed message from being written, look at the message, then let it be written."""
    ann = Candidate.new()
    event = ann.completed(clarity=82)
    event["payload"]["scores"] = "high"
    async with _unwritable_records(system) as blocked:
        entry = await system.emit(event)
        await until(blocked, "the bridge's attempt to record the failure")
        meanwhile = (await system.is_held(entry), await system.dead_entries(entry))
    await system.acknowledged([entry])
    dead = await system.dead_event(entry)
    return {
        "while nothing is recorded": {"unacknowledged": meanwhile[0], "on grow.events.dlq": meanwhile[1]},
        "acknowledged with": {
            "record": dead.status.value if dead else None,
            "on grow.events.dlq": await system.dead_entries(entry),
        },
    }


async def failed_projector(system: GrowthSystem) -> Facts:
    """Complete an interview of a mission that does not exist; create the mission, and replay what failed."""
    ann = Candidate.new()
    await system.acknowledged([await system.emit(ann.completed(clarity=82, depth=64))])
    failed = await system.projected(ann)
    (event,) = await system.stored(ann)
    letters = await until(lambda: system.letters(ann), "the dead letter, by its label")
    await open_mission(system.tables, ann.mission_instance_id, "interview", ann.user)
    command = _command("the mission exists now")

    async def accepted() -> bool:
        # A moment after the projector's record: its dead letter has to be there as well.
        answers = await system.replays.event(TENANT, event.id, [], command)
        return all(answer.accepted for answer in answers)

    await until(accepted, "replay of the event")
    view = await system.settled(event.run_id)
    return {
        "before": failed,
        "dead letters by label": [letter.step for letter in letters],
        "run": view.status.value,
        "after": await system.projections(ann),
    }


async def repeated_prompt(system: GrowthSystem) -> Facts:
    """Run a mission; the answers to the agent's prompt and to the plan's file are lost once each."""
    ann = await _with_workspace(system)
    agent, places = system.services.opencode, system.services.places
    with _lost_once(system, "opencode", "prompt_async"), _lost_once(system, "gitea", "/contents/"):
        worked, posted = len(agent.worked), _count(places["gitea"].site.received, "POST", "/contents/plans")
        view = await system.settled(await system.start("mission", ann, ann.mission, key=ann.key("mission", "start")))
    artifacts = (await system.state(ann))["artifacts"]
    files = [path for owner, _, path in system.services.gitea.files if owner == f"{ann.user}/work"]
    return {
        "status": view.status.value,
        "attempts": {step.name: step.attempt for step in view.steps},
        "prompts that the agent worked on": len(agent.worked) - worked,
        "requests for the file": _count(places["gitea"].site.received, "POST", "/contents/plans") - posted,
        "files": len([path for path in files if path.startswith("plans/")]),
        "artifact rows": len(artifacts),
    }


async def stopped_service(system: GrowthSystem) -> Facts:
    """Stop the interview service, run the interview module; start the service, and replay."""
    ann = Candidate.new()
    site = system.services.places["interview"].site
    await site.stop()
    run_id = await system.start("interview-module", ann, ann.mission, key=ann.key("workflow", "interview:run"))
    view = await system.settled(run_id)
    (letter,) = await until(lambda: system.letters(ann), "the dead letter, by its label")
    await site.start()
    after = await system.replay(run_id, "interview", "the interview service is back")
    sessions = [session for session in system.services.interview.sessions.values() if session["user"] == ann.user]
    return {
        "run": view.status.value,
        "attempts": len(view.steps[0].attempts),
        "dead letter": (letter.category.value, letter.attempt_count),
        "after the replay": after.status.value,
        "sessions": len(sessions),
    }


async def burst_of_duplicates(system: GrowthSystem) -> Facts:
    """Send one event ten times at once, to two bridges."""
    ann = await _with_mission(system)
    event = ann.completed(clarity=90, depth=71)
    async with system.bridge():
        entries = await asyncio.gather(*(system.emit(event) for _ in range(10)))
        await system.acknowledged(entries)
        projected = await system.projected(ann)
    rows = {table: len(found) for table, found in (await system.state(ann)).items()}
    stored = len(await system.stored(ann))
    return {"entries": len(entries), "grow_events": stored, "projectors": projected, "rows": rows}


async def broken_token(system: GrowthSystem) -> Facts:
    """Provision a stack; the token breaks half-way. Fix it, and replay."""
    ann = Candidate.new()
    server = system.services.gitea
    with _lost_once(system, "gitea", "/admin/users"), _token_that_breaks_after(system, f"/users/{ann.user}"):
        run_id = await system.start("provision-workspace", ann, _workspace(ann))
        view = await system.settled(run_id)
        (letter,) = await until(lambda: system.letters(ann), "the dead letter, by its label")
        there = _on_gitea(system, ann)
    server.token = gitea_service.TOKEN
    after = await system.replay(run_id, "create-repository", "the token is fixed")
    return {
        "steps": {step.name: step.status.value for step in view.steps},
        "create-user": [attempt.category.value for attempt in view.steps[0].attempts],
        "dead letter": (letter.step, letter.category.value, letter.attempt_count),
        "on Gitea": there,
        "after the replay": after.status.value,
        "on Gitea then": _on_gitea(system, ann),
    }


async def dead_event(system: GrowthSystem) -> Facts:
    """Send an event with scores that are none. Correct it, and replay it from the dead letter queue."""
    ann = await _with_mission(system)
    event = ann.completed(clarity=82)
    event["payload"]["scores"] = "high"
    entry = await system.emit(event)
    await system.acknowledged([entry])
    dead = await system.dead_event(entry)
    if dead is None:
        raise RedriveError(f"entry {entry} was acknowledged without a record")
    before = await _progress(system, ann)
    patch = {"payload": {"scores": {"clarity": 82, "depth": 64}}}
    await system.replays.dead_event(TENANT, dead.id, _command("the scores were corrected", patch))
    await system.projected(ann)
    replayed = await system.dead_event(entry)
    return {
        "before": (dead.status.value, *before),
        "after": (replayed.status.value if replayed else None, *await _progress(system, ann)),
    }


async def _with_mission(system: GrowthSystem) -> Candidate:
    candidate = Candidate.new()
    await open_mission(system.tables, candidate.mission_instance_id, "interview", candidate.user)
    return candidate


async def _with_workspace(system: GrowthSystem) -> Candidate:
    candidate = Candidate.new()
    run_id = await system.start("provision-workspace", candidate, _workspace(candidate))
    view = await system.settled(run_id)
    if view.status is not RunStatus.SUCCESS:
        raise RedriveError(f"run {run_id} is {view.status}: {view.error}")
    return candidate


def _workspace(candidate: Candidate) -> dict[str, Any]:
    return {"user": candidate.user, "email": f"{candidate.user}@example.com", "repository": "work"}


def _command(reason: str, input_patch: dict[str, Any] | None = None) -> Replay:
    return Replay(request_id=f"growth-{uuid.uuid4().hex}", requested_by="ops", reason=reason, input_patch=input_patch)


async def _progress(system: GrowthSystem, candidate: Candidate) -> tuple[int, dict[str, int]]:
    """Return the mission's progress and the user's scores."""
    progress = await system.tables.fetchval(
        "SELECT progress FROM growth.mission_instances WHERE id = $1", candidate.mission_instance_id
    )
    rows = await system.tables.fetch(
        "SELECT signal_id, score FROM growth.qscore_latest WHERE user_id = $1", candidate.user
    )
    return progress, {row["signal_id"]: row["score"] for row in rows}


def _on_gitea(system: GrowthSystem, candidate: Candidate) -> list[str]:
    """Return what the server has of a candidate."""
    server, owner = system.services.gitea, candidate.user
    found = ["user"] if owner in server.users else []
    found += ["repository"] if f"{owner}/work" in server.repositories else []
    return found + sorted(path for full, _, path in server.files if full == f"{owner}/work")


def _count(requests: list[Request], method: str, part: str) -> int:
    return sum(request.method == method and part in request.path for request in requests)


@contextlib.contextmanager
def _hook(system: GrowthSystem, service: str, lose: Callable[[Request], bool]) -> Iterator[None]:
    """Decide which answers of a service are lost, besides those that are lost already."""
    place = system.services.places[service]
    former = place.lose
    place.lose = lambda request: former(request) or lose(request)
    try:
        yield
    finally:
        place.lose = former


def _lost_once(system: GrowthSystem, service: str, part: str) -> AbstractContextManager[None]:
    """Lose the answer to the first request that writes to such a path. What it asks for is done."""
    left = 1

    def lose(request: Request) -> bool:
        nonlocal left
        lost = bool(left and request.method == "POST" and part in request.path)
        left -= lost
        return lost

    return _hook(system, service, lose)


def _token_that_breaks_after(system: GrowthSystem, part: str) -> AbstractContextManager[None]:
    """Have Gitea refuse the token once such a path was read."""

    def rotate(request: Request) -> bool:
        if part in request.path and request.method == "GET":
            system.services.gitea.token = "rotated"  # noqa: S105 - of a stand-in
        return False

    return _hook(system, "gitea", rotate)


@contextlib.asynccontextmanager
async def _unwritable_records(system: GrowthSystem) -> AsyncIterator[Callable[[], Awaitable[bool]]]:
    """Let no record of a dead event be written; yields a question: does somebody wait to write one?"""
    owner = await asyncpg.connect(system.owner_url)

    async def blocked() -> bool:
        waiting = "SELECT FROM pg_locks WHERE relation = 'redrive.dead_events'::regclass AND NOT granted"
        return bool(await owner.fetch(waiting))

    try:
        async with owner.transaction():
            await owner.execute("LOCK TABLE redrive.dead_events IN SHARE MODE")
            yield blocked
    finally:
        await owner.close()


TESTS = (
    Story(
        "a duplicate run command does not duplicate the service call",
        duplicate_command,
        {"commands": 9, "runs": 1, "status": "SUCCESS", "service calls": 1},
    ),
    Story(
        "a duplicate event is stored once, and its projection remains stable",
        duplicate_event,
        {"entries": 3, "stored": 1, "projectors": PROJECTED, "state is the same": True},
    ),
    Story(
        "a failed Redis message is not acknowledged until its failure is recorded",
        late_acknowledgement,
        {
            "while nothing is recorded": {"unacknowledged": True, "on grow.events.dlq": 0},
            "acknowledged with": {"record": "pending", "on grow.events.dlq": 1},
        },
    ),
    Story(
        "a replay reprocesses a failed event and updates the projectors' status",
        failed_projector,
        {
            "before": {"qscore": "succeeded", "service-session": "succeeded", "mission-stage": "failed"},
            "dead letters by label": ["mission-stage"],
            "run": "SUCCESS",
            "after": PROJECTED,
        },
    ),
    Story(
        "a retried OpenCode module does not create duplicate artifact rows",
        repeated_prompt,
        {
            "status": "SUCCESS",
            "attempts": {"open-mission": 1, "interview": 1, "brief": 1, "interview-plan": 2, "publish-plan": 2},
            "prompts that the agent worked on": 1,
            "requests for the file": 2,
            "files": 1,
            "artifact rows": 1,
        },
    ),
)
DRILLS = (
    Story(
        "stop the interview service, run the interview module",
        stopped_service,
        {
            "run": "DLQ_PENDING",
            "attempts": 3,
            "dead letter": ("network", 3),
            "after the replay": "SUCCESS",
            "sessions": 1,
        },
    ),
    Story(
        "emit duplicate Redis events",
        burst_of_duplicates,
        {
            "entries": 10,
            "grow_events": 1,
            "projectors": PROJECTED,
            "rows": {
                "mission_instances": 1,
                "mission_stages": 1,
                "qscore_latest": 2,
                "mission_service_sessions": 1,
                "artifacts": 1,
            },
        },
    ),
    Story(
        "break the Gitea token, provision a stack",
        broken_token,
        {
            "steps": {"create-user": "SUCCESS", "create-repository": "DLQ", "add-files": "PENDING"},
            "create-user": ["provider_5xx"],
            "dead letter": ("create-repository", "provider_4xx", 1),
            "on Gitea": ["user"],
            "after the replay": "SUCCESS",
            "on Gitea then": ["user", "repository", "README.md"],
        },
    ),
    Story(
        "replay a dead event",
        dead_event,
        {"before": ("pending", 0, {}), "after": ("replayed", 25, {"clarity": 82, "depth": 64})},
    ),
)
