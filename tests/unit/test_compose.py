"""The compose stack agrees with the code: no engine is needed to see that names, images and variables fit."""

import re
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from pydantic_settings import BaseSettings

from redrive.bridges.events.settings import EventSettings
from redrive.bridges.rabbitmq.settings import RetrySettings
from redrive.contracts import LABELS_ATTRIBUTE, SearchAttribute
from redrive.outbox.settings import OutboxSettings
from redrive.settings import Settings

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
BRIDGES: dict[str, type[BaseSettings]] = {
    "bridge-redis": EventSettings,
    "bridge-rabbitmq": RetrySettings,
    "bridge-outbox": OutboxSettings,
}
# The console replays events, and has to know their pipelines; it lists the rows of the outbox.
WITH_SETTINGS_OF_THEIR_OWN: dict[str, tuple[type[BaseSettings], ...]] = {
    **{name: (settings,) for name, settings in BRIDGES.items()},
    "console": (EventSettings, OutboxSettings),
    "outbox-install": (OutboxSettings,),
}
DOCKERFILE = (ROOT / "Dockerfile").read_text()

# The embedded stack keeps its state there, and a profile is a file: neither exists in a container.
NOT_IN_CONTAINERS = {"REDRIVE_STATE_DIR", "TEMPORAL_PROFILE"}
# Read by OpenTelemetry itself.
OF_TRACES = {
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
}
# No process that runs on has the owner's login.
OF_THE_MIGRATION = {"REDRIVE_OWNER_DATABASE_URL"}
OF_THE_CONSOLE = {
    "REDRIVE_ACCESS_DATABASE_URL",
    "REDRIVE_CONSOLE_ADDRESS",
    "REDRIVE_CONSOLE_URL",
    "REDRIVE_OIDC",
    "REDRIVE_RATE_LIMIT",
    "REDRIVE_STRANGER_LIMIT",
    "REDRIVE_TENANT_LIMITS",
    "REDRIVE_HEADER_TIMEOUT",
    "REDRIVE_BODY_TIMEOUT",
    "REDRIVE_MAX_CONNECTIONS",
    "REDRIVE_SESSION_LIFETIME",
    "REDRIVE_WEB_UI",
    "REDRIVE_WEB_UI_PROXY",
}


def environment_names(settings: type[BaseSettings]) -> set[str]:
    prefix = settings.model_config["env_prefix"]
    return {
        cast("str", field.validation_alias) if field.validation_alias else (prefix + name).upper()
        for name, field in settings.model_fields.items()
    }


def copied_into_image() -> list[str]:
    return [source for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE) for source in line.split()[:-1]]


def test_our_services_are_the_migration_the_worker_the_console_and_the_bridges() -> None:
    """The stack runs seven commands of ours from one image, tagged with the project's version."""
    assert {name: service["command"] for name, service in OURS.items()} == {
        "migrate": ["migrate"],
        "worker": ["worker"],
        "console": ["console"],
        "bridge-redis": ["bridge", "redis"],
        "bridge-rabbitmq": ["bridge", "rabbitmq"],
        "outbox-install": ["outbox", "install"],
        "bridge-outbox": ["bridge", "outbox"],
    }
    assert {service["image"] for service in OURS.values()} == {f"redrive:{PROJECT['version']}"}


@pytest.mark.parametrize("name", sorted(OURS))
def test_every_variable_of_our_services_is_a_setting(name: str) -> None:
    """A variable that the settings do not know would be ignored in silence."""
    own = (environment_names(settings) for settings in WITH_SETTINGS_OF_THEIR_OWN.get(name, ()))
    assert set(OURS[name]["environment"]) - OF_TRACES <= environment_names(Settings).union(*own)


@pytest.mark.parametrize("name", sorted(OURS))
def test_every_process_of_ours_can_be_told_to_trace(name: str) -> None:
    """A trace that one of them does not take on would end there."""
    assert set(OURS[name]["environment"]) >= OF_TRACES


def test_the_worker_can_be_given_every_setting() -> None:
    """A new setting is handed to the worker, or is named here as one that means nothing to it, or in a container."""
    asked = environment_names(Settings) - NOT_IN_CONTAINERS - OF_THE_CONSOLE - OF_THE_MIGRATION
    assert set(OURS["worker"]["environment"]) - OF_TRACES == asked


def test_the_console_can_be_given_its_settings() -> None:
    """A setting that is the console's own is handed to it."""
    own = {"REDRIVE_EVENTS_PIPELINES", "REDRIVE_EVENTS_LABELS", "OUTBOX_URL"}
    assert set(OURS["console"]["environment"]) >= OF_THE_CONSOLE | own


def test_each_process_has_the_login_that_it_needs() -> None:
    """Only what makes tables and ends has the owner's login, only the console the one that lets people in."""
    names = ("DATABASE_URL", "REDRIVE_ACCESS_DATABASE_URL", "REDRIVE_OWNER_DATABASE_URL")
    users = {
        service: [re.match(r"postgresql://(\w+):", given["environment"].get(name, "")) for name in names]
        for service, given in OURS.items()
    }
    logins = {service: [found and found[1] for found in each] for service, each in users.items()}
    assert logins == {
        "migrate": ["redrive_app", None, "redrive"],
        "worker": ["redrive_app", None, None],
        "console": ["redrive_app", "redrive_console", None],
        "bridge-redis": ["redrive_app", None, None],
        "bridge-rabbitmq": ["redrive_app", None, None],
        "outbox-install": ["redrive_app", None, "redrive"],
        "bridge-outbox": ["redrive_app", None, None],
    }


def test_console_is_healthy_once_it_answers() -> None:
    """The health check asks where the console listens, and that port is published."""
    console = SERVICES["console"]
    port = console["environment"]["REDRIVE_CONSOLE_ADDRESS"].rpartition(":")[2]
    assert f"http://127.0.0.1:{port}/healthz" in console["healthcheck"]["test"][-1]
    assert console["ports"] == [f"127.0.0.1:{port}:{port}"]


@pytest.mark.parametrize("name", BRIDGES)
def test_a_bridge_can_be_given_every_setting_of_its_own(name: str) -> None:
    """A new setting of a bridge is handed to its container."""
    assert environment_names(BRIDGES[name]) <= set(OURS[name]["environment"])


@pytest.mark.parametrize("name", BRIDGES)
def test_a_broker_and_its_bridge_come_with_a_profile_of_their_name(name: str) -> None:
    """Nobody gets a broker that was not asked for, nor one of them without the other."""
    profile = name.removeprefix("bridge-")
    # The outbox is in the stack's own PostgreSQL.
    broker = "outbox-install" if profile == "outbox" else profile
    assert [SERVICES[broker]["profiles"], SERVICES[name]["profiles"]] == [[profile], [profile]]


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - OURS.keys()))
def test_images_are_pinned_to_a_full_version(name: str) -> None:
    """An image has a tag of three numbers, or two where the project itself counts in two (PostgreSQL), and a digest."""
    pinned = r"((temporalio|valkey)/)?[a-z-]+:\d+\.\d+(\.\d+)?@sha256:[0-9a-f]{64}"
    assert re.fullmatch(pinned, SERVICES[name]["image"])


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_dependencies_can_be_met(name: str) -> None:
    """What waits for health waits for a service with a health check; what waits for an end waits for one that ends."""
    for other, rule in SERVICES[name].get("depends_on", {}).items():
        if rule["condition"] == "service_healthy":
            assert SERVICES[other]["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}
        else:
            assert rule["condition"] == "service_completed_successfully"
            assert SERVICES[other]["restart"].startswith("on-failure")


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_ports_are_bound_to_loopback(name: str) -> None:
    """Temporal has no authentication of its own, so nothing listens beyond the machine."""
    for port in SERVICES[name].get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_passwords_come_from_outside(name: str) -> None:
    """A password has no default: compose refuses to start and says which one is missing."""
    for variable, value in SERVICES[name].get("environment", {}).items():
        if re.search(r"PASSWORD|PWD|_PASS$|DATABASE_URL|RABBITMQ_URL", variable):
            assert re.search(r"\$\{[A-Z_]+:\?set [A-Z_]+ in \.env\}", value)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_mounts_exist(name: str) -> None:
    """A mounted directory is in the repository, a mounted volume is declared."""
    for volume in SERVICES[name].get("volumes", []):
        source = volume.split(":")[0]
        assert (ROOT / source).is_dir() if source.startswith("./") else source in COMPOSE["volumes"]


def test_setup_scripts_exist() -> None:
    """What the set-up services run lies in the directory that is mounted for them."""
    for name in ("temporal-schema", "temporal-namespace"):
        script = SERVICES[name]["command"][0]
        assert (ROOT / "deploy/temporal" / Path(script).relative_to("/setup")).is_file()


def test_search_attributes_are_those_of_the_contracts() -> None:
    """The namespace gets exactly the search attributes that runs set."""
    assert SERVICES["temporal-namespace"]["command"][1:] == [*SearchAttribute, f"{LABELS_ATTRIBUTE}=KeywordList"]


def test_worker_and_namespace_setup_name_the_same_server() -> None:
    """The worker, the set-up and the Web UI talk to one server and one namespace."""
    worker, setup, ui = (SERVICES[name]["environment"] for name in ("worker", "temporal-namespace", "temporal-ui"))
    assert worker["TEMPORAL_ADDRESS"] == setup["TEMPORAL_ADDRESS"] == ui["TEMPORAL_ADDRESS"] == "temporal:7233"
    assert worker["TEMPORAL_NAMESPACE"] == setup["TEMPORAL_NAMESPACE"] == ui["TEMPORAL_DEFAULT_NAMESPACE"]


def test_two_workers_run_side_by_side() -> None:
    """One worker may be restarted while the other goes on."""
    assert SERVICES["worker"]["deploy"]["replicas"] == 2


@pytest.mark.parametrize("name", ["worker", "bridge-redis"])
def test_process_is_healthy_once_it_takes_work(name: str) -> None:
    """The health check looks for the file that the process makes, where no earlier one can have left it."""
    worker = SERVICES[name]
    ready = Path(worker["environment"]["REDRIVE_READY_FILE"])
    assert worker["healthcheck"]["test"] == ["CMD", "test", "-f", str(ready)]
    assert str(ready.parent) in worker["tmpfs"]


def test_worker_may_finish_its_steps_before_it_is_killed() -> None:
    """Compose waits longer for the worker to stop than the worker waits for its steps."""
    patience = timedelta(seconds=int(SERVICES["worker"]["stop_grace_period"].removesuffix("s")))
    assert patience > Settings.model_fields["shutdown_grace"].default


def test_dynamic_config_serves_short_delays_takes_turns_and_bounds_work_by_connections() -> None:
    """The server reads the file that makes it serve short delays on time, tenants by turns, and no more than it can."""
    path = Path(SERVICES["temporal"]["environment"]["DYNAMIC_CONFIG_FILE_PATH"])
    config = yaml.safe_load((ROOT / "deploy/temporal" / path.relative_to("/setup")).read_text())
    # That the others are also the embedded server's: tests/unit/starter/test_temporal_server.py.
    assert {name: values[0]["value"] for name, values in config.items()} == {
        "history.timerProcessorMaxTimeShift": "20ms",
        "history.transferProcessorMaxPollRPS": 1000,
        "history.timerProcessorMaxPollRPS": 1000,
        "history.visibilityProcessorMaxPollRPS": 4,
        "history.transferProcessorSchedulerWorkerCount": 32,
        "history.timerProcessorSchedulerWorkerCount": 32,
        "history.visibilityProcessorSchedulerWorkerCount": 32,
        "matching.enableFairness": True,
        "matching.numTaskqueueReadPartitions": 1,
        "matching.numTaskqueueWritePartitions": 1,
        "system.forceSearchAttributesCacheRefreshOnRead": False,
        "system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute": 2,
    }


def test_image_has_a_python_that_the_project_supports() -> None:
    """The base image's Python is pinned and not older than the project asks for."""
    found = re.search(r"^FROM python:(\d+)\.(\d+)\.\d+-slim-\w+@sha256:[0-9a-f]{64}$", DOCKERFILE, re.MULTILINE)
    assert found
    wanted = PROJECT["requires-python"].removeprefix(">=").split(".")
    assert [int(part) for part in found.groups()] >= [int(part) for part in wanted]


def test_image_runs_as_an_ordinary_user() -> None:
    """The last user of the image is not root, and installing is done before."""
    assert re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE) == ["redrive"]
    assert DOCKERFILE.rindex("\nRUN ") < DOCKERFILE.index("\nUSER ")


def test_image_holds_all_that_the_wheel_needs() -> None:
    """Every package of the wheel is copied, everything copied exists, and the builder gets to see it."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    copied = copied_into_image()
    wheel = tool["hatch"]["build"]["targets"]["wheel"]
    assert {*wheel["packages"], *wheel["force-include"]} <= set(copied)
    assert all((ROOT / source).exists() for source in copied)
    shown = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(copied) == shown


def test_image_holds_no_embedded_servers() -> None:
    """What only `redrive up` and the demo need is an extra that the image is made without."""
    pinned = re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements-image.txt").read_text(), re.MULTILINE)
    embedded = {re.split("[>;=]", each)[0] for each in PROJECT["optional-dependencies"]["embedded"]}
    assert embedded
    assert not embedded & set(pinned)
    assert "-r requirements-image.txt" in DOCKERFILE


@pytest.mark.parametrize("name", [".env.example", "docs/operations.md"])
def test_every_setting_is_documented(name: str) -> None:
    """A setting that is not written down does not exist for those who run Redrive."""
    text = (ROOT / name).read_text()
    settings = environment_names(Settings).union(OF_TRACES, *map(environment_names, BRIDGES.values()))
    assert [known for known in sorted(settings) if not re.search(rf"\b{known}\b", text)] == []


def test_environment_example_names_every_variable_of_the_compose_file() -> None:
    """Whoever copies the example has every variable that the compose file asks for."""
    asked = set(re.findall(r"\$\{([A-Z_]+)", (ROOT / "docker-compose.yml").read_text()))
    offered = set(re.findall(r"^#? ?([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert asked <= offered
