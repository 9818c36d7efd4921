"""The streams groups of this node for the handlers: decisions, and the creation of topics.

A topology needs internal topics. The coordinator does not wait for their creation: the response to
a heartbeat reports them as missing, and a later heartbeat finds them. If topics cannot be created,
the members are told the reason for two heartbeat intervals; then their creation is retried.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import attrs

from kwire.clock import Clock
from kwire.codec.messages.streams_group_heartbeat import Endpoint as ResponseEndpoint
from kwire.codec.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    TopicPartition,
)
from kwire.coordinator.decision import Decision, Moment, Opaque
from kwire.coordinator.runtime import CoordinatorRuntime
from kwire.drive import Slices, run_in_slices
from kwire.errors import KafkaError
from kwire.group.consumer.topics import Topics
from kwire.group.decision_builder import Client
from kwire.group.shard import GroupShard
from kwire.group.streams import requests
from kwire.group.streams.configuration import InternalTopic
from kwire.group.streams.heartbeat import Unmatched
from kwire.group.streams.requests import DescribedGroup
from kwire.group.streams.shard import Beaten, Endpoints
from kwire.group.streams.topology import source_names

logger = logging.getLogger(__name__)

EndpointToPartitions = StreamsGroupHeartbeatResponse.EndpointToPartitions
Create = Callable[[Sequence[InternalTopic]], Awaitable[Mapping[str, str]]]
"""Creates topics; returns why some were not created, by name. Raises KafkaError."""

_REASONS_MAX: Final = 1_000
_HEARTBEATS_BETWEEN_ATTEMPTS: Final = 2


@attrs.define(kw_only=True, eq=False, repr=False)
class StreamsGroups:
    """The streams groups of this node."""

    service: CoordinatorRuntime[GroupShard]
    partition_of: Callable[[str], int]
    """Returns the partition of a group."""
    topics: Callable[[], Topics]
    clock: Clock
    spawn: Callable[[Callable[[], Awaitable[None]]], object]
    """Starts a task that lasts no longer than the node."""
    _creating: set[str] = attrs.field(factory=set, init=False)
    """The topics that are being created."""
    _failures: dict[str, tuple[str, float]] = attrs.field(factory=dict, init=False)
    """The reason why a topic was not created, and the time before which that is not retried."""

    # Members

    async def heartbeat(self, request: StreamsGroupHeartbeatRequest, client: Client) -> Beaten:
        """Have a member join, stay, change or leave.

        A large topology whose topics have changed is matched with them first, in slices. If they
        change once more meanwhile, the decision does it. The caller creates the missing topics, if
        the client is allowed to create them.
        """
        beaten: Beaten
        try:
            beaten = await self._call(
                request.group_id,
                lambda shard, *when: requests.heartbeat(
                    shard, request, client, *when, may_wait=True
                ),
            )
        except Unmatched as unmatched:
            matched = await run_in_slices(unmatched.matching(self.topics()))
            beaten = await self._call(
                request.group_id,
                lambda shard, *when: requests.heartbeat(
                    shard, request, client, *when, matched=matched
                ),
            )
        if beaten.endpoints is not None:
            partitions = await self._partitions_by_endpoint(beaten.endpoints)
            beaten.response.partitions_by_user_endpoint = partitions
        return beaten

    async def _partitions_by_endpoint(self, endpoints: Endpoints) -> list[EndpointToPartitions]:
        """Return the partitions that each endpoint serves."""
        topics, slices = self.topics(), Slices()
        sources = {
            subtopology_id: [
                (name, topics.partition_count(topic_id))
                for name in source_names(subtopology)
                if (topic_id := topics.id_of(name)) is not None
            ]
            for subtopology_id, subtopology in endpoints.topology.subtopologies.items()
        }
        described = []
        for member in endpoints.members:
            assert member.endpoint is not None
            described.append(
                EndpointToPartitions(
                    user_endpoint=ResponseEndpoint(
                        host=member.endpoint.host, port=member.endpoint.port
                    ),
                    active_partitions=_partitions(member.assigned.active, sources),
                    standby_partitions=_partitions(member.assigned.standby, sources),
                )
            )
            await slices.pause()
        return described

    async def describe(self, group_id: str) -> DescribedGroup:
        """Describe a group; many members are described in slices."""
        described, members = await self.service.read(
            self.partition_of(group_id), lambda shard: requests.describe(shard, group_id)
        )
        slices = Slices()
        for member in members:
            described.members.append(requests.describe_member(member))
            await slices.pause()
        return described

    # Internal topics

    def create(
        self, missing: Sequence[InternalTopic], create: Create, heartbeat_interval_ms: int
    ) -> dict[str, str]:
        """Start to create topics; return why some could not be created recently, by name."""
        now = self.clock.now()
        failures = {
            topic.name: self._failures[topic.name][0]
            for topic in missing
            if topic.name in self._failures and self._failures[topic.name][1] > now
        }
        topics = [t for t in missing if t.name not in failures and t.name not in self._creating]
        if topics:
            self._creating.update(topic.name for topic in topics)
            keep_s = _HEARTBEATS_BETWEEN_ATTEMPTS * heartbeat_interval_ms / 1000
            self.spawn(partial(self._create, topics, create, keep_s))
        return failures

    async def _create(self, topics: Sequence[InternalTopic], create: Create, keep_s: float) -> None:
        names = [topic.name for topic in topics]
        failures: Mapping[str, str] = {}
        try:
            failures = await create(topics)
        except KafkaError as error:
            failures = dict.fromkeys(names, error.text or repr(error))
        except Exception:  # A fault must not end the node.
            logger.exception("internal topics not created topics=%s", names)
        finally:
            self._creating.difference_update(names)
        for name, reason in failures.items():
            logger.warning("internal topic not created topic=%s reason=%s", name, reason)
        until = self.clock.now() + keep_s
        for name in names:
            self._failures.pop(name, None)
        for name, reason in failures.items():
            while len(self._failures) >= _REASONS_MAX:
                del self._failures[next(iter(self._failures))]
            self._failures[name] = reason, until

    async def _call(
        self, group_id: str, decide: Callable[[GroupShard, Moment, int], Decision]
    ) -> Opaque:
        return await self.service.call(self.partition_of(group_id), decide)


def _partitions(
    tasks: Mapping[str, Iterable[int]], sources: Mapping[str, Sequence[tuple[str, int]]]
) -> list[TopicPartition]:
    """Return the partitions that the tasks read; a topic may have fewer partitions than tasks."""
    return [
        TopicPartition(topic=name, partitions=sorted(numbers)[:count])
        for subtopology_id, numbers in tasks.items()
        for name, count in sources.get(subtopology_id, ())
    ]
