"""The share groups of this node for the handlers: decisions, and calls of the persister.

The persister keeps the state of share partitions, on this node or another. A change of state has
three steps: a decision records the intended change, the persister makes the change, and a decision
records the result. If the coordinator fails in between, the record remains and the work is
repeated: an initialization with a later heartbeat, a deletion with the next request for it.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from kwire.codec.messages.alter_share_group_offsets import AlterShareGroupOffsetsResponse
from kwire.codec.messages.delete_share_group_offsets import DeleteShareGroupOffsetsResponse
from kwire.codec.messages.describe_share_group_offsets import DescribeShareGroupOffsetsResponse
from kwire.codec.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from kwire.coordinator.decision import Decision, Moment, Opaque
from kwire.coordinator.runtime import CoordinatorRuntime
from kwire.drive import Slices, give_way
from kwire.errors import (
    CoordinatorNotAvailable,
    KafkaError,
    UnknownTopicOrPartition,
    raise_for_code,
)
from kwire.group.consumer.topics import Topics
from kwire.group.decision_builder import Client
from kwire.group.shard import GroupShard
from kwire.group.share import requests, state_calls
from kwire.group.share.deletions import Deletions
from kwire.group.share.ongoing import Initializations
from kwire.group.share.requests import DescribedGroup
from kwire.group.share.shard import Initialization
from kwire.share.persister import UNINITIALIZED, UNKNOWN_COUNT, Summary
from kwire.types import ZERO_UUID, TopicPartition

if TYPE_CHECKING:
    from kwire.share.persister import Persister

logger = logging.getLogger(__name__)

AlteredTopic = AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic
DeletedTopic = DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic
DescribedOffsets = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup
DescribedTopic = DescribedOffsets.DescribeShareGroupOffsetsResponseTopic
DescribedPartition = DescribedTopic.DescribeShareGroupOffsetsResponsePartition

EndOffsets = Mapping[TopicPartition, int | KafkaError]
"""The end offset of each partition, or why it is unknown."""

_NO_STATE: Final = "There is no offset information to delete."


@attrs.frozen(kw_only=True, eq=False, repr=False)
class SharePorts:
    """The parts of the node that share groups use."""

    persister: "Callable[[], Persister]"
    end_offsets: Callable[[Sequence[TopicPartition]], Awaitable[EndOffsets]]
    """Returns high watermarks, including those of partitions that other brokers lead."""
    spawn: Callable[[Callable[[], Awaitable[None]]], object]
    """Starts a task that lasts no longer than the node."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ShareGroups:
    """The share groups of this node."""

    service: CoordinatorRuntime[GroupShard]
    partition_of: Callable[[str], int]
    """Returns the partition of a group."""
    topics: Callable[[], Topics]
    ports: SharePorts
    _deletions: Deletions = attrs.field(factory=Deletions, init=False)
    _initializations: Initializations = attrs.field(factory=Initializations, init=False)

    # Members

    async def heartbeat(
        self, request: ShareGroupHeartbeatRequest, client: Client
    ) -> ShareGroupHeartbeatResponse:
        """Have a member join, stay, change or leave.

        The state of new partitions is initialized after the response, as in Kafka; members are
        assigned these partitions with a later heartbeat.
        """
        beaten = await self._call(
            request.group_id,
            lambda shard, *when: requests.heartbeat(shard, request, client, *when),
        )
        if beaten.initialization is not None:
            work = self._initializations.begin(beaten.initialization)
            if work.numbers:
                self.ports.spawn(partial(self._initialize, work))
        response: ShareGroupHeartbeatResponse = beaten.response
        return response

    async def _initialize(self, work: "Initialization") -> None:
        """Initialize the state of share partitions, and record whether it succeeded."""
        try:
            await self._deletions.wait_ended(work.group_id)
            codes: set[int] = set()
            with self._deletions.watch(work.group_id) as watch:
                for topic_id, numbers in work.numbers.items():
                    offsets = dict.fromkeys(numbers, UNINITIALIZED)
                    results = await state_calls.initialize(
                        self._persister, work.group_id, topic_id, work.epoch, offsets
                    )
                    codes |= set(results.values())
            if watch.has_deletion:  # It may have deleted the new state.
                codes.add(CoordinatorNotAvailable.code)
            if codes - {0}:
                failure = min(codes - {0})
                logger.warning(
                    "share partitions not initialized group=%s code=%d", work.group_id, failure
                )
                await self._call(
                    work.group_id,
                    lambda shard, *when: requests.give_up_initialization(
                        shard, work.group_id, work.numbers, *when
                    ),
                )
                return
            await self._finish_initialization(work.group_id, work.numbers)
        except KafkaError as error:
            logger.info(
                "initialization of share partitions not recorded group=%s error=%r",
                work.group_id,
                error,
            )
        except Exception:  # A fault must not end the node.
            logger.exception("share partitions not initialized group=%s", work.group_id)
        finally:
            self._initializations.end(work)

    async def _finish_initialization(self, group_id: str, numbers: requests.Numbers) -> None:
        await self._call(
            group_id,
            lambda shard, *when: requests.finish_initialization(shard, group_id, numbers, *when),
        )

    async def describe(self, group_id: str) -> DescribedGroup:
        """Describe a group; many members are described in slices."""
        described, members = await self.service.read(
            self.partition_of(group_id), lambda shard: requests.describe(shard, group_id)
        )
        topics, slices = self.topics(), Slices()
        for member in members:
            described.members.append(requests.describe_member(member, topics))
            await slices.pause()
        return described

    async def delete_state(self, group_id: str) -> None:
        """Delete the state of all partitions of a group without members; raises KafkaError."""
        with self._deletions.begin(group_id):
            numbers: Mapping[bytes, frozenset[int]] = await self._call(
                group_id, lambda shard, *when: requests.begin_group_deletion(shard, group_id, *when)
            )
            for topic_id, partitions in numbers.items():
                raise_for_code(
                    await state_calls.delete(self._persister, group_id, topic_id, partitions)
                )

    # Offsets

    async def alter_offsets(
        self, group_id: str, offsets: Mapping[str, Mapping[int, int]]
    ) -> list[AlteredTopic]:
        """Set start offsets, by topic and partition; the group must have no members.

        Raises KafkaError if no offset can be set.
        """
        topics = self.topics()
        of_topics: dict[bytes, dict[int, int]] = {}
        for name, of_topic in offsets.items():
            topic_id = topics.id_of(name)
            if topic_id is not None:
                count = topics.partition_count(topic_id)
                of_topics[topic_id] = {
                    n: offset for n, offset in of_topic.items() if 0 <= n < count
                }
        await give_way()  # Decoding the request and encoding its record each take a whole turn.
        await self._deletions.wait_ended(group_id)
        begun: requests.OffsetAlteration = await self._call(
            group_id,
            lambda shard, *when: requests.begin_alteration(shard, group_id, of_topics, *when),
        )
        codes: dict[bytes, dict[int, int]] = {}
        numbers = {topic_id: frozenset(each) for topic_id, each in begun.offsets.items()}
        initialization = self._initializations.begin(Initialization(group_id, begun.epoch, numbers))
        try:
            for topic_id, of_topic in begun.offsets.items():
                codes[topic_id] = await state_calls.replace(
                    self._persister, group_id, topic_id, begun.epoch, of_topic
                )
            done = {
                topic_id: [n for n, code in each.items() if not code]
                for topic_id, each in codes.items()
                if not all(each.values())
            }
            if done:
                await self._finish_initialization(group_id, done)
        finally:
            self._initializations.end(initialization)
        return [
            _answer_alteration(name, topics.id_of(name), of_topic, codes)
            for name, of_topic in offsets.items()
        ]

    async def delete_offsets(self, group_id: str, names: Sequence[str]) -> list[DeletedTopic]:
        """Delete the state of topics; the group must have no members.

        Raises KafkaError if no state can be deleted.
        """
        topics = self.topics()
        ids = {name: topics.id_of(name) for name in names}
        with self._deletions.begin(group_id):
            return await self._delete_offsets(group_id, ids)

    async def _delete_offsets(
        self, group_id: str, ids: Mapping[str, bytes | None]
    ) -> list[DeletedTopic]:
        by_id = {topic_id: name for name, topic_id in ids.items() if topic_id is not None}
        begun: requests.Deletion = await self._call(
            group_id,
            lambda shard, *when: requests.begin_deletion(shard, group_id, list(by_id), *when),
        )
        failed: list[DeletedTopic] = []
        for name, topic_id in ids.items():
            if topic_id is None:
                failed.append(_not_deleted(name, UnknownTopicOrPartition.code))
            elif topic_id in begun.without_state:
                failed.append(_not_deleted(name, UnknownTopicOrPartition.code, _NO_STATE))
        done: list[bytes] = []
        for topic_id, partitions in begun.numbers.items():
            code = await state_calls.delete(self._persister, group_id, topic_id, partitions)
            if code:
                failed.append(_not_deleted(by_id[topic_id], code, topic_id=topic_id))
            else:
                done.append(topic_id)
        if done:
            await self._call(
                group_id,
                lambda shard, *when: requests.finish_deletion(shard, group_id, done, *when),
            )
        return [DeletedTopic(topic_name=by_id[each], topic_id=each) for each in done] + failed

    async def describe_all_offsets(self, group_id: str) -> list[DescribedTopic]:
        """Describe the offsets of all share partitions that are initialized."""
        numbers = await self.service.read(
            self.partition_of(group_id), lambda shard: requests.read_initialized(shard, group_id)
        )
        topics = self.topics()
        named = {
            name: sorted(partitions)
            for topic_id, partitions in numbers.items()
            if (name := topics.name_of(topic_id)) is not None
        }
        return await self.describe_offsets(group_id, named)

    async def describe_offsets(
        self, group_id: str, partitions: Mapping[str, Sequence[int]]
    ) -> list[DescribedTopic]:
        """Describe the offsets of partitions by topic, with the group's lag."""
        topics = self.topics()
        summaries: dict[str, dict[int, Summary]] = {}
        for name, numbers in partitions.items():
            topic_id = topics.id_of(name)
            if topic_id is not None:
                summaries[name] = await state_calls.summaries(
                    self._persister, group_id, topic_id, numbers
                )
        lagging = [
            TopicPartition(name, number)
            for name, of_topic in summaries.items()
            for number, summary in of_topic.items()
            if _has_lag(summary)
        ]
        ends = await self.ports.end_offsets(lagging) if lagging else {}
        described = []
        slices = Slices()
        for name, of_topic in summaries.items():
            answers = []
            for number, summary in of_topic.items():
                answers.append(
                    _answer_description(number, summary, ends.get(TopicPartition(name, number)))
                )
                await slices.pause()
            topic_id = topics.id_of(name) or ZERO_UUID
            described.append(DescribedTopic(topic_name=name, topic_id=topic_id, partitions=answers))
        return described + [
            _answer_unknown_topic(name, numbers)
            for name, numbers in partitions.items()
            if name not in summaries
        ]

    @property
    def _persister(self) -> "Persister":
        return self.ports.persister()

    async def _call(
        self, group_id: str, decide: Callable[[GroupShard, Moment, int], Decision]
    ) -> Opaque:
        return await self.service.call(self.partition_of(group_id), decide)


def _answer_alteration(
    name: str,
    topic_id: bytes | None,
    offsets: Mapping[int, int],
    codes: Mapping[bytes, Mapping[int, int]],
) -> AlteredTopic:
    """Return the answer for one topic; ``codes`` has the codes of the partitions that exist."""
    of_topic = codes.get(topic_id or ZERO_UUID, {})
    answers = [
        AlteredTopic.AlterShareGroupOffsetsResponsePartition(
            partition_index=number, error_code=of_topic.get(number, UnknownTopicOrPartition.code)
        )
        for number in offsets
    ]
    return AlteredTopic(topic_name=name, topic_id=topic_id or ZERO_UUID, partitions=answers)


def _not_deleted(
    name: str, code: int, message: str | None = None, topic_id: bytes = ZERO_UUID
) -> DeletedTopic:
    return DeletedTopic(topic_name=name, topic_id=topic_id, error_code=code, error_message=message)


def _has_lag(summary: Summary) -> bool:
    """Return whether the group's lag can be computed."""
    return (
        not summary.error_code
        and summary.start_offset != UNINITIALIZED
        and summary.delivery_complete_count != UNKNOWN_COUNT
    )


def _answer_description(
    number: int, summary: Summary, end: int | KafkaError | None
) -> DescribedPartition:
    """Return the answer for one partition; ``end`` is None if the lag cannot be computed."""
    if isinstance(end, KafkaError):
        return DescribedPartition(
            partition_index=number,
            start_offset=0,
            leader_epoch=0,
            error_code=end.code,
            error_message=end.text,
        )
    start, leader_epoch = summary.start_offset, summary.leader_epoch
    if summary.error_code:
        start, leader_epoch = UNINITIALIZED, 0
    lag = -1 if end is None else end - start - summary.delivery_complete_count
    return DescribedPartition(
        partition_index=number, start_offset=start, leader_epoch=leader_epoch, lag=lag
    )


def _answer_unknown_topic(name: str, numbers: Sequence[int]) -> DescribedTopic:
    """Return the answer for a topic that does not exist: no offsets, as for an unread topic."""
    return DescribedTopic(
        topic_name=name,
        topic_id=ZERO_UUID,
        partitions=[
            DescribedPartition(partition_index=number, start_offset=UNINITIALIZED, leader_epoch=0)
            for number in numbers
        ],
    )
