"""One broker with groups for tests: the real codec, handlers, coordinator and partitions."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import attrs
import trio

from kwire.codec.apis import BY_KEY, ListenerType
from kwire.codec.compile import decode, encode
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.codec.messages.offset_fetch import OffsetFetchRequest
from kwire.codec.schema import spec_of
from kwire.configs.broker import BrokerConfig
from kwire.group.coordinator import GroupCoordinator
from kwire.group.share.coordinator import SharePorts
from kwire.handlers.dispatch import handler_of
from kwire.handlers.shared.context import Context
from kwire.node.group_topics import ImageTopics
from kwire.replica.coordinator_log import CoordinatorLog
from kwire.replica.markers import Markers
from kwire.types import CONSUMER_OFFSETS, TopicPartition
from tests.support.handlers.broker import NODE, Broker, broker, topic_id
from tests.support.share.persister import MemoryPersister

PARTITIONS = 5


@attrs.define
class Creator:
    """Creates topics on first use, or fails as the test says."""

    subject: Broker
    topics: list[str] = attrs.field(factory=list)
    failure: Exception | None = None

    result: Any = None
    """Result of the creation in place of a topic."""

    async def ensure_topic(self, name: str) -> Any:
        self.topics.append(name)
        if self.failure is not None:
            raise self.failure
        if self.result is not None:
            return self.result
        await self.subject.create(name, partitions=PARTITIONS)

    async def create(
        self, names: Sequence[str], creatable_of: Callable[[str], Any], requester: Any
    ) -> dict[str, Any]:
        self.topics += names
        if self.failure is not None:
            raise self.failure
        if self.result is not None:
            return dict.fromkeys(names, self.result)
        for name in names:
            await self.subject.create(name, partitions=creatable_of(name).num_partitions)
        return {}


@attrs.define
class GroupNode:
    """A node with a group coordinator that tests send requests to."""

    broker: Broker
    groups: GroupCoordinator
    topic_creation: Creator
    persister: MemoryPersister

    async def ask(self, request: Any, version: int | None = None, **context: Any) -> Any:
        """Return the response as a client of this version decodes it."""
        key = spec_of(type(request)).api_key
        assert key is not None
        api = BY_KEY[key]
        version = api.stable if version is None else version
        shapes = __import__(f"kwire.codec.messages.{api.module}", fromlist=["x"])
        request = decode(type(request), encode(request, version), version)
        if hasattr(shapes, "widen_request"):
            request = shapes.widen_request(request, version)
        fields: dict[str, Any] = {"client_id": "c"}
        chosen = Context(services=self.broker.services, **(fields | context))
        answer = await handler_of(api, ListenerType.BROKER)(chosen, request)
        if hasattr(shapes, "narrow_response"):
            answer = shapes.narrow_response(answer, version, request)
        return decode(type(answer), encode(answer, version), version)

    async def join(
        self, group: str = "g", member: str = "", version: int = 9, **fields: Any
    ) -> JoinGroupResponse:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0")
        chosen: dict[str, Any] = {
            "group_id": group,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 5_000 if version else -1,
            "member_id": member,
            "protocol_type": "consumer",
            "protocols": [protocol],
        }
        reply: JoinGroupResponse = await self.ask(JoinGroupRequest(**(chosen | fields)), version)
        return reply

    async def commit(
        self,
        topics: dict[str | bytes, dict[int, int]],
        group: str = "g",
        version: int = 9,
        **fields: Any,
    ) -> dict[str | bytes, dict[int, int]]:
        """Commit offsets by topic and partition; return error codes in the same shape."""
        topic = OffsetCommitRequest.OffsetCommitRequestTopic
        requests = [
            topic(
                **_request_name(name),
                partitions=[
                    topic.OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offset, committed_metadata="m"
                    )
                    for index, offset in offsets.items()
                ],
            )
            for name, offsets in topics.items()
        ]
        request = OffsetCommitRequest(
            **({"group_id": group, "member_id": "", "topics": requests} | fields)
        )
        reply = await self.ask(request, version)
        return {
            t.name or t.topic_id: {p.partition_index: p.error_code for p in t.partitions}
            for t in reply.topics
        }

    async def fetch(
        self,
        topics: dict[str | bytes, list[int]] | None,
        group: str = "g",
        version: int = 9,
    ) -> dict[str | bytes, dict[int, int]]:
        """Return committed offsets by topic and partition; error codes as negative numbers."""
        shape = OffsetFetchRequest.OffsetFetchRequestGroup
        requests = None
        if topics is not None:
            requests = [
                shape.OffsetFetchRequestTopics(**_request_name(name), partition_indexes=indexes)
                for name, indexes in topics.items()
            ]
        request = OffsetFetchRequest(groups=[shape(group_id=group, topics=requests)])
        (answer,) = (await self.ask(request, version)).groups
        if answer.error_code:
            return {"error": {0: answer.error_code}}
        return {
            t.name or t.topic_id: {
                p.partition_index: -p.error_code if p.error_code else p.committed_offset
                for p in t.partitions
            }
            for t in answer.topics
        }


def _request_name(name: str | bytes) -> dict[str, Any]:
    return {"topic_id": name} if isinstance(name, bytes) else {"name": name}


@asynccontextmanager
async def group_node(
    settings: dict[str, str] | None = None, *, topics: bool = True
) -> AsyncIterator[GroupNode]:
    """Run a broker with topics ``t`` (3 partitions) and ``u``, and the offsets topic."""
    subject = broker()
    config = BrokerConfig({"group.initial.rebalance.delay.ms": "0"} | (settings or {}))
    subject.current.config = config
    names = count(1)
    persister = MemoryPersister()
    newest = ImageTopics(subject.current.image, {}, 0)

    def newest_topics() -> ImageTopics:
        nonlocal newest
        if newest.image is not subject.current.image:
            newest = newest.next(subject.current.image)
        return newest

    groups = GroupCoordinator.build(
        CoordinatorLog(subject.replicas, subject.wall),
        subject.wall,
        config=lambda: config,
        partitions=lambda: PARTITIONS,
        new_id=lambda: str(next(names)),
        topic_ids=lambda: subject.current.image.topic_ids,
        topics=newest_topics,
        share_ports=lambda: SharePorts(
            persister=lambda: persister,
            end_offsets=end_offsets,
            spawn=lambda task: nursery.start_soon(task),
        ),
        spawn=lambda task: nursery.start_soon(task),
    )

    async def end_offsets(partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {
            each: subject.replicas.partitions.get_led(*each).high_watermark for each in partitions
        }

    subject.replicas.roles.subscribe(groups.on_role_changed)
    markers = Markers(
        replicas=subject.replicas,
        end_group_transaction=groups.service.end_transaction,
        clock=subject.wall,
        timeout_ms=lambda: config.request_timeout_ms,
    )
    creator = Creator(subject)
    subject.replace(groups=lambda: groups, markers=markers, topic_creation=creator)
    await subject.publish(
        r.RegisterBrokerRecord(
            broker_id=NODE,
            incarnation_id=bytes(16),
            broker_epoch=1,
            end_points=[
                r.RegisterBrokerRecord.BrokerEndpoint(
                    name="PLAINTEXT", host="here", port=9092, security_protocol=0
                )
            ],
            features=[],
            rack=None,
            fenced=False,
        )
    )
    await subject.create("t", partitions=3)
    await subject.create("u")
    if topics:
        await subject.create(CONSUMER_OFFSETS, partitions=PARTITIONS)
    async with trio.open_nursery() as nursery:
        await nursery.start(groups.service.run)
        yield GroupNode(subject, groups, creator, persister)
        nursery.cancel_scope.cancel()


async def make_again(node: GroupNode, name: str) -> None:
    """Delete a topic and create it under another id without a notification to the coordinator."""
    await node.broker.publish(r.RemoveTopicRecord(topic_id=topic_id(name)))
    await node.broker.create(name, identity=name.encode() * 16)


__all__ = ["GroupNode", "group_node", "make_again", "topic_id"]
