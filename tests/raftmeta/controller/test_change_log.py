"""Log lines of the active controller about changes of the cluster."""

from typing import Any

from kwire.codec.messages import metadata_records as r
from kwire.raftmeta.controller.change_log import (
    change_lines,
    feature_lines,
    unclean_elections,
    warnings,
)
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.metadata.image_change import apply
from kwire.types import DirectoryId


def topic(number: int, partitions: int = 1) -> list[Any]:
    topic_id = bytes(15) + bytes([number])
    return [
        r.TopicRecord(name=f"t{number}", topic_id=topic_id),
        *(
            r.PartitionRecord(topic_id=topic_id, partition_id=n, replicas=[1], isr=[1], leader=1)
            for n in range(partitions)
        ),
    ]


def lines_of(*turns: list[Any]) -> list[list[str]]:
    image = MetadataImage()
    lines: list[list[str]] = []
    for records in turns:
        image, delta = apply(image, records)
        lines.append([*feature_lines(delta), *change_lines(delta)])
    return lines


def test_state_changes_of_a_broker_are_logged() -> None:
    change = r.BrokerRegistrationChangeRecord
    registered = r.RegisterBrokerRecord(
        broker_id=1, broker_epoch=5, incarnation_id=bytes(16), rack=None, fenced=True
    )
    assert lines_of(
        [registered],
        [change(broker_id=1, broker_epoch=5, fenced=-1)],
        [change(broker_id=1, broker_epoch=5, in_controlled_shutdown=1)],
        [change(broker_id=1, broker_epoch=5, fenced=1)],
        [r.UnregisterBrokerRecord(broker_id=1, broker_epoch=5)],
    ) == [
        ["broker id=1 is fenced, was unregistered"],
        ["broker id=1 is serving, was fenced"],
        ["broker id=1 is leaving, was serving"],
        ["broker id=1 is fenced, was leaving"],
        ["broker id=1 is unregistered, was fenced"],
    ]


def test_created_and_deleted_topics_and_features_are_logged() -> None:
    assert lines_of(
        [r.FeatureLevelRecord(name="metadata.version", feature_level=30)],
        [*topic(1, 3), *topic(2)],
        [r.PartitionChangeRecord(topic_id=bytes(15) + b"\x01", partition_id=0, leader=-1)],
        [r.RemoveTopicRecord(topic_id=bytes(15) + b"\x01")],
        [record for number in range(10, 21) for record in topic(number, 2)],
    ) == [
        ["feature name=metadata.version level=30"],
        ["topics created name=t1 partitions=3", "topics created name=t2 partitions=1"],
        [],
        ["topics deleted name=t1 partitions=3"],
        ["topics created count=11 partitions=22"],
    ]


def test_leaders_that_may_lack_records_are_named() -> None:
    """Invariant 33: an unclean election is visible; other elections are not called unclean."""

    def change(**fields: Any) -> r.PartitionChangeRecord:
        topic_id = bytes(15) + b"\x01"
        return r.PartitionChangeRecord(topic_id=topic_id, partition_id=0, **fields)

    created = topic(1)
    created[1].replicas = [1, 2, 3]
    created[1].isr = [1, 2]
    turns = [
        created,
        [change(leader=2)],
        [change(leader=-1, isr=[], eligible_leader_replicas=[1])],
        [change(leader=1, isr=[1], eligible_leader_replicas=[])],
        [change(leader=-1)],
        [change(leader=3, isr=[3], leader_recovery_state=1)],
        [change(leader=-1, isr=[], last_known_elr=[3])],
        [change(leader=3, isr=[3], last_known_elr=[])],
    ]
    image = MetadataImage()
    lines = []
    for records in turns:
        image, delta = apply(image, records)
        lines.append(list(warnings(unclean_elections(delta))))
    assert lines[:5] == [[]] * 5
    assert lines[5:] == [
        [
            "unclean leader elected partition=t1-0 leader=3 former_isr=1: records that it lacks "
            "are lost"
        ],
        [],
        ["no replica is known to have stopped cleanly, the last leaders lead again partitions=1"],
    ]


def test_last_leader_that_begins_anew_is_called_unclean() -> None:
    """The operator gave up the records of a missing directory."""

    def change(**fields: Any) -> r.PartitionChangeRecord:
        return r.PartitionChangeRecord(topic_id=bytes(15) + b"\x01", partition_id=0, **fields)

    created = topic(1)
    created[1].replicas, created[1].isr, created[1].leader = [1], [1], 1
    created[1].directories = [b"d" * 16]
    turns = [
        [*created, change(leader=-1, isr=[], last_known_elr=[1])],
        [change(leader=1, isr=[1], last_known_elr=[], directories=[DirectoryId.UNASSIGNED])],
    ]
    image = MetadataImage()
    for records in turns:
        image, delta = apply(image, records)
    (line,) = warnings(unclean_elections(delta))
    assert line.startswith("unclean leader elected partition=t1-0 leader=1")


def test_leader_that_has_just_joined_the_isr_is_not_called_unclean() -> None:
    """Both changes reach the image at once: the ISR grows, then the preferred leader is elected."""

    def change(**fields: Any) -> r.PartitionChangeRecord:
        return r.PartitionChangeRecord(topic_id=bytes(15) + b"\x01", partition_id=0, **fields)

    created = topic(1)
    created[1].replicas, created[1].isr, created[1].leader = [3, 1, 2], [1, 2], 1
    image, _ = apply(MetadataImage(), created)
    changes = [change(isr=[3, 1, 2]), change(leader=3)]
    assert unclean_elections(apply(image, changes)[1]) == []


def test_leader_of_a_completed_reassignment_is_not_called_unclean() -> None:
    """The new replica joins the ISR and leads by one record."""
    created = topic(1)
    created[1].replicas = [1, 2, 3]
    created[1].isr = [1, 2]
    created[1].adding_replicas = [3]
    created[1].removing_replicas = [1, 2]
    completed = r.PartitionChangeRecord(
        topic_id=bytes(15) + b"\x01",
        partition_id=0,
        leader=3,
        isr=[3],
        replicas=[3],
        adding_replicas=[],
        removing_replicas=[],
    )
    unclean = r.PartitionChangeRecord(
        topic_id=bytes(15) + b"\x01", partition_id=0, leader=3, isr=[3], leader_recovery_state=1
    )
    image, _ = apply(MetadataImage(), created)
    assert unclean_elections(apply(image, [completed])[1]) == []
    assert len(unclean_elections(apply(image, [unclean])[1])) == 1
