"""`kwire users` and `kwire acls` with any Kafka cluster, and Kafka's own tools beside them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.harness.broker import ROOT
from compat_tests.harness.jvm import Jvm
from compat_tests.harness.wait import eventually
from compat_tests.security.secure import Secure, run_secure

pytestmark = pytest.mark.single


@pytest.fixture(scope="module")
def broker(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    with run_secure(broker_kind, tmp_path_factory.mktemp("secure")) as running:
        yield running


def kwire(broker: Secure, *arguments: str, stdin: str = "") -> str:
    command = [str(ROOT / "scripts" / "kwire"), *arguments, "--config", broker.java]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tool(jvm: Jvm, broker: Secure, name: str, *arguments: str) -> str:
    config = ("--bootstrap-server", broker.address, "--command-config", broker.java)
    return jvm.tool(name, *config, *arguments).ok()


def test_user_gets_in_and_sees_what_the_acls_allow(
    broker: Secure, jvm: Jvm, topic: str, group: str, tmp_path: Path
) -> None:
    admin = AdminClient(broker.settings)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    kwire(broker, "users", "add", group, "--password-file", "-", stdin="pass, =word\n")
    listing = tool(
        *(jvm, broker, "kafka.admin.ConfigCommand", "--describe"),
        *("--entity-type", "users", "--entity-name", group),
    )
    assert "SCRAM-SHA-512=iterations=4096" in listing
    own = broker.settings | {"sasl.username": group, "sasl.password": "pass, =word"}

    def topics() -> set[str]:
        try:
            return set(AdminClient(own).list_topics(timeout=5).topics)
        except KafkaException:
            return {"not logged in"}

    eventually(lambda: topics() == set(), "a login that shows no topic")
    kwire(broker, "acls", "add", f"User:{group}", "Describe", "--topic", topic)
    eventually(lambda: topics() == {topic}, "the topic")
    kwire(broker, "acls", "remove", f"User:{group}")
    eventually(lambda: topics() == set(), "no topic")
    kwire(broker, "users", "remove", group)
    eventually(lambda: topics() == {"not logged in"}, "a refusal")


def test_acls_are_those_of_kafkas_tool(broker: Secure, jvm: Jvm, topic: str, group: str) -> None:
    """Each of the two lists and removes the ACLs that the other one adds."""
    acl_tool = "org.apache.kafka.tools.AclCommand"
    principal = f"User:{group}"
    added = ("--add", "--allow-principal", principal, "--operation", "Write", "--topic", topic)
    tool(jvm, broker, acl_tool, *added, "--resource-pattern-type", "prefixed")
    kwire(broker, "acls", "add", principal, "Read", "--group", group, "--deny", "--host", "::1")

    def rows() -> set[tuple[str, ...]]:
        return {tuple(row.values()) for row in json.loads(kwire(*query))}

    query = (broker, "acls", "list", principal, "--json")
    expected = {
        (principal, "allow", "Write", "Topic", topic, "prefixed", "*"),
        (principal, "deny", "Read", "Group", group, "literal", "::1"),
    }
    eventually(lambda: rows() == expected, lambda: str(rows()))
    listing = tool(jvm, broker, acl_tool, "--list", "--principal", principal)
    assert f"principal={principal}, host=::1, operation=READ, permissionType=DENY" in listing
    removal = ("--remove", "--force", "--allow-principal", principal, "--operation", "Write")
    tool(jvm, broker, acl_tool, *removal, "--topic", topic, "--resource-pattern-type", "prefixed")
    eventually(lambda: len(rows()) == 1, lambda: str(rows()))
    kwire(broker, "acls", "remove", principal)
    eventually(lambda: rows() == set(), lambda: str(rows()))
