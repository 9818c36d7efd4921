"""Apache's command-line tools, each by the class that its shell script starts."""

from __future__ import annotations

import json
import re

import pytest
from confluent_kafka import Producer

from compat_tests.harness.wait import eventually
from compat_tests.kafka_python.clients import admin, consumer, create, fill, poll, read

TOOLS = "org.apache.kafka.tools"
CONSUMER_GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"


@pytest.fixture
def tool(jvm, broker):
    """A function that runs a tool with --bootstrap-server and returns its output."""

    def run(name, *arguments, stdin=""):
        full = name if name.startswith(("kafka.", "org.")) else f"{TOOLS}.{name}"
        ran = jvm.tool(full, "--bootstrap-server", broker.address, *arguments, stdin=stdin)
        return ran.ok()

    return run


def test_topics(jvm, broker, tool, topic):
    output = tool("TopicCommand", "--create", "--topic", topic, "--partitions", "3",
                "--config", "retention.ms=1234567")  # fmt: skip
    assert f"Created topic {topic}" in output
    assert topic in tool("TopicCommand", "--list").split()
    described = tool("TopicCommand", "--describe", "--topic", topic)
    assert "PartitionCount: 3" in described
    assert "retention.ms=1234567" in described
    assert len(re.findall(r"Leader: \d+", described)) == 3
    assert "Isr: " in described
    tool("TopicCommand", "--alter", "--topic", topic, "--partitions", "5")
    eventually(
        lambda: "PartitionCount: 5" in tool("TopicCommand", "--describe", "--topic", topic), "five"
    )
    assert tool("TopicCommand", "--describe", "--under-replicated-partitions").strip() == ""
    tool("TopicCommand", "--delete", "--topic", topic)
    eventually(lambda: topic not in tool("TopicCommand", "--list").split(), "the topic is gone")
    again = jvm.tool(f"{TOOLS}.TopicCommand", "--bootstrap-server", broker.address, "--delete",
                     "--topic", topic)  # fmt: skip
    assert again.code == 1
    assert "does not exist" in again.out + again.err


def test_configs(broker, tool, topic, node_count):
    """A change is shown at once by one broker; by another of several, a moment later."""
    create(broker.address, topic)
    command = "kafka.admin.ConfigCommand"
    entity = ["--entity-type", "topics", "--entity-name", topic]

    def check(text: str, *arguments: str, is_shown: bool = True) -> None:
        def has_changed() -> bool:
            return (text in tool(command, "--describe", *arguments)) == is_shown

        assert has_changed() or node_count > 1, text
        eventually(has_changed, text)

    tool(command, "--alter", *entity, "--add-config", "retention.ms=7777777,max.message.bytes=5000")
    check("retention.ms=7777777", *entity)
    check("DYNAMIC_TOPIC_CONFIG:max.message.bytes=5000", *entity)
    tool(command, "--alter", *entity, "--delete-config", "retention.ms")
    check("retention.ms", *entity, is_shown=False)
    check("retention.ms=604800000", "--all", *entity)
    check("cleanup.policy=delete", "--all", *entity)
    node = ["--entity-type", "brokers", "--entity-default"]
    tool(command, "--alter", *node, "--add-config", "log.cleaner.threads=2")
    check("log.cleaner.threads=2", *node)
    tool(command, "--alter", *node, "--delete-config", "log.cleaner.threads")
    check("log.cleaner.threads", *node, is_shown=False)


@pytest.mark.single
def test_levels_of_loggers_are_altered(tool):
    command, entity = "kafka.admin.ConfigCommand", ["--entity-type", "broker-loggers"]
    node = [*entity, "--entity-name", "1"]
    former = re.search(r"^ *root=(\w+)", tool(command, "--describe", *node), re.MULTILINE)
    assert former is not None
    tool(command, "--alter", *node, "--add-config", "root=WARN")
    assert re.search(r"^ *root=WARN ", tool(command, "--describe", *node), re.MULTILINE)
    tool(command, "--alter", *node, "--add-config", f"root={former[1]}")


@pytest.mark.single
def test_threads_of_all_brokers_are_not_compared_with_those_of_one(tool):
    """At most double or half at a time: that is for the number that the broker uses."""
    command, default = "kafka.admin.ConfigCommand", ["--entity-type", "brokers", "--entity-default"]
    node, name = ["--entity-type", "brokers", "--entity-name", "1"], "num.io.threads"
    tool(command, "--alter", *node, "--add-config", f"{name}=16")
    eventually(lambda: f"{name}=16" in tool(command, "--describe", *node), "the broker's own")
    for changed in (f"{name}=40", f"{name}=5"):
        tool(command, "--alter", *default, "--add-config", changed)
    assert f"{name}=16" in tool(command, "--describe", *node)
    tool(command, "--alter", *default, "--delete-config", name)
    tool(command, "--alter", *node, "--delete-config", name)
    eventually(lambda: f"{name}=" not in tool(command, "--describe", *node), "neither setting")


def test_configs_of_a_listener_are_shown(tool):
    """A node with another listener keeps the setting too, and shows it."""
    command, node = "kafka.admin.ConfigCommand", ["--entity-type", "brokers", "--entity-name", "1"]
    name = "listener.name.elsewhere.ssl.truststore.type"
    tool(command, "--alter", *node, "--add-config", f"{name}=PKCS12,not.a.setting=2")
    expected = [
        f"{name}=PKCS12 sensitive=false synonyms={{DYNAMIC_BROKER_CONFIG:{name}=PKCS12, "
        "DEFAULT_CONFIG:ssl.truststore.type=JKS}",
        "not.a.setting=null sensitive=true synonyms={DYNAMIC_BROKER_CONFIG:not.a.setting=null}",
    ]

    def lines() -> list[str]:
        return [line.strip() for line in tool(command, "--describe", *node).splitlines()]

    eventually(lambda: set(expected) <= set(lines()), "both settings")
    tool(command, "--alter", *node, "--delete-config", f"{name},not.a.setting")
    eventually(lambda: not {name, "not.a.setting"} & {line.split("=")[0] for line in lines()},
               "neither setting")  # fmt: skip


def test_console_producer_and_consumer(tool, topic):
    tool("TopicCommand", "--create", "--topic", topic, "--partitions", "1")
    properties = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=:"]
    lines = "".join(f"k{n}:v{n}\n" for n in range(50))
    tool("ConsoleProducer", "--topic", topic, *properties, stdin=lines)
    printed = tool(
        "consumer.ConsoleConsumer", "--topic", topic, "--from-beginning", "--max-messages", "50",
        "--timeout-ms", "60000", "--formatter-property", "print.key=true",
        "--formatter-property", "key.separator=:", "--formatter-property", "print.offset=true",
    )  # fmt: skip
    assert printed.split() == [f"Offset:{n}:k{n}:v{n}" for n in range(50)]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_console_producer_compresses(broker, tool, topic, codec):
    create(broker.address, topic)
    lines = "".join(f"{n} {'abc' * 50}\n" for n in range(100))
    tool("ConsoleProducer", "--topic", topic, "--compression-codec", codec, stdin=lines)
    assert [r.value.decode() for r in read(broker.address, topic, 100)] == lines.splitlines()


def test_consumer_groups(broker, tool, topic, group):
    create(broker.address, topic, 2)
    for partition in (0, 1):
        fill(broker.address, topic, [b"x"] * 10, partition=partition)
    with consumer(broker.address, topic, group_id=group) as reader:
        eventually(lambda: poll(reader), "records")
        reader.commit()
        state = tool(CONSUMER_GROUPS, "--describe", "--group", group, "--state")
        assert "Stable" in state
        members = tool(CONSUMER_GROUPS, "--describe", "--group", group, "--members", "--verbose")
        assert f"{topic}(0,1)" in members.replace(":", "(").replace("((", "(") or topic in members
    assert group in tool(CONSUMER_GROUPS, "--list").split()
    scope = ["--group", group, "--topic", topic]
    planned = tool(CONSUMER_GROUPS, "--reset-offsets", "--to-offset", "4", *scope, "--dry-run")
    assert len(re.findall(rf"{topic}\s+[01]\s+4\b", planned)) == 2
    tool(CONSUMER_GROUPS, "--reset-offsets", "--to-offset", "4", *scope, "--execute")
    described = tool(CONSUMER_GROUPS, "--describe", "--group", group)
    rows = re.findall(rf"{topic}\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)", described)
    assert sorted(rows) == [("0", "4", "10", "6"), ("1", "4", "10", "6")]
    tool(CONSUMER_GROUPS, "--delete-offsets", *scope)
    tool(CONSUMER_GROUPS, "--delete", "--group", group)
    assert group not in tool(CONSUMER_GROUPS, "--list").split()
    assert group not in tool("GroupsCommand", "--list")


def test_group_of_the_consumer_protocol(broker, tool, topic, group):
    create(broker.address, topic, 2)
    fill(broker.address, topic, [b"x"] * 10, partition=0)
    printed = tool(
        f"{TOOLS}.consumer.ConsoleConsumer", "--topic", topic, "--from-beginning",
        "--max-messages", "10", "--group", group, "--command-property", "group.protocol=consumer",
    )  # fmt: skip
    assert printed.split() == ["x"] * 10
    listed = tool(CONSUMER_GROUPS, "--list", "--type", "consumer", "--state", "Empty")
    (row,) = (line.split() for line in listed.splitlines() if line.startswith(group))
    assert row == [group, "Consumer", "Empty"]
    assert group not in tool(CONSUMER_GROUPS, "--list", "--type", "classic").split()
    state = tool(CONSUMER_GROUPS, "--describe", "--group", group, "--state")
    assert "Empty" in state
    assert "uniform" in state
    described = tool(CONSUMER_GROUPS, "--describe", "--group", group)
    assert re.search(rf"{topic}\s+0\s+(-\s+)?10\s+10\s+0", described)
    scope = ["--group", group, "--topic", topic]
    tool(CONSUMER_GROUPS, "--reset-offsets", "--to-offset", "4", *scope, "--execute")
    assert re.search(
        rf"{topic}\s+0\s+(-\s+)?4\s+10\s+6", tool(CONSUMER_GROUPS, "--describe", "--group", group)
    )
    tool(CONSUMER_GROUPS, "--delete-offsets", *scope)
    tool(CONSUMER_GROUPS, "--delete", "--group", group)
    assert group not in tool(CONSUMER_GROUPS, "--list").split()


def test_offsets_and_delete_records(broker, tool, topic, tmp_path):
    create(broker.address, topic, 2)
    fill(broker.address, topic, [b"x"] * 10, partition=0)
    ends = tool("GetOffsetShell", "--topic", topic)
    assert sorted(ends.split()) == [f"{topic}:0:10", f"{topic}:1:0"]
    plan = {"partitions": [{"topic": topic, "partition": 0, "offset": 6}], "version": 1}
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    printed = tool("DeleteRecordsCommand", "--offset-json-file", str(file))
    assert "low_watermark: 6" in printed
    earliest = tool("GetOffsetShell", "--topic", topic, "--time", "earliest")
    assert sorted(earliest.split()) == [f"{topic}:0:6", f"{topic}:1:0"]
    file.write_text(json.dumps({**plan, "version": 1}).replace(": 6", ": 600"))
    refused = tool("DeleteRecordsCommand", "--offset-json-file", str(file))
    assert "out of range" in refused.lower().replace("outofrange", "out of range")


def test_broker_api_versions(tool, broker, node_count):
    printed = tool("BrokerApiVersionsCommand")
    assert {row.split()[0] for row in printed.splitlines() if " -> (" in row} == set(
        broker.address.split(",")
    )
    for api in ("Produce(0)", "Fetch(1)", "JoinGroup(11)", "CreateTopics(19)", "ApiVersions(18)"):
        assert api in printed
        lines = [row for row in printed.splitlines() if api in row]
        assert len(lines) == node_count
        assert not any("UNSUPPORTED" in line for line in lines)


def test_log_dirs(broker, tool, topic, node_count):
    create(broker.address, topic)
    fill(broker.address, topic, [b"x" * 1000] * 10)

    def sizes():
        printed = tool("LogDirsCommand", "--describe", "--topic-list", topic)
        for answer in json.loads(printed.splitlines()[-1])["brokers"]:
            (directory,) = answer["logDirs"]
            assert directory["error"] is None
            (partition,) = [p for p in directory["partitions"] if p["partition"] == f"{topic}-0"]
            yield partition["size"]

    eventually(lambda: len([s for s in sizes() if s > 10_000]) == node_count, "all replicas")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_verifiable_producer_and_consumer(tool, topic, group, protocol):
    tool("TopicCommand", "--create", "--topic", topic, "--partitions", "2")
    produced = tool(
        "VerifiableProducer", "--topic", topic, "--max-messages", "1000", "--throughput", "-1",
        "--repeating-keys", "10",
    )  # fmt: skip
    events = [json.loads(line) for line in produced.splitlines()]
    assert sum(event["name"] == "producer_send_success" for event in events) == 1000
    (summary,) = [event for event in events if event["name"] == "tool_data"]
    assert summary["acked"] == summary["sent"] == 1000
    consumed = tool(
        "VerifiableConsumer", "--topic", topic, "--group-id", group, "--max-messages", "1000",
        "--reset-policy", "earliest", "--group-protocol", protocol,
    )  # fmt: skip
    events = [json.loads(line) for line in consumed.splitlines()]
    assert sum(e["count"] for e in events if e["name"] == "records_consumed") == 1000
    committed = [event for event in events if event["name"] == "offsets_committed"]
    assert committed
    assert all(event["success"] for event in committed)


def test_performance_tools_end(tool, topic, broker):
    tool("TopicCommand", "--create", "--topic", topic, "--partitions", "2")
    printed = tool(
        "ProducerPerformance", "--topic", topic, "--num-records", "20000", "--record-size", "100",
        "--throughput", "-1", "--command-property", "acks=all",
    )  # fmt: skip
    assert "20000 records sent" in printed
    printed = tool("ConsumerPerformance", "--topic", topic, "--num-records", "20000",
                   "--timeout", "60000")  # fmt: skip
    consumed = printed.strip().splitlines()[-1].split(", ")
    assert int(consumed[4]) >= 20000


def test_metadata_quorum(tool):
    status = tool("MetadataQuorumCommand", "describe", "--status")
    assert re.search(r"LeaderId:\s+\d+", status)
    assert re.search(r"ClusterId:\s+\S{22}", status)
    assert re.search(r"HighWatermark:\s+[1-9]", status)
    replication = tool("MetadataQuorumCommand", "describe", "--replication")
    assert "Leader" in replication


def test_features(tool):
    printed = tool("FeatureCommand", "describe")
    (line,) = [row for row in printed.splitlines() if row.startswith("Feature: metadata.version")]
    assert "4.3-IV" in line


def test_cluster(jvm, broker):
    ran = jvm.tool(f"{TOOLS}.ClusterTool", "cluster-id", "--bootstrap-server", broker.address)
    with admin(broker.address) as client:
        assert f"Cluster ID: {client.describe_cluster()['cluster_id']}" in ran.ok()


def test_apache_client_compatibility(jvm, broker, node_count, tool, topic):
    """Apache's own check that a broker's behaviour matches its advertised versions passes."""
    create(broker.address, topic)
    advertised = re.search(r"DescribeAcls\(29\): \d", tool("BrokerApiVersionsCommand"))
    acls = "true" if advertised else "false"
    ran = jvm.tool(
        f"{TOOLS}.ClientCompatibilityTest", "--bootstrap-server", broker.address, "--topic", topic,
        "--num-cluster-nodes", str(node_count), "--offsets-for-times-supported", "true",
        "--cluster-id-supported", "true", "--expect-record-too-large-exception", "false",
        "--create-topics-supported", "true", "--describe-acls-supported", acls,
        "--describe-configs-supported", "true", "--idempotent-producer-supported", "true",
    )  # fmt: skip
    assert "SUCCESS" in ran.ok() + ran.err


def test_transactions(tool, broker, topic, unique):
    """kafka-transactions.sh lists, describes and aborts transactions, and finds hanging ones.

    Invariant 61: an administrator can end a transaction whose producer is gone.
    """
    name = unique("txn")
    create(broker.address, topic)
    limit = {"transaction.timeout.ms": 600_000}  # All of these tools run before it ends.
    client = Producer({"bootstrap.servers": broker.address, "transactional.id": name, **limit})
    client.init_transactions(30)
    client.begin_transaction()
    client.produce(topic, b"open", partition=0)
    client.flush(30)
    command = "TransactionsCommand"
    rows = [line.split() for line in tool(command, "list").splitlines()]
    (row,) = [row for row in rows if row[0] == name]
    assert row[3] == "Ongoing"
    described = tool(command, "describe", "--transactional-id", name)
    assert f"{topic}-0" in described
    assert "Ongoing" in described
    producers = tool(command, "describe-producers", "--topic", topic, "--partition", "0")
    header, values = (line.split() for line in producers.strip().splitlines()[-2:])
    producer = dict(zip(header, values, strict=True))
    assert producer["ProducerId"] == row[2]
    start = producer["CurrentTransactionStartOffset"]
    assert start == "0"
    hanging = tool(command, "find-hanging", "--broker-id", row[1])
    assert topic not in hanging, "a transaction that its coordinator knows does not hang"
    tool(command, "abort", "--topic", topic, "--partition", "0", "--start-offset", start)
    producers = tool(command, "describe-producers", "--topic", topic, "--partition", "0")
    assert producers.strip().splitlines()[-1].split()[-1] == "None"
    client.abort_transaction(30)
    eventually(
        lambda: "CompleteAbort" in tool(command, "describe", "--transactional-id", name),
        "the abort is complete",
    )
