"""Settings, read once from the environment in an entry point and passed on. Also: how long records are kept."""

import os
import re
from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, DotEnvSettingsSource, NoDecode, SettingsConfigDict, SettingsError

from redrive.contracts import ALERT_WINDOW, TASK_QUEUE
from redrive.errors import InvalidInput
from redrive.field_types import header_problem
from redrive.places import ENV_FILE, STATE_DIR
from redrive.redaction.redactor import Redactor

# The database's function refuses less, whoever asks.
AUDIT_FLOOR: Final = timedelta(days=30)
_SHORTEST: Final = timedelta(days=1)
Kept = Annotated[timedelta, Field(ge=_SHORTEST)]
SettingsOf = TypeVar("SettingsOf", bound=BaseSettings)
# What Temporal accepts.
Weight = Annotated[float, Field(ge=0.001, le=1000)]


class RecordKind(StrEnum):
    """The kinds of records with their own retention."""

    RUNS = "runs"
    DEAD_LETTERS = "dead_letters"
    EVENTS = "events"
    DEAD_EVENTS = "dead_events"
    DEAD_MESSAGES = "dead_messages"
    BULK = "bulk"
    APPROVALS = "approvals"
    AUDIT = "audit"


class RetentionSettings(BaseModel):
    """How long each kind is kept once it is closed; None: forever."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    runs: Kept | None = timedelta(days=90)
    dead_letters: Kept | None = timedelta(days=90)
    events: Kept | None = timedelta(days=90)
    dead_events: Kept | None = timedelta(days=90)
    dead_messages: Kept | None = timedelta(days=90)
    bulk: Kept | None = timedelta(days=90)
    approvals: Kept | None = timedelta(days=90)
    audit: Annotated[timedelta, Field(ge=AUDIT_FLOOR)] | None = timedelta(days=400)

    def of(self, kind: RecordKind) -> timedelta | None:
        """Return how long a kind is kept."""
        kept: timedelta | None = getattr(self, kind.value)
        return kept

    def only(self, kinds: set[RecordKind]) -> "RetentionSettings":
        """Return the same for these kinds only; the others are kept."""
        return self.model_copy(update={kind.value: None for kind in RecordKind if kind not in kinds})


class ServiceSettings(BaseModel):
    """The address of a service and its credentials."""

    model_config = ConfigDict(defer_build=True)

    base_url: str
    token: SecretStr | None = None
    private_addresses: bool = Field(default=False, description="whether its name may lead to a private address")
    health: str | None = Field(
        default=None, pattern=r"^/[!-~]*$", description="the path of its health endpoint; none: it is not probed"
    )

    @field_validator("token")
    @classmethod
    def _sendable(cls, token: SecretStr | None) -> SecretStr | None:
        problem = header_problem(token.get_secret_value()) if token else None
        if problem:
            raise ValueError(f"it is sent as an HTTP header and {problem}")
        return token


class AlertSettings(BaseModel):
    """Where and how often to send alerts on dead letters."""

    model_config = ConfigDict(defer_build=True)

    sentry_dsn: SecretStr | None = None
    webhook_url: str | None = None
    webhook_secret: SecretStr | None = Field(default=None, description="signs the webhook's body (HMAC-SHA256)")
    window: timedelta = Field(
        default=ALERT_WINDOW, gt=timedelta(0), description="failures that look alike are one alert in this time"
    )


class AnchorSettings(BaseModel):
    """Where the heads of the audit log are recorded, besides the process's log: an append-only file, a webhook."""

    model_config = ConfigDict(defer_build=True)

    file: Path | None = None
    webhook_url: str | None = None
    webhook_secret: SecretStr | None = Field(default=None, description="signs the webhook's body (HMAC-SHA256)")


class OidcSettings(BaseModel):
    """The identity provider that people sign in with."""

    model_config = ConfigDict(defer_build=True)

    issuer: str = Field(description="its address, as it stands in `iss`")
    client_id: str
    client_secret: SecretStr | None = Field(default=None, description="none: a public client, with PKCE alone")
    audience: str | None = Field(default=None, description="who access tokens are for; none: the client")
    claim: Literal["email", "sub"] = Field(default="email", description="names the member; an email must be verified")


class TenantLimits(BaseModel):
    """What one tenant may use of all consoles together. None: no limit."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    starts: float | None = Field(default=200, gt=0, description="starts of runs per second")
    open_runs: int | None = Field(default=100_000, ge=1, description="runs that have not ended")
    streams: int | None = Field(default=100, ge=1, description="open streams of live updates")
    lists: float | None = Field(default=50, gt=0, description="questions for lists per second")


class Settings(BaseSettings):
    """All settings. Names are the environment's, with the prefix REDRIVE_ where none is given."""

    model_config = SettingsConfigDict(env_prefix="REDRIVE_", extra="ignore", populate_by_name=True, defer_build=True)

    temporal_address: str | None = Field(
        default=None, validation_alias="TEMPORAL_ADDRESS", description="host and port of the Temporal server"
    )
    temporal_namespace: str | None = Field(
        default=None, validation_alias="TEMPORAL_NAMESPACE", description="its namespace; none: `default`"
    )
    temporal_profile: str | None = Field(
        default=None, validation_alias="TEMPORAL_PROFILE", description="a profile of Temporal's own configuration file"
    )
    database_url: SecretStr | None = Field(
        default=None, validation_alias="DATABASE_URL", description="PostgreSQL; none: the stack of this directory"
    )
    access_database_url: SecretStr | None = Field(default=None, description="the login that lets people in")
    owner_database_url: SecretStr | None = Field(default=None, description="the login that owns the tables")
    state_dir: Path = Field(default=STATE_DIR, description="where the embedded stack keeps its state")
    task_queue: str = Field(default=TASK_QUEUE, description="the task queue of runs and workers")
    modules: Annotated[tuple[str, ...], NoDecode] = Field(
        default=("redrive.examples",),
        description="Python modules or files to import, separated by commas: `hello` or `hello.py`",
    )
    services: dict[str, ServiceSettings] = Field(default={}, description="services that modules call by name")
    alerts: AlertSettings = Field(
        default=AlertSettings.model_construct(), description="where alerts on dead letters are sent"
    )
    retention: RetentionSettings = Field(
        default=RetentionSettings.model_construct(), description="how long finished work is kept; null: forever"
    )
    audit_anchor: AnchorSettings = Field(
        default=AnchorSettings.model_construct(), description="where heads of the audit log are recorded"
    )
    free_failed_keys: bool = Field(default=False, description="a key whose run FAILED may start another one")
    redacted_keys: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="more names of fields whose values are redacted, separated by commas"
    )
    approvals: bool = Field(default=False, description="whether another person has to approve each bulk operation")
    user_header: str = Field(
        default="x-redrive-user",
        pattern=r"^[A-Za-z0-9-]{1,64}$",
        description="the header that carries the user to a service",
    )
    private_addresses: bool = Field(default=False, description="whether any call of a step may go to a private address")
    metrics_address: str | None = Field(default=None, description="where the worker serves metrics: 127.0.0.1:9464")
    build_id: str = Field(default="dev", description="the build id of the worker's code")
    deployment: str | None = Field(
        default=None, min_length=1, description="the worker deployment of Temporal that the build is a version of"
    )
    max_concurrent_steps: int = Field(default=100, ge=1, le=10_000, description="steps that a worker runs at once")
    reserved_steps: int | None = Field(
        default=None,
        ge=0,
        description="of these steps, how many are reserved for tenants with hardly any step running; none: one in five",
    )
    tenant_weights: dict[str, Weight] = Field(default={}, description="turns of a tenant where others have one")
    max_cached_runs: int = Field(default=1000, ge=0, description="runs that a worker keeps in memory")
    stall_limit: timedelta = Field(default=timedelta(seconds=30), description="how long a module may block the loop")
    shutdown_grace: timedelta = Field(default=timedelta(seconds=10), description="how long steps may finish on a stop")
    ready_file: Path | None = Field(default=None, description="touched when the worker takes work")
    console_address: str = Field(default="127.0.0.1:8300", description="where the console listens")
    console_url: str | None = Field(default=None, description="the console's address as browsers see it")
    web_ui: str | None = Field(default=None, description="the Temporal Web UI's address, for links into it")
    web_ui_proxy: str | None = Field(default=None, description="the Web UI, to be shown behind the console's sign-in")
    oidc: OidcSettings | None = Field(default=None, description="the identity provider that people sign in with")
    session_lifetime: timedelta = Field(default=timedelta(hours=12), description="how long a browser stays signed in")
    rate_limit: str = Field(default="1200/minute", description="requests of one principal")
    stranger_limit: str = Field(default="300/minute", description="requests of one address without a known principal")
    tenant_limits: dict[str, TenantLimits] = Field(default={}, description="what a tenant may use; `*` is any other")
    header_timeout: timedelta = Field(
        default=timedelta(seconds=10), gt=timedelta(0), description="for the whole header of a request"
    )
    body_timeout: timedelta = Field(
        default=timedelta(seconds=30), gt=timedelta(0), description="for the whole body of a request"
    )
    max_connections: int = Field(default=2000, ge=10, description="open connections of a console process")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the least that is logged"
    )
    log_format: Literal["auto", "json", "pretty"] = Field(
        default="auto", description="`auto`: pretty in a terminal, JSON elsewhere"
    )

    @field_validator("modules", "redacted_keys", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @property
    def named_modules(self) -> tuple[str, ...]:
        """The modules that are named. Without any, a worker runs the examples; a bridge goes by what workers know."""
        return self.modules if "modules" in self.model_fields_set else ()

    def limits_of(self, tenant: str) -> TenantLimits:
        """Return a tenant's limits: those set for it, else for `*`, else the defaults."""
        common = self.tenant_limits.get("*") or TenantLimits()
        own = self.tenant_limits.get(tenant)
        return common.model_copy(update=own.model_dump(exclude_unset=True)) if own else common

    def redactor(self, hidden: Iterable[str] = ()) -> Redactor:
        """Return the redactor: by name, by shape, and for the secrets in here, which a service may echo in an error.

        `hidden` are further names: those of the modules' `Hidden` fields.
        """
        own = [service.token for service in self.services.values()]
        own += [self.audit_anchor.webhook_secret]
        own += [self.alerts.sentry_dsn, self.alerts.webhook_secret, self.oidc.client_secret if self.oidc else None]
        return Redactor([*self.redacted_keys, *hidden], (secret.get_secret_value() for secret in own if secret))


def read_settings(**changes: Any) -> Settings:
    """Read the environment, or raise InvalidInput naming the variable that is wrong."""
    return read_environment(Settings, **changes)


def load_env_file(file: Path = ENV_FILE) -> None:
    """Add the variables of `.env` in the working directory to the environment, which wins; empty ones are left out.

    They become part of the environment because Temporal's SDK and child processes read theirs there.
    """
    if not file.is_file():
        return
    try:
        found = DotEnvSettingsSource(Settings, env_file=file, case_sensitive=True, env_ignore_empty=True).env_vars
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{file}: cannot be read: {error}") from None
    for name, value in found.items():
        if value is not None:
            os.environ.setdefault(name, value)


def read_environment(kind: type[SettingsOf], **changes: Any) -> SettingsOf:
    """Read settings of one kind from the environment, or raise InvalidInput naming the variable that is wrong."""
    load_env_file()
    try:
        return kind(**changes)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = [str(part) for part in first["loc"]]
        # A problem of several settings has no location; its message names them.
        where = f"{'.'.join([_variable(place[0]), *place[1:]])}: " if place else ""
        raise InvalidInput(f"{where}{first['msg']}") from error
    except SettingsError as error:
        field = re.search(r'field "(\w+)"', str(error))
        name = _variable(_alias(kind, field[1])) if field else error
        raise InvalidInput(f"{name}: not valid JSON: {error.__cause__}") from error


def _alias(kind: type[BaseSettings], field: str) -> str:
    alias = kind.model_fields[field].validation_alias if field in kind.model_fields else None
    return alias if isinstance(alias, str) else field


def _variable(field: str) -> str:
    return field if field.isupper() else f"REDRIVE_{field.upper()}"
