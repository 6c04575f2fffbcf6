"""The settings of the retry scheduler, named as in its specification."""

from datetime import timedelta

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from redrive.connection import embedded
from redrive.contracts import MIB, Broker
from redrive.policy import MESSAGE, RetryPolicy
from redrive.settings import Settings


class RetrySettings(BaseSettings):
    """The settings of the retry scheduler."""

    model_config = SettingsConfigDict(extra="ignore", populate_by_name=True)

    service_name: str = Field(
        default="retry-scheduler",
        validation_alias="SERVICE_NAME",
        description="its name in `/health` and in RabbitMQ's list of connections",
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
    )
    http_host: str = Field(
        default="127.0.0.1",
        validation_alias="HTTP_HOST",
        description="where health and metrics are served",
        min_length=1,
        max_length=255,
    )
    http_port: int = Field(
        default=8086,
        validation_alias="HTTP_PORT",
        description="the port of health and metrics; 0: any free one",
        ge=0,
        le=65535,
    )
    rabbitmq_url: SecretStr | None = Field(
        default=None, validation_alias="RABBITMQ_URL", description="RabbitMQ; none: the stack of this directory"
    )
    retry_queue: str = Field(
        default="retry.scheduled",
        validation_alias="RETRY_QUEUE",
        description="the queue of failed messages",
        min_length=1,
        max_length=255,
    )
    manual_review_queue: str = Field(
        default="manual-review.pending",
        validation_alias="MANUAL_REVIEW_QUEUE",
        description="the queue of messages whose retries are used up",
        min_length=1,
        max_length=255,
    )
    max_message_bytes: int = Field(
        default=16 * MIB,
        validation_alias="MAX_MESSAGE_BYTES",
        ge=1024,
        le=128 * MIB,
        description="a larger message is refused",
    )
    kept_message_bytes: int = Field(
        default=64 * 1024,
        validation_alias="KEPT_MESSAGE_BYTES",
        ge=0,
        le=MIB,
        description="bytes that are kept of a message that is too large",
    )
    max_held_bytes: int = Field(
        default=64 * MIB,
        validation_alias="MAX_HELD_BYTES",
        ge=MIB,
        le=1024 * MIB,
        description="bytes of messages that a bridge has taken and not stored",
    )
    default_max_retries: int = Field(
        default=3,
        validation_alias="DEFAULT_MAX_RETRIES",
        description="retries of a message that names no number",
        ge=0,
        le=1000,
    )
    base_delay_ms: int = Field(
        default=2000,
        validation_alias="BASE_DELAY_MS",
        description="the delay before the first retry; it doubles",
        ge=1,
        le=86_400_000,
    )
    max_delay_ms: int = Field(
        default=60_000, validation_alias="MAX_DELAY_MS", description="the longest delay", ge=1, le=86_400_000
    )
    retry_poll_interval_ms: int = Field(
        default=50,
        validation_alias="RETRY_POLL_INTERVAL_MS",
        description="how often due retries are looked for",
        ge=1,
        le=60_000,
    )

    @model_validator(mode="after")
    def _cap_is_not_below_base(self) -> "RetrySettings":
        if self.max_delay_ms < self.base_delay_ms:
            raise ValueError(f"MAX_DELAY_MS ({self.max_delay_ms}) is below BASE_DELAY_MS ({self.base_delay_ms})")
        return self

    @property
    def policy(self) -> RetryPolicy:
        """The preset `message`, with the configured delays."""
        return MESSAGE.model_copy(
            update={
                "base": timedelta(milliseconds=self.base_delay_ms),
                "cap": timedelta(milliseconds=self.max_delay_ms),
            }
        )

    @property
    def poll_interval(self) -> timedelta:
        """How often to poll for due messages."""
        return timedelta(milliseconds=self.retry_poll_interval_ms)

    def url(self, settings: Settings) -> str:
        """Return the address of RabbitMQ: the configured one, or that of this directory's stack."""
        if self.rabbitmq_url is not None:
            return self.rabbitmq_url.get_secret_value()
        return embedded(settings, "RabbitMQ", "RABBITMQ_URL", "brokers", Broker.RABBITMQ)
