"""The controller's state, and helpers shared by all its deciders.

A decider is a function ``decide_x(state, request) -> Decision``: it reads the state, changes
nothing, and returns the records of the change together with the reply. A decider for requests that
may name thousands of items is a generator that pauses after each item. The metadata changes only by
applying records; to undo a change, the controller returns to an older image. The times of
heartbeats, the queue of leader updates and the placement are not in the log: a decision changes
them through effects, and they are lost with the leadership, as in Kafka.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

import attrs

from kwire.codec.messages import metadata_records as r
from kwire.configs.broker import BrokerConfig
from kwire.configs.resource_types import BROKER, TOPIC
from kwire.configs.topic import TopicConfig
from kwire.drive import STEPS_AT_ONCE, run_steps
from kwire.errors import NONE, KafkaError, PolicyViolation, StaleBrokerEpoch
from kwire.raftmeta.controller.broker_sessions import BrokerSessions
from kwire.raftmeta.controller.leader_update_queue import LeaderUpdateQueue
from kwire.raftmeta.controller.mutation_quota import MutationQuotas
from kwire.raftmeta.controller.partition_change_builder import PartitionChangeBuilder
from kwire.raftmeta.controller.partition_index import PartitionIndex
from kwire.raftmeta.controller.placement import spread
from kwire.raftmeta.metadata.image import (
    Applied,
    BrokerImage,
    MetadataImage,
    PartitionImage,
)
from kwire.raftmeta.metadata.image_change import apply
from kwire.raftmeta.metadata.image_loader import Steps, applying
from kwire.raftmeta.storage.levels import ELR, level_of
from kwire.types import NO_LEADER, DirectoryId, TopicIdPartition, random_uuid

R = TypeVar("R")
Reply_co = TypeVar("Reply_co", covariant=True)
Settings: TypeAlias = Mapping[str, str]

_DONE: Final = object()
NO_BUMP_ON_SHRINK: Final = 12
"""The metadata.version level (3.6-IV0) from which a shrinking ISR needs no new leader epoch."""
Effect: TypeAlias = Callable[[], None]
USER_RECORDS_MAX: Final = 10_000
"""The number of records that one request may produce, as in Kafka."""


@attrs.frozen(eq=False, repr=False)
class ControllerDecision(Generic[Reply_co]):
    """Records to write in one batch, and the reply to send once they are committed."""

    records: tuple[r.MetadataRecord, ...]
    reply: Reply_co
    again: bool = False
    """True if the records are only a slice, and the request must be decided again."""
    effects: tuple[Effect, ...] = ()
    """The changes outside the records: to sessions, queued leader updates and the placement."""

    def take_effect(self) -> None:
        """Make the changes outside the records, once the records are appended."""
        for effect in self.effects:
            effect()


Deciding: TypeAlias = ControllerDecision[R] | Steps[ControllerDecision[R]]
"""The result of a decider: a decision, or steps that lead to a decision."""


def first_steps(deciding: Deciding[R]) -> Deciding[R]:
    """Take a few steps towards a decision; return it, or the remaining steps."""
    if isinstance(deciding, ControllerDecision):
        return deciding
    try:
        for _ in range(STEPS_AT_ONCE):
            next(deciding)
    except StopIteration as end:
        decision: ControllerDecision[R] = end.value
        return decision
    return deciding


def whole(deciding: Deciding[R]) -> ControllerDecision[R]:
    """Return a decision after taking all remaining steps at once."""
    return deciding if isinstance(deciding, ControllerDecision) else run_steps(deciding)


class Outcome(NamedTuple):
    """The result of one item in a request: an error code and, possibly, a message."""

    code: int = NONE
    text: str | None = None


def outcome(error: KafkaError) -> Outcome:
    """Convert an error to the protocol's form."""
    return Outcome(error.code, error.text)


def check_bound(records: Sequence[r.MetadataRecord]) -> None:
    """Reject a request that produces too many records."""
    if len(records) > USER_RECORDS_MAX:
        raise PolicyViolation("Unable to perform excessively large batch operation.")


@attrs.define(kw_only=True, eq=False, repr=False)
class ControllerState:
    """The active controller's metadata, as if everything it has written were committed."""

    config: BrokerConfig
    random: Random
    cluster_id: str = ""
    image: MetadataImage = attrs.field(factory=MetadataImage)
    next_offset: int = 0
    """The offset of the next record to write."""
    now: float = 0.0
    """The time of the decision in progress, in monotonic seconds."""
    sessions: BrokerSessions = attrs.field(factory=BrokerSessions)
    supported_features: dict[str, tuple[int, int]] = attrs.field(factory=dict)
    placement: int = 0
    """The starting broker of the next topic's striping; it advances with each topic."""
    leader_update_queue: LeaderUpdateQueue = attrs.field(factory=LeaderUpdateQueue)
    """Partitions whose leader or ISR is still to be checked."""
    mutations: MutationQuotas = attrs.field(factory=MutationQuotas)
    """The quotas on creations and deletions by clients."""
    failing_dirs: frozenset[bytes] = frozenset()
    """The failed directories in the heartbeat being decided, which no session has yet."""
    _index: PartitionIndex | None = None
    _building: tuple[PartitionIndex, Iterator[None]] | None = None
    _dotted: dict[str, str] | None = None
    """Topic names with ``.`` or ``_``, keyed by their name in metrics; None until first used."""
    _cluster: tuple[Settings | None, Settings | None, BrokerConfig] | None = None
    """The cluster-wide settings, this node's own, and the config that results from both."""

    def __attrs_post_init__(self) -> None:
        config = self.config
        self.sessions.timeout_s = config.broker_session_timeout_ms / 1000
        windows_s = config.controller_quota_window_num * config.controller_quota_window_size_seconds
        self.mutations.burst_s = float(windows_s)

    def apply(self, records: Iterable[r.MetadataRecord], applied: Applied) -> None:
        """Apply written records."""
        run_steps(self.applying(records, applied))

    def applying(self, records: Iterable[r.MetadataRecord], applied: Applied) -> Steps[None]:
        """Apply written records step by step; the image changes with the last step.

        No decider may run between two steps, because the index is then ahead of the image.
        """
        image, delta = yield from applying(self.image, records, applied)
        if self._index is not None:
            yield from self._index.updating(delta)
        elif delta.partitions or delta.deleted_topics:
            self._building = None
        self.image, self.next_offset = image, applied.offset + 1
        if self._dotted is not None:
            for topic in delta.deleted_topics.values():
                self._dotted.pop(_metric_name(topic.name), None)
            for topic_id in delta.created_topics:
                self._note(self._dotted, self.image.topics[topic_id].name)

    def supposing(
        self, records: Sequence[r.MetadataRecord], failed_dirs: Iterable[bytes] = ()
    ) -> "ControllerState":
        """Return the state as if an unfinished decision's ``records`` were applied.

        ``failed_dirs``: the failed directories that the heartbeat being decided lists.
        """
        failing = frozenset(failed_dirs)
        if not records and not failing:
            return self
        return attrs.evolve(self, image=apply(self.image, records)[0], failing_dirs=failing)

    @property
    def index(self) -> PartitionIndex:
        """The index of partitions by broker; the first use builds the rest of it at once."""
        while not self.build_index():
            pass
        assert self._index is not None
        return self._index

    def build_index(self) -> bool:
        """Build another part of a new active controller's index; return whether it is complete."""
        if self._index is not None:
            return True
        if self._building is None:
            index = PartitionIndex()
            self._building = (index, index.build(self.image))
        index, steps = self._building
        if next(steps, _DONE) is not _DONE:
            return False
        self._index, self._building = index, None
        return True

    def reset(self, image: MetadataImage, next_offset: int) -> None:
        """Return to the committed ``image``, because leadership of the quorum began or ended."""
        self.image, self.next_offset, self._dotted = image, next_offset, None
        self._index = self._building = None
        self.sessions.clear()
        self.leader_update_queue.clear()
        self.mutations.clear()

    @staticmethod
    def _note(dotted: dict[str, str], name: str) -> None:
        if "." in name or "_" in name:
            dotted[_metric_name(name)] = name

    def colliding(self, name: str) -> str | None:
        """Return a topic that collides with ``name`` in metrics, which equate ``.`` and ``_``."""
        if "." not in name and "_" not in name:
            return None
        if self._dotted is None:
            self._dotted = {}
            for other in self.image.topic_ids:
                self._note(self._dotted, other)
        return self._dotted.get(_metric_name(name))

    def stripe_of(self, first: PartitionImage) -> int:
        """Return the broker where a topic's striping starts: that of its first replica, or 0."""
        order = spread(b for b in self.image.brokers.values() if b.is_active)
        return order.index(first.replicas[0]) if first.replicas[0] in order else 0

    def place_from(self, placement: int) -> None:
        """Set the starting broker of the next topic's striping."""
        self.placement = placement

    def new_id(self) -> bytes:
        """Return a new uuid from the state's own source of random bytes."""
        return random_uuid(self.random.randbytes)

    def broker(self, broker_id: int, epoch: int) -> BrokerImage:
        """Return a registered broker; reject the request of another incarnation."""
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            raise StaleBrokerEpoch(f"No broker registration found for broker id {broker_id}")
        if broker.epoch != epoch:
            raise StaleBrokerEpoch(
                f"Expected broker epoch {broker.epoch}, but got broker epoch {epoch}"
            )
        return broker

    def is_active(self, broker_id: int) -> bool:
        """Return whether a broker may lead partitions and join ISRs."""
        broker = self.image.brokers.get(broker_id)
        return broker is not None and broker.is_active

    def has_online(self, broker_id: int, directory: bytes) -> bool:
        """Return whether the directory of a broker's replica is online."""
        broker = self.image.brokers.get(broker_id)
        return broker is not None and broker.has_online(directory)

    def is_missing(self, broker_id: int, directory: bytes) -> bool:
        """Return whether a broker started without a directory, as far as its heartbeats show.

        A directory that failed later is not missing: the broker cannot begin its logs anew while
        it runs. The image has neither of the two; only heartbeats list the failed ones.
        """
        if self.has_online(broker_id, directory) or directory in self.failing_dirs:
            return False
        return not self.sessions.may_have_failed(broker_id, directory)

    def default_directory(self, broker_id: int) -> bytes:
        """Return a new replica's directory: the broker's only one, else MIGRATING or UNASSIGNED."""
        broker = self.image.brokers.get(broker_id)
        if broker is None or not broker.log_dirs:
            return DirectoryId.MIGRATING
        return broker.log_dirs[0] if len(broker.log_dirs) == 1 else DirectoryId.UNASSIGNED

    @property
    def elr_enabled(self) -> bool:
        """True if eligible leader replicas are tracked (KIP-966)."""
        return self.image.features.get(ELR, 0) > 0

    def topic_config(self, name: str) -> TopicConfig:
        """Return a topic's effective settings."""
        return TopicConfig(self.image.config(TOPIC, name), self.cluster_config(), stored=True)

    def _rules(self, topic: str) -> tuple[int, bool]:
        """Return a topic's min.insync.replicas, and whether it allows unclean leaders."""
        if (TOPIC, topic) not in self.image.configs:
            cluster = self.cluster_config()
            return cluster.min_insync_replicas, cluster.unclean_leader_election_enable
        config = self.topic_config(topic)
        return config.min_insync_replicas, config.unclean_leader_election_enable

    def cluster_config(self) -> BrokerConfig:
        """Return this node's config with the run-time settings of the cluster and of this node."""
        cluster = self.image.configs.get((BROKER, ""))
        own = self.image.configs.get((BROKER, str(self.config.node_id)))
        if cluster is None and own is None:
            return self.config
        cached = self._cluster
        if cached is None or cached[0] is not cluster or cached[1] is not own:
            config = self.config.with_dynamic(cluster or {}, own or {})
            cached = self._cluster = (cluster, own, config)
        return cached[2]

    def change(
        self,
        topic_id: bytes,
        number: int,
        *,
        acceptable: Callable[[int], bool] | None = None,
    ) -> PartitionChangeBuilder:
        """Begin a change to a partition, with the topic's effective settings.

        ``acceptable`` decides whether a broker may lead; by default, every active broker may. A
        replica in an offline directory may never lead.
        """
        topic = self.image.topics[topic_id]
        min_isr, unclean = self._rules(topic.name)
        partition = topic.partitions[number]
        return PartitionChangeBuilder(
            topic_id=topic_id,
            number=number,
            partition=partition,
            acceptable=acceptable or self.is_active,
            directory_of=self.default_directory,
            has_online=self.has_online,
            is_missing=self.is_missing,
            min_isr=min(min_isr, len(topic.partitions[0].replicas)),
            elr_enabled=self.elr_enabled,
            bump_on_shrink=level_of(self.image.features) < NO_BUMP_ON_SHRINK,
            unclean=unclean,
        )


def clear_elr(
    state: ControllerState, settings: Iterable[r.ConfigRecord]
) -> Steps[list[r.ClearElrRecord | r.PartitionChangeRecord]]:
    """Clear the eligible replicas when min.insync.replicas changes, because they depend on it.

    Partitions without an in-sync replica keep their eligible replicas: nothing is committed there
    until an eligible replica leads, and without eligible replicas only an unclean election could
    find a leader.
    """
    if not state.elr_enabled:
        return []
    names = dict.fromkeys(
        setting.resource_name if setting.resource_type == TOPIC else ""
        for setting in settings
        if setting.name == "min.insync.replicas"
    )
    unchanged: dict[TopicIdPartition, r.PartitionChangeRecord] = {}
    for name in names:
        for topic_id, number in _partitions_that_may_lack_isr(state, name):
            partition = state.image.topics[topic_id].partitions[number]
            if not partition.isr and (partition.elr or partition.last_known_elr):
                unchanged[topic_id, number] = _unchanged_elr(partition, topic_id, number)
            yield
    return [*(r.ClearElrRecord(topic_name=name) for name in names), *unchanged.values()]


def _partitions_that_may_lack_isr(
    state: ControllerState, topic_name: str
) -> Iterable[TopicIdPartition]:
    """Return the partitions of a topic, or the leaderless ones of all topics for an empty name."""
    if not topic_name:
        return state.index.led_by(NO_LEADER)
    topic = state.image.topic(topic_name)
    return [] if topic is None else ((topic.id, number) for number in range(len(topic.partitions)))


def _unchanged_elr(
    partition: PartitionImage, topic_id: bytes, number: int
) -> r.PartitionChangeRecord:
    return r.PartitionChangeRecord(
        topic_id=topic_id,
        partition_id=number,
        eligible_leader_replicas=list(partition.elr),
        last_known_elr=list(partition.last_known_elr),
    )


def _metric_name(name: str) -> str:
    return name.replace(".", "_")
