"""Changes to ISRs by partition leaders: caught-up followers join, late followers leave.

Rules:

* Only the controller changes an ISR: a leader proposes a change with AlterPartition and adopts the
  ISR of the response or of newer metadata (KIP-497). Until then both the old and the proposed
  members count.
* A follower joins when it has caught up and may be in sync (KIP-841, KIP-903); it leaves when it
  has not caught up for ``replica.lag.time.max.ms``.
* One request is in flight at a time, with the proposals of at most :data:`REQUEST_PARTITIONS`
  partitions; proposals that get no answer are resent. Those by which followers leave an ISR are
  sent before those by which they join: for the former, producers with acks=all wait already. For
  the latter they wait only if the follower stops before the answer, because until then it counts.
* The timer runs only while this broker leads partitions with followers.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

import attrs
import trio

from kwire import errors
from kwire.codec.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from kwire.drive import Slices, give_way
from kwire.errors import KafkaError
from kwire.replica.completion import Completion
from kwire.replica.leader import HighWatermarkChange, PartitionLeader, Proposal
from kwire.replica.partition import Partition
from kwire.waits import Signal

logger = logging.getLogger(__name__)

REQUEST_PARTITIONS: Final = 500
"""The most partitions in one request, whose answers are applied in one turn of the event loop.

All partitions of a follower that returns may be proposed together.
"""
LOGGED_PARTITIONS: Final = 10
"""The most partitions of one response that are logged one by one."""
RETRY_S: Final = 0.05
_REFUSED: Final = {
    errors.IneligibleReplica.code,
    errors.InvalidRequest.code,
    errors.OperationNotAttempted.code,
}
"""Errors that reject a proposal; the next fetch or timer may propose again."""
_OUTDATED: Final = {
    errors.UnknownTopicOrPartition.code,
    errors.UnknownTopicId.code,
    errors.NewLeaderElected.code,
    errors.FencedLeaderEpoch.code,
    errors.InvalidUpdateVersion.code,
}
"""Errors that mean that newer metadata is on its way, which will end the proposal."""
RequestTopic = AlterPartitionRequest.TopicData
RequestPartition = RequestTopic.PartitionData
AlterPartition = Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]]
"""Sends a request to the active controller; raises KafkaError."""


@attrs.frozen(eq=False, repr=False)
class _PendingProposal:
    """A proposal that waits to be sent or answered, and the leader that made it."""

    leader: PartitionLeader
    proposal: Proposal
    is_leave: bool
    """True if followers leave the ISR by this proposal, False if they join."""

    @property
    def is_pending(self) -> bool:
        """True while the leader still waits for the answer to this proposal."""
        return self.leader.pending_isr is self.proposal.isr


class _Change(NamedTuple):
    """A change of one partition's ISR that the controller has committed."""

    partition: Partition
    before: frozenset[int]
    isr: frozenset[int]


@attrs.define(eq=False, repr=False)
class IsrChanges:
    """The ISR proposals of one broker."""

    node: int
    broker_epoch: Callable[[], int]
    alter_partition: AlterPartition
    completion: Completion
    now: Callable[[], float]
    lag_max_s: float
    _led: set[Partition] = attrs.field(factory=set)
    """Partitions with followers that this broker leads."""
    _leaves: dict[Partition, _PendingProposal] = attrs.field(factory=dict)
    """Proposals that are still to be sent, by which followers leave an ISR."""
    _joins: dict[Partition, _PendingProposal] = attrs.field(factory=dict)
    """Proposals that are still to be sent, by which followers join an ISR."""
    _has_proposals: Signal = attrs.field(factory=Signal)
    _has_followers: Signal = attrs.field(factory=Signal)
    _changed_brokers: set[int] = attrs.field(factory=set)
    """Brokers that have changed since their partitions were checked."""
    _brokers_changed: Signal = attrs.field(factory=Signal)

    def on_fetched(self, partition: Partition, node: int) -> None:
        """Propose that a follower that has just fetched join the ISR, if it may."""
        leader = partition.leader
        if leader is None:
            return
        if partition not in self._led:
            self._led.add(partition)
            self._has_followers.notify()
        if leader.may_join(node):
            self._propose(partition, leader, leader.propose(joins=(node,)))

    def on_role_changed(self, partition: Partition) -> None:
        """Watch a partition with followers while this broker leads it."""
        leader = partition.leader
        if leader is None or not leader.followers:
            self._led.discard(partition)
        else:
            self._led.add(partition)
            self._has_followers.notify()

    def on_brokers_changed(self, brokers: Iterable[int]) -> None:
        """Check the partitions of these followers, which may be fenced or eligible now."""
        self._changed_brokers.update(brokers)
        self._brokers_changed.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send proposals and check for late followers until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_all)
            nursery.start_soon(self._propose_without_laggards)
            task_status.started()

    def _propose(
        self, partition: Partition, leader: PartitionLeader, proposal: Proposal | None
    ) -> None:
        if proposal is not None:
            is_leave = not proposal.isr >= leader.isr
            pending = _PendingProposal(leader, proposal, is_leave)
            self._queue(pending)[partition] = pending
            self._has_proposals.notify()

    def _queue(self, pending: _PendingProposal) -> dict[Partition, _PendingProposal]:
        return self._leaves if pending.is_leave else self._joins

    async def _propose_without_laggards(self) -> None:
        """Propose ISRs without late followers, twice per ``replica.lag.time.max.ms``.

        A change of brokers triggers a check of their partitions at once: a fenced broker no longer
        holds up a high watermark or a deletion.
        """
        interval_s = max(self.lag_max_s / 2, RETRY_S)
        check_all_at = self.now() + interval_s
        while True:
            while not self._led:
                await self._has_followers.wait()
            with trio.move_on_after(max(check_all_at - self.now(), 0.0)):
                await self._brokers_changed.wait()
            self._brokers_changed.clear()
            brokers, self._changed_brokers = self._changed_brokers, set()
            checks_all = self.now() >= check_all_at
            slices = Slices(self.now)
            for partition in list(self._led):
                leader = partition.leader
                if leader is None or not leader.followers:
                    self._led.discard(partition)
                elif checks_all or not brokers.isdisjoint(leader.followers):
                    self._check_followers(partition, leader)
                await slices.pause()
            if checks_all:
                check_all_at = self.now() + interval_s

    def _check_followers(self, partition: Partition, leader: PartitionLeader) -> None:
        """Move the high watermark, complete deletions, and propose an ISR without laggards."""
        now = self.now()
        self._complete(partition, leader.advance(now))
        self.completion.on_low_watermark(partition)
        laggards = leader.laggards(now)
        if laggards:
            self._propose(partition, leader, leader.propose(leaves=laggards))

    def _complete(self, partition: Partition, change: HighWatermarkChange | None) -> None:
        if change is not None:
            self.completion.on_committed(partition, change)

    async def _send_all(self) -> None:
        while True:
            while not self._leaves and not self._joins:
                await self._has_proposals.wait()
            proposals = self._next_proposals()
            unanswered = await self._send(proposals) if proposals else {}
            if unanswered:
                for partition, pending in unanswered.items():
                    self._queue(pending).setdefault(partition, pending)
                await trio.sleep(RETRY_S)
            else:
                await give_way()  # The next request may be as large as this one.

    def _next_proposals(self) -> dict[Partition, _PendingProposal]:
        """Remove the first proposals from those to send; return those still pending."""
        proposals: dict[Partition, _PendingProposal] = {}
        for queue in (self._leaves, self._joins):
            for partition in list(islice(queue, REQUEST_PARTITIONS - len(proposals))):
                pending = queue.pop(partition)
                if partition.leader is pending.leader and pending.is_pending:
                    proposals[partition] = pending
        return proposals

    async def _send(
        self, proposals: dict[Partition, _PendingProposal]
    ) -> dict[Partition, _PendingProposal]:
        """Send proposals and apply the answers; return the proposals to resend."""
        request = AlterPartitionRequest(
            broker_id=self.node, broker_epoch=self.broker_epoch(), topics=self._topics(proposals)
        )
        try:
            response = await self.alter_partition(request)
            errors.raise_for_code(response.error_code)
        except KafkaError as error:
            logger.debug("AlterPartition failed error=%r", error)
            return proposals
        unanswered = dict(proposals)
        changes: list[_Change] = []
        by_key = {(p.topic_id, p.partition): p for p in proposals}
        for topic in response.topics:
            for answer in topic.partitions:
                partition = by_key.get((topic.topic_id, answer.partition_index))
                if partition is not None and self._on_answered(
                    partition, proposals[partition], answer, changes
                ):
                    unanswered.pop(partition, None)
        _log(changes)
        return unanswered

    def _topics(self, proposals: dict[Partition, _PendingProposal]) -> list[RequestTopic]:
        """Return the request's topics for these proposals."""
        topics: dict[bytes, RequestTopic] = {}
        for partition, pending in proposals.items():
            topic = topics.setdefault(partition.topic_id, RequestTopic(topic_id=partition.topic_id))
            epochs = {self.node: self.broker_epoch(), **pending.proposal.broker_epochs}
            topic.partitions.append(
                RequestPartition(
                    partition_index=partition.partition,
                    leader_epoch=pending.leader.leader_epoch,
                    new_isr_with_epochs=[
                        RequestPartition.BrokerState(broker_id=node, broker_epoch=epochs[node])
                        for node in sorted(pending.proposal.isr)
                    ],
                    partition_epoch=pending.proposal.partition_epoch,
                )
            )
        return list(topics.values())

    def _on_answered(
        self,
        partition: Partition,
        pending: _PendingProposal,
        answer: AlterPartitionResponse.TopicData.PartitionData,
        changes: list[_Change],
    ) -> bool:
        """Apply the controller's answer for one partition; return False to resend the proposal.

        A change of the ISR is added to ``changes``.
        """
        leader, code = pending.leader, answer.error_code
        if partition.leader is not leader or not pending.is_pending:
            return True  # Newer metadata has arrived first.
        if code in _REFUSED:
            self._complete(partition, leader.on_isr_refused(self.now()))
        elif not code and answer.leader_epoch == leader.leader_epoch:
            changes.append(_Change(partition, leader.isr, frozenset(answer.isr)))
            change = leader.on_isr_answered(answer.isr, answer.partition_epoch, self.now())
            self._complete(partition, change)
            self.completion.on_low_watermark(partition)
        return not code or code in _REFUSED or code in _OUTDATED


def _log(changes: Sequence[_Change]) -> None:
    """Log each change of a response, or only the brokers that joined or left if there are many."""
    if len(changes) <= LOGGED_PARTITIONS:
        for partition, _, isr in changes:
            logger.info("ISR changed partition=%s isr=%s", partition.log.partition, sorted(isr))
        return
    joining = Counter(node for _, before, isr in changes for node in isr - before)
    leaving = Counter(node for _, before, isr in changes for node in before - isr)
    text = "ISRs changed partition_count=%d joined=%s left=%s"
    logger.info(text, len(changes), dict(joining), dict(leaving))
