"""The topics of the metadata, as the coordinator of consumer groups hashes them.

`tests/group/test_recorded_conversations.py` compares hashes with racks with Apache Kafka's.
"""

import gc
from weakref import ref

import pytest

from kwire.codec.messages import metadata_records as r
from kwire.group.consumer.topics import topic_hash
from kwire.node.group_topics import ImageTopics
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.metadata.image_change import apply
from tests.support.raftmeta.clusters import registration

TOPIC = b"t" * 16


def partition(number: int, *replicas: int) -> r.PartitionRecord:
    return r.PartitionRecord(
        partition_id=number,
        topic_id=TOPIC,
        replicas=list(replicas),
        isr=list(replicas),
        leader=replicas[0],
        leader_epoch=0,
        partition_epoch=0,
    )


def hash_with(*racks: list[str]) -> int:
    return topic_hash(TOPIC, "t", racks)


def make_image() -> MetadataImage:
    """Return the metadata of brokers in two racks and of one without, and of a topic."""
    records = [registration(1, "r1"), registration(2, "r2"), registration(3)]
    records += [r.TopicRecord(name="t", topic_id=TOPIC), partition(0, 2, 1, 3), partition(1, 3)]
    return apply(MetadataImage(), records)[0]


@pytest.fixture
def image() -> MetadataImage:
    return make_image()


def test_hash_of_a_topic_has_the_racks_of_its_replicas(image: MetadataImage) -> None:
    topics = ImageTopics(image, {}, 0)
    assert topics.hash_of("t") == hash_with(["r2", "r1"], [])
    assert topics.hash_of("t") == hash_with(["r1", "r2"], [])
    assert topics.hash_of("t") != hash_with([], [])
    assert topics.hash_of("other") is None


def test_changed_rack_counts_from_the_next_change_of_the_topic(image: MetadataImage) -> None:
    """A broker that moves to another rack rebalances no group by itself, as in Kafka."""
    topics = ImageTopics(image, {}, 0)
    before, version = topics.hash_of("t"), topics.version
    moved, _ = apply(image, [registration(1, "r9")])
    topics = topics.next(moved)
    assert topics.hash_of("t") == before
    assert topics.version is version
    grown, _ = apply(moved, [partition(2, 1)])
    topics = topics.next(grown)
    assert topics.hash_of("t") == hash_with(["r2", "r9"], [], ["r9"])
    assert topics.version is not version


def test_another_coordinator_hashes_with_the_racks_of_its_time(image: MetadataImage) -> None:
    moved, _ = apply(image, [registration(1, "r9")])
    assert ImageTopics(moved, {}, 0).hash_of("t") == hash_with(["r2", "r9"], [])


def test_deleted_topic_does_not_stay_in_memory() -> None:
    """A group keeps the version of the topics that it knows."""
    image = make_image()  # A fixture's value would stay until the end of the test.
    topics = ImageTopics(image, {}, 0)
    topics.hash_of("t")
    version = topics.version
    topic = ref(image.topics[TOPIC])
    image = apply(image, [r.RemoveTopicRecord(topic_id=TOPIC)])[0]
    topics = topics.next(image)
    assert topics.hash_of("t") is None
    assert topics.version is not version
    gc.collect()
    assert topic() is None
