"""Images against logs and snapshots that Kafka wrote, and what an image must cost."""

import copy
from typing import Any

import pytest

from kwire.codec.messages import metadata_records as r
from kwire.raftmeta.metadata.image import Applied, MetadataImage
from kwire.raftmeta.metadata.image_change import ReplayError, apply
from kwire.raftmeta.metadata.image_loader import ImageLoader
from kwire.raftmeta.metadata.image_records import image_records
from tests.support.raftmeta.metadata_logs import MetadataLog, load
from tests.support.raftmeta.work import calls_in

LOGS = load()
ID = bytes(15) + b"\x07"
OTHER = bytes(15) + b"\x08"


def texts(records: list[Any]) -> list[str]:
    """Return the records as text, with features sorted by name (Kafka's have no order)."""
    shown = []
    for record in records:
        if hasattr(record, "features"):
            record = copy.copy(record)
            record.features = sorted(record.features, key=str)
        shown.append(str(record))
    return sorted(shown)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_replay_of_kafkas_logs_and_round_trip(log: MetadataLog) -> None:
    """An image written as records and read again is the same image."""
    loader = ImageLoader()
    for offset, record in log.records:
        loader.load([record], Applied(offset, 1))
    assert not loader.in_transaction
    image = loader.image
    assert image.topics
    assert image.features["metadata.version"] == 30
    again, _ = apply(MetadataImage(), image_records(image), image.applied)
    assert again == image


def test_snapshots_have_kafkas_records() -> None:
    """Replaying up to a snapshot's end gives its very records, in its order of kinds."""
    compared = 0
    for log in LOGS:
        for end, expected in log.snapshots.items():
            loader = ImageLoader()
            for offset, record in log.records:
                if offset < end:
                    loader.load([record], Applied(offset, 1))
            written: list[object] = list(image_records(loader.image))
            assert texts(written) == texts(expected)
            assert kinds(written) == kinds(expected)
            compared += 1
    assert compared == 5


def kinds(records: list[object]) -> list[str]:
    """Return the kinds of records in the order of their first appearance."""
    return list(dict.fromkeys(type(record).__name__ for record in records))


def topics(count: int) -> MetadataImage:
    records: list[r.MetadataRecord] = []
    for number in range(count):
        topic_id = number.to_bytes(16)
        records.append(r.TopicRecord(name=f"t{number}", topic_id=topic_id))
        records.append(
            r.PartitionRecord(partition_id=0, topic_id=topic_id, replicas=[1], isr=[1], leader=1)
        )
    return apply(MetadataImage(), records)[0]


def test_changed_image_shares_its_unchanged_parts() -> None:
    before = topics(1000)
    change = r.PartitionChangeRecord(partition_id=0, topic_id=ID, leader=2, isr=[2])
    after, delta = apply(before, [change])
    assert before.topics[ID].partitions[0].leader == 1, "the old image is as it was"
    partition = after.topics[ID].partitions[0]
    assert (partition.leader, partition.isr) == (2, (2,))
    assert (partition.leader_epoch, partition.partition_epoch) == (0, 0), "from -1 and -1"
    assert after.topics[OTHER] is before.topics[OTHER]
    assert after.configs is before.configs
    assert delta.partitions == {ID: {0}}
    assert not delta.created_topics


def broker_of(broker_id: int, directory: bytes) -> r.RegisterBrokerRecord:
    return r.RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=bytes(16),
        broker_epoch=broker_id,
        rack=None,
        log_dirs=[directory],
    )


def test_change_of_a_leader_does_not_grow_with_the_brokers() -> None:
    def work(broker_count: int) -> int:
        brokers = [broker_of(n, n.to_bytes(16)) for n in range(1000, 1000 + broker_count)]
        image = apply(topics(8), brokers)[0]
        change = r.PartitionChangeRecord(partition_id=0, topic_id=ID, leader=2, isr=[2])
        return calls_in(lambda: apply(image, [change]))

    assert work(1000) == work(1)


def test_partitions_share_the_directory_ids_of_the_brokers() -> None:
    directory = bytes(15) + b"\x09"
    broker = broker_of(1, directory)
    image = apply(topics(8), [broker])[0]
    copy_of_it = bytes(bytearray(directory))
    changes = [
        r.PartitionChangeRecord(partition_id=0, topic_id=ID, isr=[1]),
        r.PartitionChangeRecord(partition_id=0, topic_id=ID, directories=[copy_of_it]),
    ]
    image = apply(image, changes)[0]
    assert image.topics[ID].partitions[0].directories[0] is image.brokers[1].log_dirs[0]


def test_only_naming_a_leader_begins_a_leader_epoch() -> None:
    image = topics(8)
    for leader, epoch in ((-2, -1), (1, 0), (-1, 1)):
        record = r.PartitionChangeRecord(partition_id=0, topic_id=ID, isr=[1], leader=leader)
        image, _ = apply(image, [record])
        assert image.topics[ID].partitions[0].leader_epoch == epoch


def test_topic_deleted_and_created_again() -> None:
    image = topics(8)
    config = r.ConfigRecord(resource_type=2, resource_name="t7", name="retention.ms", value="1")
    image, _ = apply(image, [config])
    new = b"n" * 16
    after, delta = apply(
        image, [r.RemoveTopicRecord(topic_id=ID), r.TopicRecord(name="t7", topic_id=new)]
    )
    assert after.topic_ids["t7"] == new
    assert after.config(2, "t7") == {}, "a new topic does not inherit settings"
    assert set(delta.deleted_topics) == {ID}
    assert delta.created_topics == {new}
    assert delta.configs == {(2, "t7")}


def test_topic_created_and_deleted_in_one_go_leaves_no_trace() -> None:
    new = b"n" * 16
    image = topics(1)
    after, delta = apply(
        image, [r.TopicRecord(name="x", topic_id=new), r.RemoveTopicRecord(topic_id=new)]
    )
    assert after == image
    assert (delta.created_topics, delta.deleted_topics, delta.partitions) == (frozenset(), {}, {})


@pytest.mark.parametrize(
    "record",
    [
        r.RemoveTopicRecord(topic_id=OTHER),
        r.PartitionChangeRecord(partition_id=0, topic_id=OTHER, leader=1),
        r.PartitionChangeRecord(partition_id=9, topic_id=bytes(16), leader=1),
        r.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, fenced=1),
        r.UnregisterBrokerRecord(broker_id=1, broker_epoch=1),
    ],
)
def test_a_log_that_contradicts_itself_is_refused(record: r.MetadataRecord) -> None:
    with pytest.raises(ReplayError):
        apply(topics(1), [record])


def test_registration_change_alters_only_its_fields() -> None:
    image, _ = apply(
        MetadataImage(),
        [
            r.RegisterBrokerRecord(
                broker_id=1, incarnation_id=ID, broker_epoch=5, log_dirs=[ID], rack=None
            ),
            r.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, cordoned_log_dirs=[]),
            r.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, fenced=-1),
        ],
    )
    broker = image.brokers[1]
    assert (broker.fenced, broker.cordoned_log_dirs, broker.log_dirs) == (False, (), (ID,))
    image, delta = apply(
        image,
        [r.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, in_controlled_shutdown=1)],
    )
    assert not image.brokers[1].is_active
    assert not image.brokers[1].fenced
    assert delta.brokers == {1}


def test_transactions_are_published_whole() -> None:
    loader = ImageLoader()
    topic = r.TopicRecord(name="a", topic_id=ID)
    assert loader.load([r.BeginTransactionRecord(name="x"), topic], Applied(1, 1)) is None
    assert loader.in_transaction
    assert loader.load([r.AbortTransactionRecord()], Applied(2, 1)) is not None
    assert not loader.image.topics
    assert loader.load([topic, r.BeginTransactionRecord()], Applied(4, 1)) is None
    published = loader.load([r.EndTransactionRecord()], Applied(5, 1))
    assert published is not None
    assert published[1].created_topics == {ID}, "what came before the transaction counts, too"
    assert loader.image.applied.offset == 5


def test_loading_a_snapshot_yields_the_delta() -> None:
    loader = ImageLoader()
    loader.load(image_records(topics(4)), Applied(9, 1))
    records = list(image_records(topics(3)))
    more = r.TopicRecord(name="new", topic_id=b"n" * 16)
    _, delta = loader.load_snapshot([*records, more], Applied(20, 2))
    assert delta.created_topics == {b"n" * 16}
    assert list(delta.deleted_topics) == [(3).to_bytes(16)]
    assert not delta.partitions, "the others are as they were"
    assert loader.image.applied == Applied(20, 2)
