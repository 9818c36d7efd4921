"""Replicas that move between the log directories of one broker, while clients use them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import errors

from compat_tests.harness.broker import Broker, make_broker
from compat_tests.harness.wait import eventually
from compat_tests.kafka_python.clients import admin, create, fill, producer, read

pytestmark = pytest.mark.single
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
NODE = 1
SETTINGS = {
    "log.segment.bytes": str(1 << 20),
    "log.segment.delete.delay.ms": "1000",
    "replica.high.watermark.checkpoint.interval.ms": "500",
}


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return [tmp_path / "broker" / "data", tmp_path / "broker" / "data-b"]


@pytest.fixture
def broker(broker_kind: str, tmp_path: Path, paths: list[Path]) -> Iterator[Broker]:
    """A broker with two log directories."""
    settings = {**SETTINGS, "log.dirs": ",".join(map(str, paths))}
    own = make_broker(broker_kind, tmp_path / "broker", settings)
    yield own
    own.close()


def place(paths: list[Path], topic: str) -> list[str]:
    """Return the directories of partition 0 by the kind of their names, for each log directory."""
    names = [
        f"{number}:{path.name.rpartition('-')[2]}"
        for number, directory in enumerate(paths)
        for path in directory.glob(f"{topic}-0*")
    ]
    return sorted(names)


def source_and_target(paths: list[Path], topic: str) -> tuple[int, int]:
    def find() -> list[str]:
        return place(paths, topic)

    (name,) = eventually(find, "the replica's directory")
    return (0, 1) if name.startswith("0") else (1, 0)


def move(broker: Broker, topic: str, path: object, partition: int = 0) -> Any:
    """Request a move; return the class of the error."""
    replica = (topic, partition, NODE)
    with admin(broker.address) as client:
        answers = client.alter_replica_log_dirs({replica: str(path)})
    (answer,) = answers.values()
    return answer


def describe(broker: Broker, topic: str) -> list[tuple[str, bool, int, int]]:
    """Return the directory, whether it is a future replica, its size and lag, for each replica."""
    with admin(broker.address) as client:
        (node,) = client.describe_log_dirs({topic: [0]})
    return sorted(
        (
            Path(directory["log_dir"]).name,
            replica["is_future_key"],
            replica["partition_size"],
            replica["offset_lag"],
        )
        for directory in node.get("log_dirs") or node["results"]
        for each in directory["topics"]
        for replica in each["partitions"]
    )


def test_moved_replica_keeps_its_records(broker, paths, topic):
    create(broker.address, topic)
    fill(broker.address, topic, [b"%d" % number + b"x" * 10_000 for number in range(500)])
    source, target = source_and_target(paths, topic)
    ((_, _, size, _),) = describe(broker, topic)
    assert move(broker, topic, paths[target]) is errors.NoError
    eventually(lambda: place(paths, topic) == [f"{target}:0"], "the end of the move")
    assert describe(broker, topic) == [(paths[target].name, False, size, 0)]
    assert move(broker, topic, paths[target]) is errors.NoError, "it is there already"
    fill(broker.address, topic, [b"after"])
    broker.kill()
    broker.start()
    values = [record.value for record in read(broker.address, topic, 501)]
    assert [value[:3].rstrip(b"x") for value in values[:100]] == [b"%d" % n for n in range(100)]
    assert values[-1] == b"after"
    assert move(broker, topic, paths[source]) is errors.NoError
    eventually(lambda: place(paths, topic) == [f"{source}:0"], "the way back")


def test_move_under_load_loses_nothing(broker, paths, topic):
    create(broker.address, topic)
    fill(broker.address, topic, [b"x" * 10_000] * 200)
    _, target = source_and_target(paths, topic)
    with producer(broker.address, acks="all", enable_idempotence=True) as sender:
        sent = []
        for number in range(3000):
            if number == 500:
                assert move(broker, topic, paths[target]) is errors.NoError
            sent.append(sender.send(topic, b"%d" % number))
            if not number % 100:
                sender.flush()
        offsets = [future.get(timeout=60).offset for future in sent]
    assert offsets == list(range(200, 3200))
    eventually(lambda: place(paths, topic) == [f"{target}:0"], "the end of the move")
    values = [record.value for record in read(broker.address, topic, 3200)]
    assert values[200:] == [b"%d" % number for number in range(3000)]


def test_throttled_move_shows_its_lag_and_can_be_replaced(broker, paths, topic, jvm):
    create(broker.address, topic)
    fill(broker.address, topic, [b"x" * 100_000] * 100)
    source, target = source_and_target(paths, topic)
    limit_moves(jvm, broker, 100_000)
    assert move(broker, topic, paths[target]) is errors.NoError
    current, future = eventually(
        lambda: (
            sorted(describe(broker, topic), key=lambda row: row[1])
            if len(describe(broker, topic)) == 2
            else None
        ),
        "a future replica",
    )
    assert current[:2] == (paths[source].name, False)
    assert future[:2] == (paths[target].name, True)
    assert 0 <= future[2] < current[2]
    assert 0 < future[3] <= 100
    assert sorted(place(paths, topic)) == sorted([f"{source}:0", f"{target}:future"])
    assert move(broker, topic, paths[source]) is errors.NoError, "this ends the move"
    eventually(lambda: place(paths, topic) == [f"{source}:0"], "the end of the future replica")
    assert move(broker, topic, paths[target]) is errors.NoError
    eventually(lambda: len(place(paths, topic)) == 2, "another future replica")
    broker.stop()
    broker.start()
    assert f"{target}:future" in place(paths, topic), "a restart keeps the future replica"
    limit_moves(jvm, broker, 1 << 30)
    eventually(lambda: place(paths, topic) == [f"{target}:0"], "the end of the move")


def test_killed_broker_resumes_the_move(broker, paths, topic, jvm):
    create(broker.address, topic)
    fill(broker.address, topic, [b"%d" % number + b"x" * 100_000 for number in range(50)])
    _, target = source_and_target(paths, topic)
    limit_moves(jvm, broker, 1_000_000)
    assert move(broker, topic, paths[target]) is errors.NoError

    def has_begun() -> bool:
        has_slice = any(row[1] and row[2] for row in describe(broker, topic))
        return has_slice or place(paths, topic) == [f"{target}:0"]  # The machine stopped meanwhile.

    eventually(has_begun, "a first slice")
    broker.kill()
    broker.start()
    fill(broker.address, topic, [b"after"])
    limit_moves(jvm, broker, 1 << 30)
    eventually(lambda: place(paths, topic) == [f"{target}:0"], "the end of the move")
    values = [record.value for record in read(broker.address, topic, 51)]
    assert [value.rstrip(b"x") for value in values] == [*(b"%d" % n for n in range(50)), b"after"]


def limit_moves(jvm, broker: Broker, bytes_per_second: int) -> None:
    setting = f"replica.alter.log.dirs.io.max.bytes.per.second={bytes_per_second}"
    jvm.tool(
        "kafka.admin.ConfigCommand", "--bootstrap-server", broker.address, "--alter",
        "--entity-type", "brokers", "--entity-name", str(NODE), "--add-config", setting,
    ).ok()  # fmt: skip


def test_errors_of_requests(broker, paths, unique: Callable[[str], str]):
    topic = unique("t")
    create(broker.address, topic)
    source_and_target(paths, topic)
    assert move(broker, topic, paths[0].parent / "elsewhere") is errors.LogDirNotFoundError
    assert move(broker, topic, "data") is errors.LogDirNotFoundError
    assert move(broker, topic, f"{paths[0]}/") is errors.LogDirNotFoundError
    assert move(broker, unique("none"), paths[0]) is errors.UnknownTopicOrPartitionError
    assert move(broker, topic, paths[0], 7) is errors.UnknownTopicOrPartitionError
    long_topic = "t" * 230
    create(broker.address, long_topic)
    assert move(broker, long_topic, paths[0]) is errors.InvalidTopicError
    assert move(broker, "t" * 230, "elsewhere") is errors.InvalidTopicError


def test_directory_of_a_later_topic_can_be_requested(broker, paths, unique):
    for number in range(4):
        topic, index = unique(f"t{number}"), number % 2
        assert move(broker, topic, paths[index]) is errors.UnknownTopicOrPartitionError
        create(broker.address, topic)
        source, _ = source_and_target(paths, topic)
        assert source == index


def test_reassignment_tool_moves_replicas(broker, paths, topic, jvm, tmp_path):
    create(broker.address, topic)
    fill(broker.address, topic, [b"x" * 10_000] * 100)
    _, target = source_and_target(paths, topic)
    plan = {
        "version": 1,
        "partitions": [
            {"topic": topic, "partition": 0, "replicas": [NODE], "log_dirs": [str(paths[target])]}
        ],
    }
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    arguments = ("--bootstrap-server", broker.address, "--reassignment-json-file", str(file))
    printed = jvm.tool(
        REASSIGN, *arguments, "--execute", "--replica-alter-log-dirs-throttle", "100000000"
    ).ok()
    assert "Successfully started moving" in printed
    eventually(
        lambda: (
            "is complete" in (text := jvm.tool(REASSIGN, *arguments, "--verify").ok())
            and f"{topic}-0" in text
            and "completed successfully" in text
        ),
        "a verified move",
    )
    assert place(paths, topic)[-1] == f"{target}:0"
