"""A broker of 3,000 partitions whose roles change, and of 10,000 that are deleted."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any, Final

import attrs
import trio

from kwire.codec.messages import metadata_records as r
from kwire.raftmeta.metadata.image_change import apply
from tests.support.handlers.broker import Broker, broker, topic_id
from tests.support.turns.meter import TurnMeter
from tests.support.turns.table import Scene

ALL: Final = 3_000
OWN: Final = 1
OTHER: Final = 2


@attrs.frozen
class Roles:
    """A broker, and the meter of its process."""

    broker: Broker
    meter: TurnMeter

    async def measure(self, *records: Any) -> None:
        """Measure the work of a broker that applies published records."""
        await self._apply(records, self.meter.measuring())

    async def apply(self, *records: Any) -> None:
        """Let the broker apply published records, which is not measured."""
        await self._apply(records, nullcontext())

    async def _apply(self, records: Sequence[Any], block: AbstractContextManager[None]) -> None:
        image, delta = apply(self.broker.current.image, records)
        await trio.lowlevel.checkpoint()
        with block:
            await self.broker.replicas.applier.apply(delta)
        self.broker.current.image = image


@asynccontextmanager
async def broker_of_partitions(meter: TurnMeter) -> AsyncIterator[Roles]:
    yield Roles(broker(), meter)


ROLES: Final = Scene("roles of partitions", broker_of_partitions)
row = ROLES.operation


def led_by(leader: int, epoch: int, topic: str = "t", count: int = ALL) -> list[r.PartitionRecord]:
    """Return the partitions of a topic with one leader."""
    return [
        r.PartitionRecord(
            partition_id=number,
            topic_id=topic_id(topic),
            replicas=[OWN, OTHER],
            isr=[OWN, OTHER],
            leader=leader,
            leader_epoch=epoch,
            partition_epoch=epoch,
        )
        for number in range(count)
    ]


@row("partitions that begin", "partitions", ALL, "replica.metadata_applier.run")
async def create(roles: Roles, size: int) -> None:
    await roles.measure(r.TopicRecord(name="t", topic_id=topic_id("t")), *led_by(OWN, 0))
    assert len(roles.broker.replicas.partitions) == size


@row(
    "leaders that become followers",
    "partitions",
    ALL,
    "replica.metadata_applier.run",
    after="partitions that begin",
)
async def follow(roles: Roles, size: int) -> None:
    await roles.measure(*led_by(OTHER, 1))
    assert not any(partition.leader for partition in roles.broker.replicas.partitions)


@row(
    "followers that become leaders",
    "partitions",
    ALL,
    "replica.metadata_applier.run",
    after="leaders that become followers",
)
async def lead(roles: Roles, size: int) -> None:
    await roles.measure(*led_by(OWN, 2))
    assert all(partition.leader for partition in roles.broker.replicas.partitions)


@row(
    "settings of all topics",
    "partitions",
    ALL,
    "replica.metadata_applier.run",
    after="partitions that begin",
)
async def configure(roles: Roles, size: int) -> None:
    await roles.measure(r.ConfigRecord(resource_type=4, resource_name="", name="x", value="y"))


@row("deletion of a topic", "partitions", 10_000, "replica.metadata_applier.run")
async def delete(roles: Roles, size: int) -> None:
    await roles.apply(
        r.TopicRecord(name="large", topic_id=topic_id("large")), *led_by(OWN, 0, "large", size)
    )
    count = len(roles.broker.replicas.partitions)
    await roles.measure(r.RemoveTopicRecord(topic_id=topic_id("large")))
    assert len(roles.broker.replicas.partitions) == count - size
