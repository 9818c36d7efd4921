"""ACLs with Apache's tool, confluent-kafka and kafka-python: added, listed, removed, in force.

All clients are User:ANONYMOUS on 127.0.0.1. They manage ACLs because no ACL covers the cluster.
"""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ResourcePattern,
    ResourcePatternFilter,
)
from kafka.admin import ACLResourcePatternType as PatternType
from kafka.admin import ResourceType as Kind

from compat_tests.confluent_kafka.clients import admin, create
from compat_tests.harness.broker import Broker
from compat_tests.harness.jvm import Jvm
from compat_tests.harness.wait import eventually
from compat_tests.kafka_python.clients import admin as python_admin
from tests.support.authorization.matrix import SETTINGS

pytestmark = pytest.mark.single
BROKER_SETTINGS = SETTINGS
TOOL = "org.apache.kafka.tools.AclCommand"
ANYBODY = "User:ANONYMOUS"


def tool(jvm: Jvm, broker: Broker, *arguments: str) -> str:
    """Run kafka-acls.sh and return its output."""
    return jvm.tool(TOOL, "--bootstrap-server", broker.address, *arguments).ok()


def entries(output: str) -> list[str]:
    """Return the entries that kafka-acls.sh lists, sorted."""
    lines = (line.strip() for line in output.splitlines())
    return sorted(line.rstrip(", ") for line in lines if line.startswith("(principal="))


def entry(operation: str, *, principal: str = "User:alice", permission: str = "ALLOW") -> str:
    return f"(principal={principal}, host=*, operation={operation}, permissionType={permission})"


def denial(address: str, topic: str) -> int | None:
    """Produce a record; return the error code, None without an error."""
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": address, "message.timeout.ms": 10_000})
    producer.produce(topic, b"v", on_delivery=lambda error, message: errors.append(error))
    producer.flush(15)
    (error,) = errors
    return None if error is None else error.code()


def test_apaches_tool_adds_lists_and_removes(own_broker: Broker, jvm: Jvm) -> None:
    allow = ("--allow-principal", "User:alice")
    tool(jvm, own_broker, "--add", *allow, "--producer", "--topic", "t")
    listed = tool(jvm, own_broker, "--list", "--topic", "t")
    assert entries(listed) == sorted(map(entry, ("CREATE", "DESCRIBE", "WRITE")))
    assert "ResourcePattern(resourceType=TOPIC, name=t, patternType=LITERAL)" in listed
    tool(jvm, own_broker, "--add", *allow, "--consumer", "--topic", "a-", "--group", "g-",
         "--resource-pattern-type", "prefixed")  # fmt: skip
    listed = tool(jvm, own_broker, "--list", "--topic", "a-b", "--resource-pattern-type", "match")
    assert entries(listed) == sorted(map(entry, ("DESCRIBE", "READ")))
    assert "patternType=PREFIXED" in listed
    tool(jvm, own_broker, "--add", "--deny-principal", "User:bob", "--operation", "Read",
         "--topic", "t")  # fmt: skip
    assert entry("READ", principal="User:bob", permission="DENY") in entries(
        tool(jvm, own_broker, "--list", "--topic", "t", "--principal", "User:bob")
    )
    tool(jvm, own_broker, "--remove", *allow, "--producer", "--topic", "t", "--force")
    assert entries(tool(jvm, own_broker, "--list", "--topic", "t")) == [
        entry("READ", principal="User:bob", permission="DENY")
    ]
    tool(jvm, own_broker, "--remove", "--topic", "t", "--force")
    assert entries(tool(jvm, own_broker, "--list", "--topic", "t")) == []
    assert len(entries(tool(jvm, own_broker, "--list"))) == 3


def test_confluent_kafka_creates_describes_and_deletes(own_broker: Broker) -> None:
    client = admin(own_broker.address)
    create(own_broker.address, "t")
    write = AclBinding(
        ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, ANYBODY, "10.0.0.1",
        AclOperation.WRITE, AclPermissionType.ALLOW,
    )  # fmt: skip
    nobody: Any = None  # The types of the client lack what selects every principal and host.
    anything = AclBindingFilter(
        ResourceType.TOPIC, "t", ResourcePatternType.MATCH, nobody, nobody, AclOperation.ANY,
        AclPermissionType.ANY,
    )  # fmt: skip
    assert denial(own_broker.address, "t") is None
    client.create_acls([write])[write].result(30)
    eventually(
        lambda: denial(own_broker.address, "t") == KafkaError.TOPIC_AUTHORIZATION_FAILED,
        "another host's ACL covers the topic",
    )
    assert client.describe_acls(anything).result(30) == [write]
    assert client.delete_acls([anything])[anything].result(30) == [write]
    eventually(lambda: denial(own_broker.address, "t") is None, "no ACL covers the topic")
    wrong = AclBinding(
        ResourceType.BROKER, "other", ResourcePatternType.LITERAL, ANYBODY, "*",
        AclOperation.ALTER, AclPermissionType.ALLOW,
    )  # fmt: skip
    with pytest.raises(KafkaException) as caught:
        client.create_acls([wrong])[wrong].result(30)
    assert caught.value.args[0].code() == KafkaError.INVALID_REQUEST


def test_kafka_python_creates_describes_and_deletes(own_broker: Broker) -> None:
    read = ACL(
        principal="User:alice",
        host="*",
        operation=ACLOperation.READ,
        permission_type=ACLPermissionType.ALLOW,
        resource_pattern=ResourcePattern(Kind.TOPIC, "t", PatternType.PREFIXED),
    )
    everything = ACLFilter(
        principal=None,
        host=None,
        operation=ACLOperation.ANY,
        permission_type=ACLPermissionType.ANY,
        resource_pattern=ResourcePatternFilter(Kind.ANY, None, PatternType.ANY),
    )
    with python_admin(own_broker.address) as client:
        created = client.create_acls([read])
        assert created["succeeded"] == [read]
        acls, _ = client.describe_acls(everything)
        assert acls == [read]
        deleted = client.delete_acls([everything])
        assert deleted[0][1] == [read]
        acls, _ = client.describe_acls(everything)
        assert acls == []
