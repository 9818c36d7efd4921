"""One group of each kind, each with a member, and every request about groups sent to each."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from compat_tests.harness.wait import eventually
from compat_tests.harness.wire import connect_to_coordinator
from kwire.codec.compile import encode
from kwire.codec.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from kwire.codec.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kwire.codec.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kwire.codec.messages.consumer_protocol import ConsumerProtocolSubscription
from kwire.codec.messages.delete_groups import DeleteGroupsRequest
from kwire.codec.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from kwire.codec.messages.describe_groups import DescribeGroupsRequest
from kwire.codec.messages.describe_share_group_offsets import DescribeShareGroupOffsetsRequest
from kwire.codec.messages.heartbeat import HeartbeatRequest
from kwire.codec.messages.join_group import JoinGroupRequest
from kwire.codec.messages.leave_group import LeaveGroupRequest
from kwire.codec.messages.list_groups import ListGroupsRequest
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.codec.messages.offset_delete import OffsetDeleteRequest
from kwire.codec.messages.offset_fetch import OffsetFetchRequest
from kwire.codec.messages.share_group_describe import ShareGroupDescribeRequest
from kwire.codec.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kwire.codec.messages.streams_group_describe import StreamsGroupDescribeRequest
from kwire.codec.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from kwire.codec.messages.sync_group import SyncGroupRequest
from kwire.errors import BY_CODE, kafka_name
from kwire.testing.wire import WireClient

KINDS = ("classic", "consumer", "share", "streams", "missing")
MEMBER = str(uuid.UUID(int=7))
MISSING_EPOCH = 5
SUBSCRIPTION = b"\0\0" + encode(ConsumerProtocolSubscription(topics=["t"]), 0)


def consumer_beat(group: str, topic: str, epoch: int = 0) -> ConsumerGroupHeartbeatRequest:
    joins = epoch == 0
    return ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=MEMBER,
        member_epoch=epoch,
        rebalance_timeout_ms=60_000 if joins else -1,
        subscribed_topic_names=[topic] if joins else None,
        topic_partitions=[] if joins else None,
    )


def share_beat(group: str, topic: str, epoch: int = 0) -> ShareGroupHeartbeatRequest:
    return ShareGroupHeartbeatRequest(
        group_id=group,
        member_id=MEMBER,
        member_epoch=epoch,
        subscribed_topic_names=[topic] if epoch == 0 else None,
    )


def streams_beat(group: str, topic: str, epoch: int = 0) -> StreamsGroupHeartbeatRequest:
    joins = epoch == 0
    shape = StreamsGroupHeartbeatRequest.Topology
    topology = shape(
        epoch=0, subtopologies=[shape.Subtopology(subtopology_id="0", source_topics=[topic])]
    )
    return StreamsGroupHeartbeatRequest(
        group_id=group,
        member_id=MEMBER,
        member_epoch=epoch,
        endpoint_information_epoch=-1,
        rebalance_timeout_ms=60_000 if joins else -1,
        process_id="p" if joins else None,
        topology=topology if joins else None,
        active_tasks=[] if joins else None,
        standby_tasks=[] if joins else None,
        warmup_tasks=[] if joins else None,
    )


def join_group(group: str, member_id: str) -> JoinGroupRequest:
    shape = JoinGroupRequest.JoinGroupRequestProtocol
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=45_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[shape(name="range", metadata=SUBSCRIPTION)],
    )


def commit(group: str, topic: str, member_id: str, epoch: int) -> OffsetCommitRequest:
    shape = OffsetCommitRequest.OffsetCommitRequestTopic
    partition = shape.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=""
    )
    return OffsetCommitRequest(
        group_id=group,
        member_id=member_id,
        generation_id_or_member_epoch=epoch,
        topics=[shape(name=topic, partitions=[partition])],
    )


def fetch(group: str, member_id: str | None, epoch: int) -> OffsetFetchRequest:
    shape = OffsetFetchRequest.OffsetFetchRequestGroup
    return OffsetFetchRequest(
        groups=[shape(group_id=group, member_id=member_id, member_epoch=epoch, topics=None)]
    )


def result(answer: Any) -> str:
    """Return the error's name, and the message if there is one."""
    code = answer.error_code
    name = kafka_name(BY_CODE[code]) if code else "NONE"
    message = getattr(answer, "error_message", None)
    return f"{name}: {message}" if message else name


class Groups:
    """One group of each kind, with one member each."""

    def __init__(self, address: str, topic: str, suffix: str) -> None:
        self.topic = topic
        self.names = {kind: f"{kind}-{suffix}" for kind in KINDS}
        self.clients = {
            kind: connect_to_coordinator(address, name) for kind, name in self.names.items()
        }

    def _has_joined(self, kind: str, request: Any, version: int) -> bool:
        return bool(self.clients[kind].call(request, version).error_code == 0)

    def begin(self) -> None:
        for kind, beat, version in (
            ("consumer", consumer_beat, 1),
            ("share", share_beat, 1),
            ("streams", streams_beat, 0),
        ):
            request = beat(self.names[kind], self.topic)
            eventually(partial(self._has_joined, kind, request, version), f"the {kind} group")
        name, client = self.names["classic"], self.clients["classic"]

        def join() -> bool:
            member = client.call(join_group(name, ""), 9).member_id
            joined = client.call(join_group(name, member), 9)
            if joined.error_code:
                return False
            shape = SyncGroupRequest.SyncGroupRequestAssignment
            sync = SyncGroupRequest(
                group_id=name,
                generation_id=joined.generation_id,
                member_id=member,
                protocol_type="consumer",
                protocol_name="range",
                assignments=[shape(member_id=member, assignment=b"")],
            )
            return client.call(sync, 5).error_code == 0

        eventually(join, "the classic group")

    def close(self) -> None:
        for client in self.clients.values():
            client.close()

    def answers(self) -> Iterator[tuple[str, str, str]]:
        """Yield the operation, the kind of the group, and its result."""
        for operation, ask in OPERATIONS.items():
            for kind, name in self.names.items():
                if (operation, kind) in SKIPPED:
                    continue
                outcome = ask(self.clients[kind], name, self.topic)
                yield operation, kind, outcome.replace(name, "G").replace(self.topic, "T")


def _describe(client: WireClient, name: str, topic: str) -> str:
    (group,) = client.call(DescribeGroupsRequest(groups=[name]), 6).groups
    return f"{result(group)} {group.group_state} {group.protocol_type}"


def _modern(shape: Any, version: int) -> Callable[[WireClient, str, str], str]:
    def ask(client: WireClient, name: str, topic: str) -> str:
        request = shape(group_ids=[name], include_authorized_operations=False)
        return result(client.call(request, version).groups[0])

    return ask


def _commit(member_id: str, epoch: int) -> Callable[[WireClient, str, str], str]:
    def ask(client: WireClient, name: str, topic: str) -> str:
        answer = client.call(commit(name, topic, member_id, epoch), 9)
        return result(answer.topics[0].partitions[0])

    return ask


def _fetch(member_id: str | None, epoch: int) -> Callable[[WireClient, str, str], str]:
    def ask(client: WireClient, name: str, topic: str) -> str:
        return result(client.call(fetch(name, member_id, epoch), 9).groups[0])

    return ask


def _delete_offset(client: WireClient, name: str, topic: str) -> str:
    shape = OffsetDeleteRequest.OffsetDeleteRequestTopic
    partition = shape.OffsetDeleteRequestPartition(partition_index=0)
    request = OffsetDeleteRequest(group_id=name, topics=[shape(name=topic, partitions=[partition])])
    answer = client.call(request, 0)
    of_partition = [result(p) for each in answer.topics for p in each.partitions]
    return f"{result(answer)} {of_partition}"


def _share_offsets(client: WireClient, name: str, topic: str) -> str:
    shape = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
    request = DescribeShareGroupOffsetsRequest(groups=[shape(group_id=name, topics=None)])
    return result(client.call(request, 1).groups[0])


def _alter_share_offsets(client: WireClient, name: str, topic: str) -> str:
    shape = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic
    partition = shape.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)
    request = AlterShareGroupOffsetsRequest(
        group_id=name, topics=[shape(topic_name=topic, partitions=[partition])]
    )
    return result(client.call(request, 0))


def _delete_share_offsets(client: WireClient, name: str, topic: str) -> str:
    shape = DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic
    request = DeleteShareGroupOffsetsRequest(group_id=name, topics=[shape(topic_name=topic)])
    return result(client.call(request, 0))


def _leave(client: WireClient, name: str, topic: str) -> str:
    shape = LeaveGroupRequest.MemberIdentity
    request = LeaveGroupRequest(group_id=name, members=[shape(member_id="x")])
    answer = client.call(request, 5)
    return f"{result(answer)} {[result(each) for each in answer.members]}"


def _sync(client: WireClient, name: str, topic: str) -> str:
    request = SyncGroupRequest(
        group_id=name,
        generation_id=1,
        member_id="x",
        protocol_type="consumer",
        protocol_name="range",
        assignments=[],
    )
    return result(client.call(request, 5))


OPERATIONS: dict[str, Callable[[WireClient, str, str], str]] = {
    "DescribeGroups": _describe,
    "ConsumerGroupDescribe": _modern(ConsumerGroupDescribeRequest, 1),
    "ShareGroupDescribe": _modern(ShareGroupDescribeRequest, 1),
    "StreamsGroupDescribe": _modern(StreamsGroupDescribeRequest, 0),
    "ConsumerGroupHeartbeat of a member": lambda client, name, topic: result(
        client.call(consumer_beat(name, topic, MISSING_EPOCH), 1)
    ),
    "ConsumerGroupHeartbeat that joins": lambda client, name, topic: result(
        client.call(consumer_beat(name, topic), 1)
    ),
    "ConsumerGroupHeartbeat that leaves": lambda client, name, topic: result(
        client.call(consumer_beat(name, topic, -1), 1)
    ),
    "ShareGroupHeartbeat of a member": lambda client, name, topic: result(
        client.call(share_beat(name, topic, MISSING_EPOCH), 1)
    ),
    "ShareGroupHeartbeat that joins": lambda client, name, topic: result(
        client.call(share_beat(name, topic), 1)
    ),
    "ShareGroupHeartbeat that leaves": lambda client, name, topic: result(
        client.call(share_beat(name, topic, -1), 1)
    ),
    "StreamsGroupHeartbeat of a member": lambda client, name, topic: result(
        client.call(streams_beat(name, topic, MISSING_EPOCH), 0)
    ),
    "StreamsGroupHeartbeat that joins": lambda client, name, topic: result(
        client.call(streams_beat(name, topic), 0)
    ),
    "StreamsGroupHeartbeat that leaves": lambda client, name, topic: result(
        client.call(streams_beat(name, topic, -1), 0)
    ),
    "JoinGroup": lambda client, name, topic: result(client.call(join_group(name, "x"), 9)),
    "SyncGroup": _sync,
    "Heartbeat": lambda client, name, topic: result(
        client.call(HeartbeatRequest(group_id=name, generation_id=1, member_id="x"), 4)
    ),
    "LeaveGroup": _leave,
    "OffsetCommit without a member": _commit("", -1),
    "OffsetCommit of a stranger": _commit("x", MISSING_EPOCH),
    "OffsetFetch without a member": _fetch(None, -1),
    "OffsetFetch of a stranger": _fetch("x", MISSING_EPOCH),
    "OffsetDelete": _delete_offset,
    "DescribeShareGroupOffsets": _share_offsets,
    "AlterShareGroupOffsets": _alter_share_offsets,
    "DeleteShareGroupOffsets": _delete_share_offsets,
    "DeleteGroups": lambda client, name, topic: result(
        client.call(DeleteGroupsRequest(groups_names=[name]), 2).results[0]
    ),
}
JOINS = {
    ("ConsumerGroupHeartbeat", "consumer"),
    ("ConsumerGroupHeartbeat", "classic"),
    ("ShareGroupHeartbeat", "share"),
    ("StreamsGroupHeartbeat", "streams"),
}
SKIPPED = (
    {(f"{api} that {verb}", kind) for api, kind in JOINS for verb in ("joins", "leaves")}
    | {(f"{api}GroupHeartbeat that joins", "missing") for api in ("Consumer", "Share", "Streams")}
    | {
        ("OffsetCommit without a member", "missing"),
        ("AlterShareGroupOffsets", "missing"),
    }
)
"""Requests that are in order, or change the kind of the group."""


def list_kinds(groups: Groups, **filters: list[str]) -> dict[str, tuple[str, str, str]]:
    """Return the state, protocol type and type of each group in the listing, by its kind."""
    clients = {(c.sock.getpeername()): c for c in groups.clients.values()}
    groups_by_id = {}
    for client in clients.values():
        for group in client.call(ListGroupsRequest(**filters), 5).groups:
            groups_by_id[group.group_id] = (
                group.group_state,
                group.protocol_type,
                group.group_type,
            )
    return {k: groups_by_id[name] for k, name in groups.names.items() if name in groups_by_id}
