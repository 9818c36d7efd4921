"""One broker's data path for tests: real partitions on a disk in memory, no network.

Requests go through the real codec in the version a test names, so old shapes are seen too.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import attrs
import trio

from kwire.codec.apis import BY_KEY, ListenerType
from kwire.codec.compile import decode, encode
from kwire.codec.messages import metadata_records as r
from kwire.codec.schema import spec_of
from kwire.configs.broker import BrokerConfig
from kwire.errors import NotCoordinator
from kwire.handlers.dispatch import handler_of
from kwire.handlers.shared.client_quotas import ClientQuotas
from kwire.handlers.shared.context import BrokerServices, Context, Current, Services
from kwire.log.config import LogConfig
from kwire.log.directories.directory import LogDirectory
from kwire.log.manager import LogManager
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.metadata.image_change import apply
from kwire.records import build, header
from kwire.replica.fetch_sessions import FetchSessions
from kwire.replica.markers import Markers, WaitCommitted
from kwire.replica.partition import Partition
from kwire.replica.producer_ids import ProducerIds
from kwire.replica.replicas import ReplicaService
from kwire.replica.transaction_ports import TransactionMarker
from kwire.replica.verification import NOT_REQUIRED
from simulation.disk import SimDisk
from tests.support.handlers.services import services_of, with_parts
from tests.support.handlers.transactions import ScriptedVerifier

NOW_MS = 1_700_000_000_000
NODE = 1


@attrs.define
class Wall:
    """A wall clock that a test moves."""

    ms: int = NOW_MS

    def now(self) -> float:
        return trio.current_time()

    def now_ms(self) -> int:
        return self.ms


def topic_id(name: str) -> bytes:
    return name.encode().rjust(16, b"\x01")


@attrs.define
class Broker:
    """A broker that tests send requests to."""

    services: Services
    logs: LogManager
    configs: dict[str, LogConfig]
    wall: Wall

    @property
    def disk(self) -> SimDisk:
        disk = self.logs.directories[0].disk
        assert isinstance(disk, SimDisk)
        return disk

    @property
    def parts(self) -> BrokerServices:
        broker = self.services.broker
        assert broker is not None
        return broker

    @property
    def replicas(self) -> ReplicaService:
        return self.parts.replicas

    @property
    def current(self) -> Current:
        return self.services.current

    def replace(self, **parts: Any) -> None:
        """Replace parts of the node, by their names."""
        self.services = with_parts(self.services, **parts)

    async def publish(self, *records: Any) -> None:
        image, delta = apply(self.current.image, records)
        await self.replicas.applier.apply(delta)
        self.current.image = image

    async def create(
        self,
        name: str,
        *,
        partitions: int = 1,
        replicas: tuple[int, ...] = (NODE,),
        isr: tuple[int, ...] | None = None,
        leader: int = NODE,
        identity: bytes | None = None,
        **settings: Any,
    ) -> Partition | None:
        self.configs[name] = LogConfig(**settings)
        identity = identity or topic_id(name)
        await self.publish(
            r.TopicRecord(name=name, topic_id=identity),
            *(
                r.PartitionRecord(
                    partition_id=index,
                    topic_id=identity,
                    replicas=list(replicas),
                    isr=list(isr or replicas),
                    leader=leader,
                    leader_epoch=0,
                    partition_epoch=0,
                )
                for index in range(partitions)
            ),
        )
        return self.replicas.partitions.find(name, 0)

    async def lead_again(self, name: str, leader: int = NODE) -> None:
        """Begin a new leader epoch of a topic's first partition."""
        await self.publish(
            r.PartitionChangeRecord(partition_id=0, topic_id=topic_id(name), leader=leader)
        )

    async def call(self, request: Any, version: int | None = None, **context: Any) -> Any:
        """Return the response as a client of this version decodes it."""
        key = spec_of(type(request)).api_key
        assert key is not None
        api = BY_KEY[key]
        version = api.stable if version is None else version
        request = decode(type(request), encode(request, version), version)
        shapes = __import__(f"kwire.codec.messages.{api.module}", fromlist=["x"])
        if hasattr(shapes, "widen_request"):
            request = shapes.widen_request(request, version)
        handler = handler_of(api, ListenerType.BROKER)
        answer = await handler(Context(services=self.services, **context), request)
        if answer is None:
            return None
        if hasattr(shapes, "narrow_response"):
            answer = shapes.narrow_response(answer, version, request)
        return decode(type(answer), encode_whole(answer, version), version)


async def create_topic(subject: Broker, name: str = "t", **settings: Any) -> Partition:
    """Create a topic with replicas on this broker; return its first partition."""
    partition = await subject.create(name, **settings)
    assert partition is not None
    return partition


def encode_whole(answer: Any, version: int) -> bytes:
    """Encode with the regions of files read, as the network layer sends them."""
    from kwire.codec.compile import encoder

    parts: list[Any] = []
    encoder(type(answer), version)(answer, parts)
    out = []
    for part in parts:
        if hasattr(part, "position"):
            out.append(part.read())
            part.close()
        else:
            out.append(bytes(part))
    return b"".join(out)


def _end_no_group_transaction(index: int, marker: TransactionMarker) -> WaitCommitted:
    """Reject the marker: this broker has no groups."""
    raise NotCoordinator


def broker(slots: int = 100, disks: Sequence[SimDisk] = ()) -> Broker:
    configs: dict[str, LogConfig] = {}
    wall = Wall()
    directories = [LogDirectory(disk, f"/data/{n}") for n, disk in enumerate(disks)]
    logs = LogManager(directories or [LogDirectory(SimDisk(), "/data")], wall)
    blocks = itertools.count(0, 10)

    async def allocate() -> tuple[int, int]:
        await trio.lowlevel.checkpoint()
        return next(blocks), 10

    replicas = ReplicaService(
        node=NODE,
        logs=logs,
        configs=lambda name: configs.get(name, LogConfig()),
        sessions=FetchSessions(slots, 120.0, itertools.count(100).__next__),
    )
    logs.subscribe(
        on_written=replicas.on_log_written,
        on_offline=replicas.partitions.on_directory_failed,
        on_deleted=replicas.partitions.on_log_deleted,
    )
    config = BrokerConfig({})
    markers = Markers(
        replicas=replicas,
        end_group_transaction=_end_no_group_transaction,
        clock=wall,
        timeout_ms=lambda: config.request_timeout_ms,
    )
    services = services_of(
        config=config,
        clock=wall,
        image=MetadataImage(),
        replicas=replicas,
        producer_ids=ProducerIds(allocate),
        logs=logs,
        verifier=ScriptedVerifier(),
        markers=markers,
        client_quotas=ClientQuotas(),
    )
    return Broker(services, logs, configs, wall)


def one_batch(*values: bytes, key: bytes | None = b"k", **changes: Any) -> bytes:
    """Return a batch as a client sends it."""
    return build.batch(
        [build.New(key, value) for value in values or (b"v",)],
        **({"timestamp_ms": NOW_MS, "leader_epoch": -1} | changes),
    )


def write(subject: Broker, partition: Partition, *values: bytes, **changes: Any) -> None:
    """Append a batch as the leader does for a client without a transaction."""
    batch = one_batch(*values, **changes)
    subject.replicas.append(partition, batch, header.parse(batch), 1, NOW_MS, guard=NOT_REQUIRED)


def read_log(partition: Partition) -> bytes:
    """Return the bytes of all batches of a log."""
    region = partition.log.read(
        partition.log.log_start, 1 << 20, end_offset=partition.log.end_offset
    )
    with region:
        return region.read()
