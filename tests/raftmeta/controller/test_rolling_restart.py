"""A rolling restart as the controller sees it: what one node and the quorum can show of it."""

from typing import Any

import pytest

from kwire.codec.messages.alter_partition import AlterPartitionRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.raftmeta.controller.brokers import (
    begin_sessions,
    decide_heartbeat,
    decide_register_broker,
)
from kwire.raftmeta.controller.leader_updates import decide_leader_updates, resume_leader_updates
from kwire.raftmeta.controller.partitions import decide_alter_partition
from kwire.raftmeta.controller.state import whole
from kwire.raftmeta.controller.topics import decide_create_topics
from kwire.raftmeta.storage.levels import ELR
from kwire.storage_format.format import feature_records
from tests.support.raftmeta.clusters import Cluster
from tests.support.raftmeta.requests import beat, register

BROKERS = (1, 2, 3)


class Restart:
    """Three brokers under a controller, restarted one after the other."""

    def __init__(self, slices: int, *, elr: bool) -> None:
        self.cluster = Cluster(BROKERS)
        if elr:
            self.cluster.write(*feature_records({"metadata.version": 30, ELR: 1}))
        self.slices = self.cluster.state.leader_update_queue.size = slices
        rotated = [[1 + (n + k) % 3 for k in range(3)] for n in range(9)]
        self.cluster.topic("t", *rotated)
        self.epochs = {broker: broker * 100 for broker in BROKERS}
        self.applied_offsets = dict.fromkeys(BROKERS, self.cluster.state.next_offset - 1)
        self.epochs_of_leaders: dict[int, int] = {}

    @property
    def partitions(self) -> dict[int, Any]:
        topic = self.cluster.state.image.topic("t")
        assert topic is not None
        return dict(topic.partitions)

    def do(self, decide: Any, request: Any) -> Any:
        """Decide, slice by slice, and look at every partition after each batch."""
        cluster = self.cluster
        while True:
            decision = whole(decide(cluster.state, request))
            cluster.write(*decision.records)
            decision.take_effect()
            self.check()
            if not decision.again:
                return decision.reply

    def check(self) -> None:
        for number, partition in self.partitions.items():
            broker = self.cluster.state.image.brokers.get(partition.leader)
            assert broker is not None, (number, partition)
            assert not broker.fenced, (number, partition)
            assert partition.leader in partition.isr
            assert not partition.recovering, "no unclean election"
            before = self.epochs_of_leaders.get(number, 0)
            assert partition.leader_epoch >= before
            self.epochs_of_leaders[number] = partition.leader_epoch

    def heartbeat(self, broker: int, **more: Any) -> Any:
        request = beat(broker, self.epochs[broker], **more)
        request.current_metadata_offset = self.applied_offsets[broker]
        return self.do(decide_heartbeat, request)

    def catch_up(self, *brokers: int) -> None:
        """Let brokers apply what is committed, and send their offset."""
        for broker in brokers:
            self.applied_offsets[broker] = self.cluster.state.next_offset - 1
            self.heartbeat(broker)

    def stop(self, broker: int) -> None:
        """Stop the broker, which leaves when the others know the new leaders, and not before."""
        others = [other for other in BROKERS if other != broker]
        while not self.heartbeat(broker, want_shut_down=True).should_shut_down:
            stale = dict(self.applied_offsets)
            moved = self.cluster.state.next_offset - 1
            if self.cluster.state.leader_update_queue:
                self.do(decide_leader_updates, None)
            else:
                assert any(stale[other] <= moved for other in others)
                self.catch_up(*others)
            self.cluster.now += 0.1
        led = {n for n, p in self.partitions.items() if p.leader == broker}
        assert not led
        assert self.cluster.state.image.brokers[broker].fenced

    def start(self, broker: int) -> None:
        """The next incarnation registers, is unfenced, and joins every ISR again."""
        request = register(
            broker, incarnation=bytes([broker + 64]), previous_broker_epoch=self.epochs[broker]
        )
        self.epochs[broker] = self.do(decide_register_broker, request).broker_epoch
        self.catch_up(broker)
        assert not self.cluster.state.image.brokers[broker].fenced
        for number, partition in self.partitions.items():
            if broker not in partition.isr:
                self.join(number, partition, broker)

    def join(self, number: int, partition: Any, broker: int) -> None:
        data = AlterPartitionRequest.TopicData.PartitionData
        members = [*partition.isr, broker]
        part = data(
            partition_index=number,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr_with_epochs=[
                data.BrokerState(broker_id=b, broker_epoch=self.epochs[b]) for b in members
            ],
        )
        topic_id = self.cluster.state.image.topic_ids["t"]
        topic = AlterPartitionRequest.TopicData(topic_id=topic_id, partitions=[part])
        request = AlterPartitionRequest(
            broker_id=partition.leader,
            broker_epoch=self.epochs[partition.leader],
            topics=[topic],
        )
        self.do(decide_alter_partition, request)

    def create(self, name: str) -> None:
        topic = CreateTopicsRequest.CreatableTopic
        creatable = topic(name=name, num_partitions=3, replication_factor=2)
        reply = self.do(decide_create_topics, CreateTopicsRequest(topics=[creatable]))
        assert reply.topics[0].error_code == 0, reply.topics[0].error_message

    def fail_over(self) -> None:
        """Another controller goes on from what is committed."""
        state = self.cluster.state
        state.reset(state.image, state.next_offset)
        begin_sessions(state)
        resume_leader_updates(state)


@pytest.mark.parametrize("slices", [1, 2, 1_000])
@pytest.mark.parametrize("elr", [False, True])
@pytest.mark.parametrize("fails_over", [False, True])
def test_rolling_restart_leaves_every_partition_led(
    slices: int, elr: bool, fails_over: bool
) -> None:
    """Invariant 108, the quorum's half: no partition is without a leader at any batch.

    Leaders move cleanly and before the broker is gone, topics can be created all the while, and at
    the end everything is in sync as before, also if the controller fails over each time.
    """
    restart = Restart(slices, elr=elr)
    for broker in BROKERS:
        restart.heartbeat(broker, want_shut_down=True)
        restart.create(f"while-{broker}-stops")
        if fails_over:
            restart.fail_over()
        restart.stop(broker)
        restart.create(f"while-{broker}-is-away")
        if fails_over:
            restart.fail_over()
        restart.start(broker)
    assert {frozenset(p.isr) for p in restart.partitions.values()} == {frozenset(BROKERS)}
    partitions = restart.partitions
    while restart.cluster.state.leader_update_queue:
        restart.do(decide_leader_updates, None)
    assert restart.partitions == partitions, "nothing was left to do"
