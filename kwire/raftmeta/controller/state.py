"""The controller's state, and what all its deciders share.

A decider is a function ``decide_x(state, request, now) -> Decision``: it looks at the state,
changes nothing that matters, and returns the records that would make it so together with the
reply. Applying records is the only way the metadata changes; undoing is keeping an older image.
What is not in the log (who sent a heartbeat when) is in ``sessions``, and is lost with the
leadership as it is in Kafka.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any, Final, Generic, NamedTuple, TypeVar

import attrs

from kwire.codec.messages import metadata_records as r
from kwire.configs.broker import BrokerConfig
from kwire.configs.topic import TopicConfig
from kwire.errors import NONE, KafkaError, PolicyViolation, StaleBrokerEpoch
from kwire.raftmeta.controller.broker_sessions import BrokerSessions
from kwire.raftmeta.controller.mutation_quota import MutationQuotas
from kwire.raftmeta.controller.partition_change import PartitionChange
from kwire.raftmeta.controller.partition_index import PartitionIndex
from kwire.raftmeta.controller.placement import spread
from kwire.raftmeta.controller.sweeps import Sweeps
from kwire.raftmeta.metadata.image import (
    BROKER,
    TOPIC,
    Applied,
    BrokerImage,
    MetadataImage,
    PartitionImage,
)
from kwire.raftmeta.metadata.image_change import apply
from kwire.raftmeta.metadata.image_loader import Steps, applying, drained
from kwire.raftmeta.storage.levels import level_of
from kwire.types import METADATA_TOPIC_ID, ZERO_UUID, uuid_text

R = TypeVar("R")

ELR: Final = "eligible.leader.replicas.version"
_DONE: Final = object()
NO_BUMP_ON_SHRINK: Final = 12
"""The level of metadata.version, 3.6-IV0, from which on a shrunken ISR needs no leader epoch."""
USER_RECORDS_MAX: Final = 10_000
"""Records that one request may lead to, as in Kafka."""


@attrs.frozen
class Decision(Generic[R]):
    """Records to write in one batch, and what to answer once they are committed."""

    records: tuple[Any, ...]
    reply: R
    again: bool = False
    """Whether the records are only a slice: the request is decided again before it is answered."""


class Outcome(NamedTuple):
    """How one item of a request went: a code, and a text where there is one to tell."""

    code: int = NONE
    text: str | None = None


def outcome(error: KafkaError) -> Outcome:
    """An error as the protocol carries it."""
    return Outcome(error.code, error.text)


def check_bound(records: Sequence[Any]) -> None:
    """Refuse a request that leads to too many records as a whole."""
    if len(records) > USER_RECORDS_MAX:
        raise PolicyViolation("Unable to perform excessively large batch operation.")


@attrs.define(kw_only=True)
class ControllerState:
    """What the active controller knows: the metadata as if everything it wrote were committed."""

    config: BrokerConfig
    random: Random
    cluster_id: str = ""
    image: MetadataImage = attrs.field(factory=MetadataImage)
    next_offset: int = 0
    """The offset that the next record gets."""
    sessions: BrokerSessions = attrs.field(factory=BrokerSessions)
    supported_features: dict[str, tuple[int, int]] = attrs.field(factory=dict)
    placement: int = 0
    """Where the next topic's striping begins; it moves on with each topic."""
    sweeps: Sweeps = attrs.field(factory=Sweeps)
    """Partitions whose leader or ISR is still to be looked at."""
    mutations: MutationQuotas = attrs.field(factory=MutationQuotas)
    """How much clients have created and deleted lately."""
    _index: PartitionIndex | None = None
    _building: tuple[PartitionIndex, Iterator[None]] | None = None
    _dotted: dict[str, str] | None = None
    """Names with ``.`` or ``_`` by what metrics make of them; None until asked for."""
    _cluster: tuple[Any, Any, BrokerConfig] | None = None

    def __attrs_post_init__(self) -> None:
        config = self.config
        self.sessions.timeout_s = config.broker_session_timeout_ms / 1000
        windows_s = config.controller_quota_window_num * config.controller_quota_window_size_seconds
        self.mutations.burst_s = float(windows_s)

    def apply(self, records: Iterable[Any], applied: Applied) -> None:
        """Take written records in."""
        drained(self.applying(records, applied))

    def applying(self, records: Iterable[Any], applied: Applied) -> Steps[None]:
        """Take written records in, step by step; the image changes with the last step.

        No decider may run between two steps: the index is ahead of the image then.
        """
        image, delta = yield from applying(self.image, records, applied)
        if self._index is not None:
            yield from self._index.updating(delta)
        elif delta.partitions or delta.deleted_topics:
            self._building = None
        self.image, self.next_offset = image, applied.offset + 1
        if self._dotted is not None:
            for topic in delta.deleted_topics.values():
                self._dotted.pop(_undotted(topic.name), None)
            for topic_id in delta.created_topics:
                self._note(self._dotted, self.image.topics[topic_id].name)

    def supposing(self, records: Sequence[Any]) -> "ControllerState":
        """The state as it will be, for a decision that builds on records of its own."""
        if not records:
            return self
        return attrs.evolve(self, image=apply(self.image, records)[0])

    @property
    def index(self) -> PartitionIndex:
        """The partitions by broker; what is not built yet is built at once."""
        while not self.build_index():
            pass
        assert self._index is not None
        return self._index

    def build_index(self) -> bool:
        """Build some more of the index of a new active controller; whether it is complete."""
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
        """Begin or end an office: only what is committed counts."""
        self.image, self.next_offset, self._dotted = image, next_offset, None
        self._index = self._building = None
        self.sessions.clear()
        self.sweeps.clear()
        self.mutations.clear()

    @staticmethod
    def _note(dotted: dict[str, str], name: str) -> None:
        if "." in name or "_" in name:
            dotted[_undotted(name)] = name

    def colliding(self, name: str) -> str | None:
        """A topic whose metrics would be taken for those of ``name``: ``.`` and ``_`` are one."""
        if "." not in name and "_" not in name:
            return None
        if self._dotted is None:
            self._dotted = {}
            for other in self.image.topic_ids:
                self._note(self._dotted, other)
        return self._dotted.get(_undotted(name))

    def stripe_of(self, first: PartitionImage) -> int:
        """Where a topic's striping began, as far as its first partition shows."""
        order = spread(b for b in self.image.brokers.values() if b.is_active)
        return order.index(first.replicas[0]) if first.replicas[0] in order else 0

    def new_id(self) -> bytes:
        """A random uuid that is not reserved and whose text does not look like an option."""
        while True:
            made = self.random.randbytes(16)
            if made not in (ZERO_UUID, METADATA_TOPIC_ID) and uuid_text(made)[0] != "-":
                return made

    def broker(self, broker_id: int, epoch: int) -> BrokerImage:
        """A registered broker that speaks for its present incarnation."""
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            raise StaleBrokerEpoch(f"No broker registration found for broker id {broker_id}")
        if broker.epoch != epoch:
            raise StaleBrokerEpoch(
                f"Expected broker epoch {broker.epoch}, but got broker epoch {epoch}"
            )
        return broker

    def is_active(self, broker_id: int) -> bool:
        """Whether a broker may lead and join replicas in sync."""
        broker = self.image.brokers.get(broker_id)
        return broker is not None and broker.is_active

    def has_online(self, broker_id: int, directory: bytes) -> bool:
        """Whether a broker has the directory that its replica lies in."""
        broker = self.image.brokers.get(broker_id)
        return broker is not None and broker.has_online(directory)

    def default_directory(self, broker_id: int) -> bytes:
        """Where a new replica lies: known beforehand only if the broker has one directory."""
        broker = self.image.brokers.get(broker_id)
        if broker is None or not broker.log_dirs:
            return ZERO_UUID
        return broker.log_dirs[0] if len(broker.log_dirs) == 1 else METADATA_TOPIC_ID

    @property
    def elr_enabled(self) -> bool:
        """Whether eligible leader replicas are kept (KIP-966)."""
        return self.image.features.get(ELR, 0) > 0

    def topic_config(self, name: str) -> TopicConfig:
        """A topic's settings in force."""
        return TopicConfig(self.image.config(TOPIC, name), self.cluster_config())

    def _rules(self, topic: str) -> tuple[int, bool]:
        """How many replicas in sync a topic wants, and whether an unclean leader may lead it."""
        if (TOPIC, topic) not in self.image.configs:
            cluster = self.cluster_config()
            return cluster.min_insync_replicas, cluster.unclean_leader_election_enable
        config = self.topic_config(topic)
        return config.min_insync_replicas, config.unclean_leader_election_enable

    def cluster_config(self) -> BrokerConfig:
        """This node's settings under those set at run time, for all brokers and for it."""
        cluster = self.image.configs.get((BROKER, ""))
        own = self.image.configs.get((BROKER, str(self.config.node_id)))
        if cluster is None and own is None:
            return self.config
        known = self._cluster
        if known is None or known[0] is not cluster or known[1] is not own:
            config = self.config.with_dynamic(cluster or {}, own or {})
            known = self._cluster = (cluster, own, config)
        return known[2]

    def change(
        self,
        topic_id: bytes,
        number: int,
        *,
        acceptable: Callable[[int], bool] | None = None,
    ) -> PartitionChange:
        """The beginning of a change to a partition, with the topic's settings in force.

        ``acceptable`` says who may lead, where that is not who is active. Nobody may whose
        replica lies in a directory that is offline.
        """
        topic = self.image.topics[topic_id]
        min_isr, unclean = self._rules(topic.name)
        partition = topic.partitions[number]
        return PartitionChange(
            topic_id=topic_id,
            number=number,
            partition=partition,
            acceptable=acceptable or self.is_active,
            directory_of=self.default_directory,
            has_online=self.has_online,
            min_isr=min(min_isr, len(topic.partitions[0].replicas)),
            elr_enabled=self.elr_enabled,
            bump_on_shrink=level_of(self.image.features) < NO_BUMP_ON_SHRINK,
            unclean=unclean,
        )


def clear_elr(state: ControllerState, settings: Iterable[r.ConfigRecord]) -> list[Any]:
    """Who is eligible was judged by the minimum in sync: when that is set, they are forgotten."""
    if not state.elr_enabled:
        return []
    return [
        r.ClearElrRecord(topic_name=one.resource_name if one.resource_type == TOPIC else "")
        for one in settings
        if one.name == "min.insync.replicas"
    ]


def _undotted(name: str) -> str:
    return name.replace(".", "_")
