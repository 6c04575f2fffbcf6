"""Settings, read once from the environment in an entry point and handed on."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError

from redrive.contracts import ALERT_WINDOW, TASK_QUEUE
from redrive.errors import InvalidInput
from redrive.redaction import Redactor

Kind = TypeVar("Kind", bound=BaseSettings)


class ServiceSettings(BaseModel):
    """Where a service is and how to sign in to it."""

    base_url: str
    token: SecretStr | None = None
    private_addresses: bool = Field(default=False, description="whether its name may lead to a private address")


class AlertSettings(BaseModel):
    """Where to tell that a step died, and how often."""

    sentry_dsn: SecretStr | None = None
    webhook_url: str | None = None
    webhook_secret: SecretStr | None = Field(default=None, description="signs the webhook's body (HMAC-SHA256)")
    window: timedelta = Field(
        default=ALERT_WINDOW, gt=timedelta(0), description="failures that look alike are one alert in this time"
    )


class OidcSettings(BaseModel):
    """The identity provider that people sign in with."""

    issuer: str = Field(description="its address, as it stands in `iss`")
    client_id: str
    client_secret: SecretStr | None = Field(default=None, description="none: a public client, with PKCE alone")
    audience: str | None = Field(default=None, description="who access tokens are for; none: the client")
    claim: Literal["email", "sub"] = Field(default="email", description="names the member; an email must be verified")


class Settings(BaseSettings):
    """All that can be set from outside. Names are the environment's, with the prefix REDRIVE_ where none is given."""

    model_config = SettingsConfigDict(env_prefix="REDRIVE_", extra="ignore", populate_by_name=True)

    temporal_address: str | None = Field(default=None, validation_alias="TEMPORAL_ADDRESS")
    temporal_namespace: str | None = Field(default=None, validation_alias="TEMPORAL_NAMESPACE")
    temporal_profile: str | None = Field(default=None, validation_alias="TEMPORAL_PROFILE")
    database_url: SecretStr | None = Field(default=None, validation_alias="DATABASE_URL")
    state_dir: Path = Path(".redrive")
    task_queue: str = TASK_QUEUE
    modules: Annotated[tuple[str, ...], NoDecode] = ("examples",)
    services: dict[str, ServiceSettings] = {}
    alerts: AlertSettings = AlertSettings()
    free_failed_keys: bool = Field(default=False, description="a key whose run FAILED may start another one")
    redacted_keys: Annotated[tuple[str, ...], NoDecode] = ()
    approvals: bool = Field(default=False, description="whether another person has to approve each bulk operation")
    user_header: str = "x-redrive-user"
    private_addresses: bool = Field(default=False, description="whether any call of a step may go to a private address")
    metrics_address: str | None = Field(default=None, description="where the worker serves metrics: 127.0.0.1:9464")
    build_id: str = "dev"
    max_concurrent_steps: int = Field(default=100, ge=1, le=10_000)
    max_cached_runs: int = Field(default=1000, ge=0)
    stall_limit: timedelta = Field(default=timedelta(seconds=30), description="how long a module may block the loop")
    shutdown_grace: timedelta = Field(default=timedelta(seconds=10), description="how long steps may finish on a stop")
    ready_file: Path | None = Field(default=None, description="touched when the worker takes work")
    console_address: str = Field(default="127.0.0.1:8300", description="where the console listens")
    console_url: str | None = Field(default=None, description="the console's address as browsers see it")
    web_ui: str | None = Field(default=None, description="the Temporal Web UI's address, for links into it")
    oidc: OidcSettings | None = None
    session_lifetime: timedelta = Field(default=timedelta(hours=12), description="how long a browser stays signed in")
    rate_limit: str = Field(default="1200/minute", description="requests of one principal")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "pretty"] = "auto"

    @field_validator("modules", "redacted_keys", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    def redactor(self) -> Redactor:
        """Return what takes secrets out: by name, by shape, and those in here, which a service may echo in an error."""
        own = [service.token for service in self.services.values()]
        own += [self.alerts.sentry_dsn, self.alerts.webhook_secret, self.oidc.client_secret if self.oidc else None]
        return Redactor(self.redacted_keys, (secret.get_secret_value() for secret in own if secret))


def read_settings(**changes: Any) -> Settings:
    """Read the environment, or raise InvalidInput naming the variable that is wrong."""
    return read_environment(Settings, **changes)


def read_environment(kind: type[Kind], **changes: Any) -> Kind:
    """Read settings of one kind from the environment, or raise InvalidInput naming the variable that is wrong."""
    try:
        return kind(**changes)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = [str(part) for part in first["loc"]]
        # What concerns several settings has no place; its message names them.
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
