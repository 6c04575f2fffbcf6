"""What every bridge has to show, whatever broker it takes messages from.

A bridge passes by a class of tests of its own: it inherits `BridgeConformance` and gives it a fixture `lab`, which says
what "send", "safe" and "acknowledged" mean for that broker.

    class TestRabbitMQ(BridgeConformance):
        @pytest.fixture
        async def lab(self, ...) -> AsyncIterator[BridgeLab]: ...
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence

from tests.conftest import eventually

MANY = 300
PATIENCE = 60.0


class BridgeLab(ABC):
    """A broker with queues of the test's own, a bridge on it, and where it puts things. Messages have numbers."""

    most_held: int
    """How many messages the bridge may have taken and not acknowledged."""

    @abstractmethod
    async def send(self, numbers: Sequence[int]) -> None:
        """Put good messages onto the broker; a number that was sent before is the same message again."""

    @abstractmethod
    async def send_poison(self) -> None:
        """Put a message onto the broker that can never be taken."""

    @abstractmethod
    def bridge(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Run the bridge in this process while the block lasts; leaving stops it as SIGTERM does."""

    @abstractmethod
    async def safe(self) -> list[int]:
        """Return the numbers of the messages that are safe; one that was taken twice stands there twice."""

    @abstractmethod
    async def refused(self) -> int:
        """Return how many durable records of poison there are."""

    @abstractmethod
    async def held(self) -> int:
        """Return how many messages the bridge has taken and not acknowledged."""

    @abstractmethod
    async def owed(self) -> int:
        """Return how many messages are not acknowledged, taken or not."""

    @abstractmethod
    def nothing_can_be_safe(self) -> contextlib.AbstractAsyncContextManager[None]:
        """While the block lasts, keep everything from becoming safe: as if the database did not answer."""

    @abstractmethod
    async def restart_broker(self) -> None:
        """Kill the broker and wait until it is back. Messages that were not acknowledged must survive it."""


class BridgeConformance:
    """The tests."""

    async def test_message_is_acknowledged_only_when_it_is_safe(self, lab: BridgeLab) -> None:
        """While nothing can be stored the broker still owes all; then all is stored, and then acknowledged."""
        await lab.send(range(5))
        async with contextlib.AsyncExitStack() as undo:
            async with lab.nothing_can_be_safe():
                await undo.enter_async_context(lab.bridge())
                await eventually(lambda: _is(lab.held, 5), within=PATIENCE)
                assert await lab.owed() == 5
            await eventually(lambda: _is(lab.owed, 0), within=PATIENCE)
            assert sorted(await lab.safe()) == list(range(5))

    async def test_poison_stops_nobody(self, lab: BridgeLab) -> None:
        """A message that can never be taken gets a record of its own; those before and after it are taken."""
        await lab.send([1])
        await lab.send_poison()
        await lab.send([2])
        async with lab.bridge():
            await eventually(lambda: _is(lab.owed, 0), within=PATIENCE)
        assert sorted(await lab.safe()) == [1, 2]
        assert await lab.refused() == 1

    async def test_duplicate_is_taken_once(self, lab: BridgeLab) -> None:
        """The same message again, at once or later, changes nothing and is acknowledged."""
        await lab.send([1, 2, 1])
        async with lab.bridge():
            await eventually(lambda: _is(lab.owed, 0), within=PATIENCE)
            await lab.send([2, 3])
            await eventually(lambda: _has(lab, 3), within=PATIENCE)
            await eventually(lambda: _is(lab.owed, 0), within=PATIENCE)
        assert sorted(await lab.safe()) == [1, 2, 3]

    async def test_bridge_survives_a_restart_of_its_broker(self, lab: BridgeLab) -> None:
        """What was sent before and after the restart becomes safe, without anybody touching the bridge."""
        async with lab.bridge():
            await lab.send([1])
            await eventually(lambda: _has(lab, 1), within=PATIENCE)
            async with lab.nothing_can_be_safe():
                await lab.send([2])
                await eventually(lambda: _is(lab.held, 1), within=PATIENCE)
                await lab.restart_broker()
            await lab.send([3])
            await eventually(lambda: _has(lab, 2, 3), within=PATIENCE)
            await eventually(lambda: _is(lab.owed, 0), within=PATIENCE)
        assert sorted(await lab.safe()) == [1, 2, 3]

    async def test_stop_in_the_middle_loses_nothing(self, lab: BridgeLab) -> None:
        """A bridge that is stopped while messages wait leaves each safe or with the broker; the next goes on."""
        await lab.send(range(MANY))
        async with lab.bridge():
            await eventually(lambda: _begun(lab), within=PATIENCE)
        assert len(await lab.safe()) + await lab.owed() >= MANY
        async with lab.bridge():
            await eventually(lambda: _is(lab.owed, 0), within=PATIENCE)
        assert sorted(await lab.safe()) == list(range(MANY))

    async def test_bridge_takes_no_more_than_it_can_hold(self, lab: BridgeLab) -> None:
        """While nothing can be stored, the bridge takes as many messages as it may hold and leaves the rest."""
        count = lab.most_held + 50
        await lab.send(range(count))
        async with contextlib.AsyncExitStack() as undo, lab.nothing_can_be_safe():
            await undo.enter_async_context(lab.bridge())
            await eventually(lambda: _is(lab.held, lab.most_held), within=PATIENCE)
            assert await lab.owed() == count


async def _is(ask: Callable[[], Awaitable[int]], wanted: int) -> bool:
    return await ask() == wanted


async def _has(lab: BridgeLab, *numbers: int) -> bool:
    return set(numbers) <= set(await lab.safe())


async def _begun(lab: BridgeLab) -> bool:
    return bool(await lab.safe())
