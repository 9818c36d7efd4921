"""Every API of Kafka 4.3, and what 4.4 adds: key, name, versions, listeners.

The table lists all existing APIs; :mod:`kwire.handlers.unserved` lists those that kwire does not
serve. There is one line per API: the stable versions of 4.3, then letters for its listeners. B
means the listeners for clients and brokers, C the controller's listener; F means that brokers
forward the API to the active controller.
"""

import enum
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Final

import attrs

from kwire.codec.schema import Message, Request, Versions


class ListenerType(enum.Flag):
    """The kind of listener on which a request arrived."""

    BROKER = enum.auto()
    CONTROLLER = enum.auto()


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Api:
    """One API: its key, versions and listeners, and its message classes."""

    key: int
    name: str
    module: str
    """The name of the API's module in :mod:`kwire.codec.messages`, and of its handler's module."""
    first: int
    last: int
    """The last version that the message table can decode; versions above ``stable`` stay
    internal."""
    stable: int
    """The last stable version of 4.3; -1 if there is none."""
    advertised: tuple[int, int] | None
    """The versions that Apache Kafka 4.3 advertises; Produce starts at 0, its table at 3.

    None if it advertises none by default.
    """
    listener_types: ListenerType
    """The kinds of listener on which Kafka serves it."""
    forwarded: bool
    """True if brokers forward it to the active controller."""

    def is_stable(self, version: int) -> bool:
        """Return whether ``version`` is stable in 4.3."""
        return self.first <= version <= self.stable

    @property
    def request(self) -> type[Request[object]]:
        """The request's message class, imported on first use."""
        request: type[Request[object]] = getattr(_messages(self.module), f"{self.name}Request")
        return request

    @property
    def response(self) -> type[Message]:
        """The response's message class, imported on first use."""
        response: type[Message] = getattr(_messages(self.module), f"{self.name}Response")
        return response


@cache
def _messages(module: str) -> ModuleType:
    return import_module(f"kwire.codec.messages.{module}")


_ALL_STABLE: Final = (-1, -1)
"""A marker for "from the first to the last stable version", as for nearly every API."""
_LETTERS: Final = {"B": ListenerType.BROKER, "C": ListenerType.CONTROLLER}


def _api(
    key: int,
    name: str,
    versions: str,
    listeners: str,
    *,
    last: int | None = None,
    stable: int | None = None,
    advertised: tuple[int, int] | None = _ALL_STABLE,
) -> Api:
    table = Versions.parse(versions)
    last_stable = table.last if stable is None else stable
    snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    if advertised == _ALL_STABLE:
        advertised = (table.first, last_stable) if last_stable >= 0 else None
    listener_types = ListenerType(0)
    for letter, listener_type in _LETTERS.items():
        if letter in listeners:
            listener_types |= listener_type
    return Api(
        key=key,
        name=name,
        module=snake[1:],
        first=table.first,
        last=table.last if last is None else last,
        stable=last_stable,
        advertised=advertised,
        listener_types=listener_types,
        forwarded="F" in listeners,
    )


APIS: Final = (
    _api(0, "Produce", "3-13", "B", advertised=(0, 13)),
    _api(1, "Fetch", "4-18", "BC"),
    _api(2, "ListOffsets", "1-11", "B"),
    _api(3, "Metadata", "0-13", "B"),
    _api(8, "OffsetCommit", "2-10", "B"),
    _api(9, "OffsetFetch", "1-10", "B"),
    _api(10, "FindCoordinator", "0-6", "B"),
    _api(11, "JoinGroup", "0-9", "B"),
    _api(12, "Heartbeat", "0-4", "B"),
    _api(13, "LeaveGroup", "0-5", "B"),
    _api(14, "SyncGroup", "0-5", "B"),
    _api(15, "DescribeGroups", "0-6", "B"),
    _api(16, "ListGroups", "0-5", "B"),
    _api(17, "SaslHandshake", "0-1", "BC"),
    _api(18, "ApiVersions", "0-4", "BC", last=5),
    _api(19, "CreateTopics", "2-7", "BCF"),
    _api(20, "DeleteTopics", "1-6", "BCF"),
    _api(21, "DeleteRecords", "0-2", "B"),
    _api(22, "InitProducerId", "0-5", "B", last=6),
    _api(23, "OffsetForLeaderEpoch", "2-4", "B"),
    _api(24, "AddPartitionsToTxn", "0-5", "B"),
    _api(25, "AddOffsetsToTxn", "0-4", "B"),
    _api(26, "EndTxn", "0-5", "B"),
    _api(27, "WriteTxnMarkers", "1-2", "B"),
    _api(28, "TxnOffsetCommit", "0-5", "B", last=6),
    _api(29, "DescribeAcls", "1-3", "BC"),
    _api(30, "CreateAcls", "1-3", "BCF"),
    _api(31, "DeleteAcls", "1-3", "BCF"),
    _api(32, "DescribeConfigs", "1-4", "BC"),
    _api(33, "AlterConfigs", "0-2", "BCF"),
    _api(34, "AlterReplicaLogDirs", "1-2", "B"),
    _api(35, "DescribeLogDirs", "1-5", "B"),
    _api(36, "SaslAuthenticate", "0-2", "BC"),
    _api(37, "CreatePartitions", "0-3", "BCF"),
    _api(38, "CreateDelegationToken", "1-3", "BCF"),
    _api(39, "RenewDelegationToken", "1-2", "BCF"),
    _api(40, "ExpireDelegationToken", "1-2", "BCF"),
    _api(41, "DescribeDelegationToken", "1-3", "BC"),
    _api(42, "DeleteGroups", "0-2", "B", last=3),
    _api(43, "ElectLeaders", "0-2", "BCF"),
    _api(44, "IncrementalAlterConfigs", "0-1", "BCF"),
    _api(45, "AlterPartitionReassignments", "0-1", "BCF"),
    _api(46, "ListPartitionReassignments", "0", "BCF"),
    _api(47, "OffsetDelete", "0", "B"),
    _api(48, "DescribeClientQuotas", "0-1", "B"),
    _api(49, "AlterClientQuotas", "0-1", "BCF"),
    _api(50, "DescribeUserScramCredentials", "0", "BC"),
    _api(51, "AlterUserScramCredentials", "0", "BCF"),
    _api(52, "Vote", "0-2", "C"),
    _api(53, "BeginQuorumEpoch", "0-1", "C"),
    _api(54, "EndQuorumEpoch", "0-1", "C"),
    _api(55, "DescribeQuorum", "0-2", "BCF"),
    _api(56, "AlterPartition", "2-3", "C"),
    _api(57, "UpdateFeatures", "0-2", "BCF"),
    _api(58, "Envelope", "0", "C"),
    _api(59, "FetchSnapshot", "0-1", "C"),
    _api(60, "DescribeCluster", "0-2", "BC"),
    _api(61, "DescribeProducers", "0", "B"),
    _api(62, "BrokerRegistration", "0-4", "C"),
    _api(63, "BrokerHeartbeat", "0-2", "C"),
    _api(64, "UnregisterBroker", "0", "BCF"),
    _api(65, "DescribeTransactions", "0", "B"),
    _api(66, "ListTransactions", "0-2", "B"),
    _api(67, "AllocateProducerIds", "0", "CF"),
    _api(68, "ConsumerGroupHeartbeat", "0-1", "B"),
    _api(69, "ConsumerGroupDescribe", "0-1", "B"),
    _api(70, "ControllerRegistration", "0", "C"),
    _api(71, "GetTelemetrySubscriptions", "0", "B", advertised=None),
    _api(72, "PushTelemetry", "0", "B", advertised=None),
    _api(73, "AssignReplicasToDirs", "0", "C"),
    _api(74, "ListConfigResources", "0-1", "B"),
    _api(75, "DescribeTopicPartitions", "0", "B"),
    _api(76, "ShareGroupHeartbeat", "1", "B"),
    _api(77, "ShareGroupDescribe", "1", "B"),
    _api(78, "ShareFetch", "1-2", "B"),
    _api(79, "ShareAcknowledge", "1-2", "B"),
    _api(80, "AddRaftVoter", "0-1", "BCF"),
    _api(81, "RemoveRaftVoter", "0", "BCF"),
    _api(82, "UpdateRaftVoter", "0", "C"),
    _api(83, "InitializeShareGroupState", "0", "B"),
    _api(84, "ReadShareGroupState", "0", "B"),
    _api(85, "WriteShareGroupState", "0-1", "B"),
    _api(86, "DeleteShareGroupState", "0", "B"),
    _api(87, "ReadShareGroupStateSummary", "0-1", "B"),
    _api(88, "StreamsGroupHeartbeat", "0", "B", last=1),
    _api(89, "StreamsGroupDescribe", "0", "B", last=1),
    _api(90, "DescribeShareGroupOffsets", "0-1", "B"),
    _api(91, "AlterShareGroupOffsets", "0", "B"),
    _api(92, "DeleteShareGroupOffsets", "0", "B"),
    _api(93, "StreamsGroupTopologyDescriptionUpdate", "0", "B", stable=-1),
    _api(94, "UnregisterController", "0", "BC", stable=-1),
)

BY_KEY: Final = {api.key: api for api in APIS}
BY_NAME: Final = {api.name: api for api in APIS}
