"""Builds the record of a partition change: elects the leader, completes a reassignment.

Rules, as in Kafka: the leader stays if it may. Otherwise the first acceptable replica in assignment
order that is in sync (or eligible, if none is in sync) becomes leader. An unclean election happens
only if the topic allows it; the new leader is then the only in-sync replica and has to recover. A
reassignment completes when all its new replicas are in sync and, if it removes more replicas than
it adds, all remaining replicas as well. A new leader epoch begins when a leader is named, when a
replica leaves the assignment, and, below metadata.version 3.6-IV0, when the ISR shrinks.
"""

import enum
from collections.abc import Callable
from typing import NamedTuple

import attrs

from kwire.codec.messages.metadata_records import PartitionChangeRecord
from kwire.raftmeta.metadata.image import PartitionImage
from kwire.raftmeta.metadata.image_change import KEEP_LEADER
from kwire.types import NO_LEADER, DirectoryId, is_directory


class Election(enum.Enum):
    """The kind of leader that an election may choose."""

    ONLINE = enum.auto()
    """Any in-sync replica; the current leader if it may stay."""
    PREFERRED = enum.auto()
    """The first replica, if it is in sync."""
    UNCLEAN = enum.auto()
    """Any live replica, preferably an in-sync one."""


class Elected(NamedTuple):
    """A leader, or ``NO_LEADER``."""

    leader: int
    unclean: bool = False


@attrs.define(kw_only=True, eq=False, repr=False)
class PartitionChangeBuilder:
    """A change under construction: set the targets that change, then call :meth:`build` once."""

    topic_id: bytes
    number: int
    partition: PartitionImage
    acceptable: Callable[[int], bool]
    directory_of: Callable[[int], bytes]
    has_online: Callable[[int, bytes], bool] = lambda _broker, _directory: True
    """Returns True if a broker can read the given directory."""
    is_missing: Callable[[int, bytes], bool] = lambda _broker, _directory: False
    """Returns True if a broker started without the given directory.

    As the last resort of an unclean election, a replica in such a directory leads with an empty log
    in another one.
    """
    min_isr: int = 1
    elr_enabled: bool = False
    bump_on_shrink: bool = False
    """True if a new leader epoch begins when the ISR shrinks."""
    unclean: bool = False
    """True if the topic allows a leader that is not in sync."""
    election: Election = Election.ONLINE
    isr: list[int] = attrs.field(factory=list)
    replicas: list[int] = attrs.field(factory=list)
    adding: list[int] = attrs.field(factory=list)
    removing: list[int] = attrs.field(factory=list)
    elr: list[int] = attrs.field(factory=list)
    directories: dict[int, bytes] = attrs.field(factory=dict)
    recovering: bool = False
    unclean_shutdown: int = NO_LEADER
    """A broker that may have lost unflushed records and is therefore no longer eligible."""
    lost_log: int = NO_LEADER
    """A broker whose replica starts with an empty log, because its directory is gone."""

    def __attrs_post_init__(self) -> None:
        old = self.partition
        self.isr, self.replicas = list(old.isr), list(old.replicas)
        self.adding, self.removing = list(old.adding), list(old.removing)
        self.elr, self.recovering = list(old.elr), old.recovering
        self.directories = dict(zip(old.replicas, old.directories, strict=False))

    def allow_unclean(self) -> None:
        """Allow a leader that is not in sync, if the topic allows it."""
        if self.unclean:
            self.election = Election.UNCLEAN

    def build(self) -> PartitionChangeRecord | None:
        """Return the record of the change; None if nothing changes."""
        record = PartitionChangeRecord(partition_id=self.number, topic_id=self.topic_id)
        unchanged = PartitionChangeRecord(partition_id=self.number, topic_id=self.topic_id)
        self._remove_lost_log()
        self._complete_reassignment()
        self._populate_elr()
        elected = self._elect()
        if elected.leader != self.partition.leader:
            self._install_leader(record, elected)
        if record.leader == KEEP_LEADER and not set(self.partition.replicas) <= set(self.replicas):
            record.leader = self.partition.leader
        self._update_elr(record)
        isr_moved = record.isr is None and self.isr != list(self.partition.isr)
        if isr_moved and (self.isr or self.elr_enabled or self._is_log_missed):
            record.isr = self.isr
        self._bump_for_shrink(record)
        self._update_last_known_leader(record)
        self._assign(record)
        if self.recovering != self.partition.recovering:
            record.leader_recovery_state = int(self.recovering)
        return None if record == unchanged else record

    @property
    def _is_log_missed(self) -> bool:
        """True if a replica has lost its log, whose records may still be elsewhere."""
        return self.lost_log != NO_LEADER

    @property
    def _has_lost_last_known(self) -> bool:
        """True if the last known leader has lost its log."""
        return self._is_log_missed and self.partition.last_known_elr == (self.lost_log,)

    def _remove_lost_log(self) -> None:
        """Remove a replica that has lost its log from the ISR, even if it is the last member.

        As leader it would delete all records from the other replicas, or hide those of a directory
        that is only missing, so only an unclean election may choose it. This is the only case in
        which an ISR is empty without ELR.
        """
        if self._is_log_missed:
            self.isr = [replica for replica in self.isr if replica != self.lost_log]
            self.unclean_shutdown = self.lost_log

    def _bump_for_shrink(self, record: PartitionChangeRecord) -> None:
        """Begin a leader epoch if the ISR shrinks, at levels that require it (KAFKA-15021)."""
        if not self.bump_on_shrink or record.leader != KEEP_LEADER or record.isr is None:
            return
        if not set(self.partition.isr) <= set(record.isr):
            record.leader = self.partition.leader

    # Reassignment

    def _complete_reassignment(self) -> None:
        """Complete the reassignment, dropping old replicas, if enough new ones are in sync."""
        if not (self.adding or self.removing):
            return
        isr = [replica for replica in self.isr if replica not in self.removing]
        replicas = [replica for replica in self.replicas if replica not in self.removing]
        shrinks = len(self.adding) < len(self.removing)
        if not isr or not replicas or not set(replicas if shrinks else self.adding) <= set(isr):
            return
        self.isr, self.replicas, self.adding, self.removing = isr, replicas, [], []

    # Election

    def _elect(self) -> Elected:
        if self.election is Election.PREFERRED and self._valid(self.replicas[0]):
            return Elected(self.replicas[0])
        if self._valid(self.partition.leader):
            return Elected(self.partition.leader)
        for replica in self.replicas:
            if self._valid(replica):
                return Elected(replica)
        if self._last_known_leader_may():
            return Elected(self.partition.last_known_elr[0], unclean=True)
        if self.election is Election.UNCLEAN:
            for replica in sorted(self.replicas, key=self._may_be_empty):
                if self._may_lead(replica):
                    return Elected(replica, unclean=True)
            for replica in self.replicas:
                if self._may_begin_anew(replica):
                    self.directories[replica] = DirectoryId.UNASSIGNED
                    return Elected(replica, unclean=True)
        return Elected(NO_LEADER)

    def _valid(self, replica: int) -> bool:
        eligible = self.isr or self.elr
        return replica in eligible and self._may_lead(replica)

    def _may_be_empty(self, replica: int) -> bool:
        """True if a replica may have an empty log, which makes it the worse unclean leader."""
        is_undecided = self.directories.get(replica) == DirectoryId.UNASSIGNED
        return replica == self.lost_log or is_undecided

    def _may_lead(self, replica: int) -> bool:
        directory = self.directories.get(replica)
        return self.acceptable(replica) and (
            directory is None or self.has_online(replica, directory)
        )

    def _may_begin_anew(self, replica: int) -> bool:
        """Return whether a replica may lead with an empty log, because its directory is missing."""
        directory = self.directories.get(replica)
        return (
            directory is not None
            and is_directory(directory)
            and self.acceptable(replica)
            and self.is_missing(replica, directory)
        )

    def _last_known_leader_may(self) -> bool:
        """Return whether the last known leader may lead (KIP-966).

        It may only if no replica is in sync or eligible.
        """
        last_known = self.partition.last_known_elr
        if not self.elr_enabled or self.isr or self.elr or len(last_known) != 1:
            return False
        if self._has_lost_last_known:
            return False
        return last_known[0] in self.replicas and self._may_lead(last_known[0])

    def _install_leader(self, record: PartitionChangeRecord, elected: Elected) -> None:
        record.leader = elected.leader
        if elected.leader in self.elr:
            self.isr = [elected.leader]
            # The minimum may have been lowered after the other replicas became eligible.
            others = [replica for replica in self.elr if replica != elected.leader]
            self.elr = [] if len(self.isr) >= self.min_isr else others
        if elected.unclean:
            record.isr = [elected.leader]
            self.recovering = True

    # Eligible leader replicas

    def _populate_elr(self) -> None:
        if not self.elr_enabled:
            return
        if len(self.isr) >= self.min_isr:
            self.elr = []
            return
        candidates = {*self.elr, *self.partition.isr} & set(self.replicas)
        self.elr = sorted(candidates - {*self.isr, self.unclean_shutdown})

    def _update_elr(self, record: PartitionChangeRecord) -> None:
        if record.isr is not None or not self.elr_enabled:
            self.elr = []
        if self.elr != list(self.partition.elr):
            record.eligible_leader_replicas = self.elr

    def _update_last_known_leader(self, record: PartitionChangeRecord) -> None:
        """Record the last leader when the leader is lost; clear it when a leader is elected."""
        old = self.partition
        if not self.elr_enabled:
            return
        if record.leader == NO_LEADER and old.leader in self.replicas and not old.last_known_elr:
            record.last_known_elr = [old.leader]
        elif (record.leader >= 0 or self._has_lost_last_known) and old.last_known_elr:
            record.last_known_elr = []

    def _assign(self, record: PartitionChangeRecord) -> None:
        old = self.partition
        is_led = record.leader >= 0 or (record.leader == KEEP_LEADER and old.leader != NO_LEADER)
        if self._is_log_missed and not is_led:
            self.directories[self.lost_log] = DirectoryId.UNASSIGNED  # See ``_may_be_empty``.
        directories = [
            self.directories[replica] if replica in self.directories else self.directory_of(replica)
            for replica in self.replicas
        ]
        if directories != list(old.directories):
            record.directories = directories
        if self.replicas != list(old.replicas):
            record.replicas = self.replicas
        if self.removing != list(old.removing):
            record.removing_replicas = self.removing
        if self.adding != list(old.adding):
            record.adding_replicas = self.adding
