"""The invariants of the metadata after every decision of the controller.

The checks keep their own records: an image to which every record is applied, the replicas that
hold everything committed, the target of each reassignment, and the ids that were allocated.
"""

from collections.abc import Callable, Iterable, Mapping

import attrs

from kwire.codec.messages import metadata_records as r
from kwire.configs.resource_types import BROKER, TOPIC
from kwire.raftmeta.controller.partition_index import PartitionIndex
from kwire.raftmeta.metadata.image import BrokerImage, MetadataImage, PartitionImage
from kwire.raftmeta.metadata.image_change import apply
from kwire.raftmeta.metadata.image_loader import ImageLoader
from kwire.raftmeta.metadata.image_records import image_records
from kwire.raftmeta.storage.records import pack, unpack
from kwire.types import NO_LEADER, TopicIdPartition
from simulation.controller.committed_logs import CommittedLogs
from simulation.scheduler import Violation

ELR = "eligible.leader.replicas.version"
_EPOCHS = ("leader_epoch", "partition_epoch")


def demand(holds: bool, *words: object) -> None:
    """Raise Violation with ``words`` unless the invariant holds."""
    if not holds:
        raise Violation(" ".join(map(str, words)))


def _may_lead(brokers: Mapping[int, BrokerImage], replica: int, partition: PartitionImage) -> bool:
    """Return whether a replica's broker is active and the replica's directory online."""
    broker, directory = brokers.get(replica), partition.directory(replica)
    return (
        broker is not None
        and broker.is_active
        and (directory is None or broker.has_online(directory))
    )


def _without_records(old: PartitionImage, new: PartitionImage) -> int:
    """Return the replica that is safe even with an empty log, because no records are left.

    The partition was still recovering from an unclean election, which had given up the records.
    NO_LEADER if there is no such replica.
    """
    is_elected = new.leader not in (NO_LEADER, old.leader)
    return new.leader if is_elected and old.recovering and new.recovering else NO_LEADER


def check_unclean_election(
    brokers: Mapping[int, BrokerImage],
    old: PartitionImage,
    new: PartitionImage,
) -> None:
    """Check an operator's unclean election of one partition (KIP-460).

    An existing leader stays. Otherwise an in-sync or eligible replica that may lead is elected,
    or else any replica that may lead, or else one whose directory is missing. Without any, the
    partition stays without a leader.
    """
    if old.leader != NO_LEADER:
        demand(new == old, "an unclean election of a partition with a leader:", old, "->", new)
        return
    able = [replica for replica in old.replicas if _may_lead(brokers, replica, old)]
    clean = [replica for replica in able if replica in (old.isr or old.elr)]
    if clean:
        demand(new.leader in clean, "not in sync, though", clean, "are:", old, "->", new)
        demand(new.recovering == old.recovering, "a clean leader recovers:", old, "->", new)
    elif able:
        demand(new.leader in able, "could lead:", able, old, "->", new)


@attrs.frozen
class Written:
    """The controller's state after a batch that it wrote, which may not be committed yet."""

    image: MetadataImage
    pending_updates: dict[int, frozenset[TopicIdPartition]]
    """The partitions that wait for a leader update, by the broker that left them."""
    index: PartitionIndex | None
    """The partition index; None if later batches may have changed it."""


@attrs.define
class ControllerChecks:
    """The expected state of the cluster, and the checks against it."""

    own_id: int
    """The node id of the controller, whose broker settings apply to topics."""
    has_directory: Callable[[BrokerImage, bytes], bool]
    """Returns True if an incarnation runs with a directory, even if it has failed since."""
    image: MetadataImage = attrs.field(factory=MetadataImage)
    logs: CommittedLogs = attrs.field(factory=CommittedLogs)
    targets: dict[TopicIdPartition, tuple[int, ...]] = attrs.field(factory=dict)
    """The target replicas of ongoing reassignments."""
    requested_elections: set[TopicIdPartition] = attrs.field(factory=set)
    """Partitions for which an operator requested an unclean election."""
    move_offsets: dict[int, int] = attrs.field(factory=dict)
    """By stopping broker, the last offset of the newest batch that moved a leadership off it."""
    elections: int = 0
    unclean: int = 0
    completed: int = 0
    _topic_ids: set[bytes] = attrs.field(factory=set)
    _broker_epochs: dict[int, int] = attrs.field(factory=dict)
    _last_epoch: int = -1
    _next_producer_id: int = 0
    _vouched: frozenset[int] = frozenset()
    _pending_updates: dict[int, frozenset[TopicIdPartition]] = attrs.field(factory=dict)

    def on_written(
        self,
        records: Iterable[r.MetadataRecord],
        written: "Written",
        vouched: frozenset[int] = frozenset(),
    ) -> None:
        """Check committed records, after which the controller had the state ``written``.

        ``vouched``: replicas that, according to their leader, hold everything the leader holds.
        """
        after = written.image
        self._vouched = vouched
        self._pending_updates = written.pending_updates
        for record in records:
            before = self.image
            self.image, _ = apply(before, [record], after.applied)
            self._on_record(record, before)
        demand(self.image == after, "records one by one give another image than all at once")
        for topic_id, topic in after.topics.items():
            demand(after.topic_ids.get(topic.name) == topic_id, "two topics named", topic.name)
            numbers = sorted(topic.partitions)
            demand(numbers == list(range(len(numbers))), topic.name, "has a gap in its partitions")
            for number, partition in topic.partitions.items():
                self._check_partition(f"{topic.name}-{number}", (topic_id, number), partition)
        self._check_directories()
        if written.index is not None:
            same = written.index == PartitionIndex.of(after)
            demand(same, "the index is not what a scan finds")

    # One record ------------------------------------------------------------------------------

    def _on_record(self, record: r.MetadataRecord, before: MetadataImage) -> None:
        match record:
            case r.RemoveTopicRecord():
                self.targets = {
                    place: target
                    for place, target in self.targets.items()
                    if place[0] != record.topic_id
                }
            case r.TopicRecord():
                demand(record.topic_id not in self._topic_ids, "topic id given twice")
                self._topic_ids.add(record.topic_id)
            case r.PartitionRecord():
                self.logs.on_created(record)
            case r.PartitionChangeRecord():
                self._on_change(record, before)
            case r.RegisterBrokerRecord():
                self._on_registration(record, before)
            case r.ProducerIdsRecord():
                demand(record.next_producer_id > self._next_producer_id, "producer ids overlap")
                self._next_producer_id = record.next_producer_id

    def _on_registration(self, record: r.RegisterBrokerRecord, before: MetadataImage) -> None:
        broker = record.broker_id
        existing = before.brokers.get(broker)
        if existing is not None and existing.incarnation_id == record.incarnation_id:
            demand(record.broker_epoch == existing.epoch, "an incarnation changed its epoch")
            return
        demand(record.broker_epoch > self._last_epoch, "broker epoch given twice")
        self._last_epoch = record.broker_epoch
        self._broker_epochs[broker] = record.broker_epoch
        self.move_offsets.pop(broker, None)

    def _on_change(self, record: r.PartitionChangeRecord, before: MetadataImage) -> None:
        topic = before.topics[record.topic_id]
        place = (record.topic_id, record.partition_id)
        name = f"{topic.name}-{record.partition_id}"
        old = topic.partitions[record.partition_id]
        new = self.image.topics[record.topic_id].partitions[record.partition_id]
        same = {epoch: getattr(old, epoch) for epoch in _EPOCHS}
        begins = new.leader != old.leader or not set(old.replicas) <= set(new.replicas)
        demand(
            begins or attrs.evolve(new, **same) != old or record.leader != -2,
            name,
            "written without a change",
        )
        demand(new.partition_epoch == old.partition_epoch + 1, name, "partition epoch")
        demand(
            new.leader_epoch == old.leader_epoch + begins,
            name,
            f"leader {old.leader} -> {new.leader}, replicas {old.replicas} -> {new.replicas}, "
            f"but leader epoch {old.leader_epoch} -> {new.leader_epoch}",
        )
        for joins in set(new.isr) - set(old.isr):
            broker = before.brokers.get(joins)
            active = broker is not None and broker.is_active
            demand(active or new.recovering, name, f"{joins} joins the ISR and does not serve")
            is_able = new.recovering or _may_lead(before.brokers, joins, new)
            demand(is_able, name, f"{joins} joins the ISR from a directory that is offline")
        if new.leader not in (NO_LEADER, old.leader):
            self.elections += 1
            self._check_directory_of_leader(name, before, old, new)
        leaves = before.brokers.get(old.leader)
        if old.leader != new.leader and leaves is not None and leaves.in_controlled_shutdown:
            self.move_offsets[old.leader] = self.image.applied.offset
        if old.leader in self.logs.safe[place]:
            self.logs.safe[place] |= self._vouched
        replica = _without_records(old, new)
        if (place, replica) in self.logs.lost:
            self.logs.lost.discard((place, replica))
            self.logs.restart(place, {replica})
        is_marked = new.recovering and not old.recovering
        if is_marked or not set(new.isr) <= {*old.isr, *old.elr, *self._vouched}:
            self._check_unclean(name, place, old, new)
        if old.is_reassigning and new.is_reassigning:
            keeps_replicas = set(old.replicas) <= set(new.replicas)
            demand(keeps_replicas, name, "drops replicas too early:", old, "->", new)
        if old.is_reassigning and not new.is_reassigning:
            target = self.targets.pop(place, None)
            demand(new.replicas == target, name, f"moved to {new.replicas} instead of {target}")
            self.completed += 1

    def _check_directory_of_leader(
        self, name: str, before: MetadataImage, old: PartitionImage, new: PartitionImage
    ) -> None:
        """Check that a new leader gives up the log in another directory only if that is missing."""
        broker, directory = before.brokers.get(new.leader), old.directory(new.leader)
        if broker is None or directory is None or broker.has_online(directory):
            return
        has_failed = self.has_directory(broker, directory)
        demand(not has_failed, name, "begins anew, but its log has only failed", old, "->", new)

    def _check_unclean(
        self, name: str, place: TopicIdPartition, old: PartitionImage, new: PartitionImage
    ) -> None:
        """Check that a change which adds an unreported replica to the ISR is allowed."""
        allowed = self.is_unclean(name.rpartition("-")[0]) or place in self.requested_elections
        allowed = allowed or old.last_known_elr == new.isr
        demand(allowed, name, "joins its ISR, neither in sync nor eligible before:", old, "->", new)
        demand(new.recovering, name, "led uncleanly, and not marked as recovering")
        demand(len(new.isr) == 1, name, "others are in sync with an unclean leader")
        self.unclean += 1
        self.logs.restart(place, set(new.isr))

    def check_place_is_kept(
        self, place: TopicIdPartition, old: PartitionImage, new: PartitionImage
    ) -> None:
        """Check the report of another directory for a replica whose own directory is missing.

        While there is no leader, the replica keeps its place, unless the topic allows an unclean
        leader.
        """
        topic = self.image.topics[place[0]].name
        is_free = old.leader != NO_LEADER or self.is_unclean(topic)
        demand(is_free or new == old, topic, place[1], "forgets a directory:", old, "->", new)

    # The whole -------------------------------------------------------------------------------

    def end_step(self) -> None:
        """Drop the operator's election requests, because their records have been written."""
        self.requested_elections.clear()

    def _check_partition(
        self, name: str, place: TopicIdPartition, partition: PartitionImage
    ) -> None:
        elr = self.has_elr
        brokers, leader = self.image.brokers, partition.leader
        replicas, isr, eligible = map(set, (partition.replicas, partition.isr, partition.elr))
        adding, removing = set(partition.adding), set(partition.removing)
        demand(len(replicas) == len(partition.replicas) > 0, name, "replicas", partition.replicas)
        has_directories = len(partition.directories) == len(partition.replicas)
        demand(has_directories, name, "a replica has no directory")
        demand(isr <= replicas, name, "in sync without being replicas", partition)
        has_lost_log = any(lost_place == place for lost_place, _ in self.logs.lost)
        demand(bool(isr) or elr or has_lost_log, name, "the ISR is empty")
        demand(eligible <= replicas - isr, name, "eligible", partition)
        demand(elr or not eligible, name, "eligible without ELR")
        demand(adding | removing <= replicas, name, "moving", partition)
        demand(not adding & removing, name, "comes and goes", partition)
        last_known = partition.last_known_elr
        is_allowed = not last_known or (leader == NO_LEADER != last_known[0])
        demand(is_allowed, name, "last leader", partition)
        if leader == NO_LEADER:
            return
        demand(leader in isr, name, "led by a replica that is not in sync", partition)
        broker = brokers.get(leader)
        demand(broker is not None, name, "led by a broker that is not registered", partition)
        assert broker is not None
        if not broker.is_active and place in self._pending_updates.get(leader, ()):
            return
        demand(broker.is_active, name, "led by a broker that does not serve", broker)
        directory = partition.directory(leader)
        assert directory is not None
        demand(broker.has_online(directory), name, "led from a directory that is offline")

    def check_leaders_are_active(self) -> None:
        """Check that no inactive broker leads or is in an ISR; no leader update may be pending.

        Without ELR, an inactive broker may be the only member of an ISR.
        """
        elr = self.has_elr
        active = {broker.id for broker in self.image.brokers.values() if broker.is_active}
        for topic in self.image.topics.values():
            for number, partition in topic.partitions.items():
                inactive = set(partition.isr) - active
                name = f"{topic.name}-{number}"
                demand(partition.leader in (NO_LEADER, *active), name, "led by", partition)
                is_sole_member = not elr and len(partition.isr) == 1
                demand(not inactive or is_sole_member, name, "in the ISR:", inactive, partition)

    def _check_directories(self) -> None:
        directories = [d for broker in self.image.brokers.values() for d in broker.log_dirs]
        demand(len(set(directories)) == len(directories), "two brokers with one directory")

    def check_snapshot(self) -> None:
        """Check that an image is unchanged after writing it as a snapshot and loading that."""
        back = [unpack(pack(record)) for record in image_records(self.image)]
        loaded, _ = ImageLoader().load_snapshot(back, self.image.applied)
        demand(loaded == self.image, "a snapshot gives another image")

    def check_stop(self, stopping: int, reported_offsets: Mapping[int, int]) -> None:
        """Check that a broker is told to stop only once all active brokers know the new leaders.

        ``reported_offsets``: the last metadata offset that each broker reported.
        """
        move_offset = self.move_offsets.get(stopping, -1)
        for broker in self.image.brokers.values():
            if broker.id != stopping and broker.is_active:
                is_behind = reported_offsets.get(broker.id, -1) < move_offset
                demand(not is_behind, f"{stopping} stops, {broker.id} lacks the new leaders")

    # Committed data --------------------------------------------------------------------------

    def setting(self, topic: str, name: str, default: str) -> str:
        """Return the effective setting: the topic's, else the controller's, else the cluster's."""
        for resource in ((TOPIC, topic), (BROKER, str(self.own_id)), (BROKER, "")):
            value = self.image.config(*resource).get(name)
            if value is not None:
                return value
        return default

    def is_unclean(self, topic: str) -> bool:
        """Return whether the topic allows leaders from outside the ISR."""
        return self.setting(topic, "unclean.leader.election.enable", "false") == "true"

    @property
    def has_elr(self) -> bool:
        """True if eligible leader replicas are tracked: then unflushed records count as lost."""
        return self.image.features.get(ELR, 0) > 0

    def on_data(self, is_alive: Callable[[int], bool]) -> None:
        """Let live leaders commit new records if their whole ISR is alive.

        Afterwards only the ISR is safe. With ELR, an ISR below the minimum size commits nothing,
        so other replicas stay safe.
        """
        elr = self.has_elr
        for topic in self.image.topics.values():
            least = int(self.setting(topic.name, "min.insync.replicas", "1"))
            for number, partition in topic.partitions.items():
                if partition.leader == NO_LEADER or not is_alive(partition.leader):
                    continue
                safe = self.logs.safe[topic.id, number]
                demand(
                    partition.leader in safe,
                    f"{topic.name}-{number} is led by {partition.leader}, all committed records "
                    f"are on {sorted(safe)}",
                )
                if all(map(is_alive, partition.isr)):
                    enough = not elr or len(partition.isr) >= min(least, len(partition.replicas))
                    self.logs.on_committed((topic.id, number), set(partition.isr), enough=enough)
