"""Kills while topics are created and deleted, and while a group rebalances."""

from __future__ import annotations

import threading
import time
from functools import partial

import attrs
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from compat_tests.confluent_kafka.clients import (
    admin,
    consumer,
    create,
    deliver,
    poll,
    producer,
)
from compat_tests.durability.load import check, loads, wait_for_more
from compat_tests.harness.wait import collect, eventually
from compat_tests.harness.wire import connect
from compat_tests.interchange import view
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.offset_commit import OffsetCommitRequest

ROUNDS = 4
GROUPS = 300


@attrs.define
class Churn:
    """A client that creates and deletes topics without pauses, with their acknowledged states."""

    address: str
    created: set[str] = attrs.field(factory=set)
    deleted: set[str] = attrs.field(factory=set)
    change_count: int = 0
    stop: threading.Event = attrs.field(factory=threading.Event)

    def run(self) -> None:
        number = 0
        while not self.stop.is_set():
            number += 1
            name = f"churn-{number % 7}"
            if name in self.created:
                self._ask(name, self.created, self.deleted, self._delete)
            else:
                self._ask(name, self.deleted, self.created, self._create)

    def _ask(self, name, before, after, ask) -> None:
        before.discard(name)  # Until there is an answer, the topic may exist or not.
        if ask(name):
            after.add(name)
            self.change_count += 1

    def has_changes(self, count: int) -> bool:
        return self.change_count >= count

    def _create(self, name) -> bool:
        client = admin(self.address)
        new = NewTopic(name, 3, 1, config={"internal.segment.bytes": "20000"})
        return _is_certain(client.create_topics([new])[name], KafkaError.TOPIC_ALREADY_EXISTS)

    def _delete(self, name) -> bool:
        client = admin(self.address)
        return _is_certain(client.delete_topics([name])[name], KafkaError.UNKNOWN_TOPIC_OR_PART)


def _is_certain(future, settled, seconds=5) -> bool:
    """Whether the change is certain: done now, or by an earlier attempt without an answer."""
    try:
        future.result(seconds)
    except KafkaException as error:
        return bool(error.args[0].code() == settled)
    except Exception:
        return False
    return True


def test_kills_while_topics_come_and_go(own_broker, topic):
    address = own_broker.address
    create(address, topic, 2)
    churn = Churn(address)
    thread = threading.Thread(target=churn.run, daemon=True)
    with loads(address, topic, 2) as running:
        thread.start()
        try:
            for _ in range(ROUNDS):
                wait_for_more(running, 50)
                goal = churn.change_count + 10
                eventually(partial(churn.has_changes, goal), "topics that come and go")
                own_broker.kill()
                own_broker.start()
        finally:
            churn.stop.set()
            thread.join(60)
        topics = eventually(partial(led_topics, address), "leaders of all partitions")
        assert churn.created <= topics.keys(), churn.created - topics.keys()
        assert not churn.deleted & topics.keys()
        for name in churn.created | churn.deleted:  # Each can be used, or created again.
            if name not in churn.created:
                eventually(partial(churn._create, name), f"{name} is created again")
            deliver(producer(address), [{"topic": name, "value": b"1", "partition": 2}])
    assert check(running, address, topic, 2) > 0
    own_broker.restart()
    assert {name for name in view.topics(address) if name.startswith("churn")} >= churn.created


def led_topics(address):
    """Return the topics once each partition has a leader."""
    topics = view.topics(address)
    return topics if all(led for _, _, led in topics.values()) else None


def test_a_topic_made_again_keeps_nothing_of_the_old_one(broker_kind, own_broker, topic):
    """A topic deleted and created again has no old records, with kills between the steps."""
    address = own_broker.address
    client = admin(address)
    ids = set()
    for round in range(3):
        create(address, topic, 1)
        ids.add(view.topics(address)[topic][0])
        sent = deliver(producer(address), [{"topic": topic, "value": b"%d" % round}] * (round + 1))
        assert [message.offset() for message in sent] == list(range(round + 1))
        if round != 1:
            own_broker.kill()
            own_broker.start()
        assert len(view.records(address, [(topic, 0)])[topic, 0]) == round + 1
        _delete(client, topic)
        if round != 0:
            own_broker.kill()
            own_broker.start()
        if broker_kind == "kafka":  # It serves before it has applied all that was committed.
            eventually(
                lambda: topic not in client.list_topics(timeout=30).topics, "the deletion is known"
            )
        assert topic not in view.topics(address)
    assert len(ids) == 3


def test_offsets_of_a_deleted_topic_do_not_survive_a_kill(broker_kind, own_broker, topic, group):
    """After a kill right behind the deletion, no group has offsets of the deleted topic.

    Apache Kafka may keep them: it deletes offsets some time after its answer, if it still runs.
    """
    address = own_broker.address
    other = f"{topic}-kept"
    groups = [f"{group}-{number}" for number in range(GROUPS)]
    for name in (topic, other):
        create(address, name, 1)
    with connect(address) as client:
        client.call(FindCoordinatorRequest(coordinator_keys=groups[:1], key_type=0), 4)
        for name in groups:
            _commit(client, name, [topic, other], 5)
    client = admin(address)
    _delete(client, topic)
    own_broker.kill()
    own_broker.start()
    create(address, topic, 1)
    offsets_by_group = view.committed_offsets(address, groups)
    remaining = {(other, 0): (5, "")}
    allowed = [remaining]
    if broker_kind == "kafka":
        allowed.append({**remaining, (topic, 0): (5, "")})
    assert all(offsets in allowed for offsets in offsets_by_group.values())
    own_broker.restart()
    assert view.committed_offsets(address, groups) == offsets_by_group


def _delete(client, topic) -> None:
    """Delete a topic; an attempt without an answer may have deleted it."""
    settled = KafkaError.UNKNOWN_TOPIC_OR_PART
    eventually(lambda: _is_certain(client.delete_topics([topic])[topic], settled, 20), "a deletion")


def _commit(client, group, topics, offset) -> None:
    shape = OffsetCommitRequest.OffsetCommitRequestTopic
    spot = shape.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    request = OffsetCommitRequest(
        group_id=group, member_id="", topics=[shape(name=t, partitions=[spot]) for t in topics]
    )

    def attempt() -> bool:
        reply = client.call(request, 9)
        return not any(p.error_code for t in reply.topics for p in t.partitions)

    eventually(attempt, f"a commit of {group}")


def test_kills_while_a_group_rebalances(own_broker, topic, group):
    """Members rejoin after kills and continue at the committed offsets; none is stuck."""
    address = own_broker.address
    create(address, topic, 6)
    with loads(address, topic, 6) as running:
        for _ in range(ROUNDS):
            stop = threading.Event()
            threads = [
                threading.Thread(target=_member, args=(address, topic, group, stop), daemon=True)
                for _ in range(3)
            ]
            for thread in threads:
                thread.start()
                time.sleep(0.1)  # So that the joins overlap.
            wait_for_more(running, 30)
            own_broker.kill()
            own_broker.start()
            wait_for_more(running, 30)
            stop.set()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
            before = view.committed_offsets(address, [group])[group]
            own_broker.kill()
            own_broker.start()
            assert view.committed_offsets(address, [group])[group] == before
    ends = view.offsets(address, [(topic, n) for n in range(6)])["end"]
    with consumer(address, group) as reader:
        reader.subscribe([topic])
        committed = view.committed_offsets(address, [group])[group]
        remaining = sum(ends[place] - committed.get(place, (0, ""))[0] for place in ends)
        got = collect(lambda: poll(reader), remaining)
        assert len({(m.partition(), m.offset()) for m in got}) == len(got) == remaining
    assert check(running, address, topic, 6) > 0


def _member(address, topic, group, stop):
    with consumer(address, group, session_timeout_ms=6000) as reader:
        reader.subscribe([topic])
        while not stop.is_set():
            reader.consume(50, 0.1)
            try:
                reader.commit(asynchronous=False)
            except KafkaException:
                continue  # There is nothing to commit, or the broker is down.
