"""The brokers that a stack may have beside its servers, and the bridges from them as programs."""

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from bridges.retry_settings import RetrySettings
from redrive.settings import read_environment
from starter.errors import WrongUsage
from starter.stack.child import Program

RABBITMQ: Final = "rabbitmq"
_KNOWN: Final = (RABBITMQ,)


@dataclass(frozen=True)
class Brokers:
    """Which brokers a stack has a bridge from. An address is that of a server of the user's own."""

    rabbitmq: bool = False
    rabbitmq_url: SecretStr | None = None

    @property
    def embeds_rabbitmq(self) -> bool:
        """Tell whether the stack runs a RabbitMQ itself."""
        return self.rabbitmq and self.rabbitmq_url is None


def chosen_brokers(names: str) -> Brokers:
    """Read `rabbitmq` and the like, with commas between."""
    chosen = {name.strip() for name in names.split(",") if name.strip()}
    for name in sorted(chosen - set(_KNOWN)):
        raise WrongUsage(f"--with {name!r}: not a broker that comes along; there are: {', '.join(_KNOWN)}")
    rabbitmq_url = read_environment(RetrySettings).rabbitmq_url if RABBITMQ in chosen else None
    return Brokers(rabbitmq=RABBITMQ in chosen, rabbitmq_url=rabbitmq_url)


def bridge_program(broker: str, environment: Mapping[str, str], ready_file: Path) -> Program:
    """Describe a bridge; it is ready when it has written the file that REDRIVE_READY_FILE names."""
    return Program(
        name=f"bridge-{broker}",
        title=f"the bridge from {broker}",
        command=[sys.executable, "-m", "starter.cli", "bridge", broker],
        environment={**environment, "REDRIVE_READY_FILE": str(ready_file)},
        prepare=partial(asyncio.to_thread, ready_file.unlink, missing_ok=True),
        ready=partial(asyncio.to_thread, ready_file.exists),
    )
