"""A producer of Java that is logged in over TLS while its password or the certificate changes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from confluent_kafka import Consumer, TopicPartition

from compat_tests.harness.jvm import Jvm
from compat_tests.harness.wait import eventually
from compat_tests.security.changes import serial, set_certificate, set_password
from compat_tests.security.encrypted_broker import Encrypted, allow, run_encrypted
from compat_tests.security.programs import Attempt, attempt, run_attempts
from compat_tests.tls.stores import write_store


@attrs.define
class Sender:
    """A producer of Java that sends one record after the other."""

    attempt: Attempt
    jvm: Jvm
    stop: Path
    """The file that makes it stop."""
    consumer: Consumer
    report: dict[str, Any] = attrs.field(factory=dict)

    @property
    def end_offset(self) -> int:
        """The number of records in the topic."""
        partition = TopicPartition(self.attempt["topic"], 0)
        end: int = self.consumer.get_watermark_offsets(partition, timeout=30)[1]
        return end

    def wait_for_more(self) -> None:
        """Wait until ten more records have been acknowledged."""
        start = self.end_offset
        eventually(lambda: self.end_offset >= start + 10, lambda: f"more records: {self.report}")

    def has_renewed(self) -> bool:
        """Return whether the producer has renewed a session, which a busy machine may miss."""
        return self.stop.with_name(f"{self.stop.name}.renewed").exists()

    def run(self) -> None:
        ran = self.jvm.tool("Sessions", str(self.stop), stdin=json.dumps(self.attempt))
        self.report |= json.loads(ran.out) if ran.code == 0 else {"errors": ran.err}


@contextmanager
def sending(place: Encrypted, mine: Attempt, jvm: Jvm, stop: Path) -> Iterator[Sender]:
    """Run a sender, and stop it at the end of the block."""
    consumer = Consumer({"bootstrap.servers": place.address, "group.id": "none"})
    sender = Sender(mine, jvm, stop, consumer)
    thread = threading.Thread(target=sender.run)
    thread.start()
    try:
        sender.wait_for_more()
        yield sender
    finally:
        stop.touch()
        thread.join()
        consumer.close()


@pytest.fixture(scope="module")
def place(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    with run_encrypted(broker_kind, tmp_path_factory.mktemp("sessions")) as running:
        yield running


def test_changed_password_ends_the_session_when_it_is_renewed(
    place: Encrypted, jvm: Jvm, topic: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """A producer of Java renews its session until its password changes"""
    user = unique("user")
    place.create(topic)
    allow(place.address, f"User:{user}", topic)
    old = attempt("old", "Java", place.at("SHORT"), topic, set_password(place, user, "old-secret"))
    eventually(lambda: run_attempts("Java", [old], lambda: jvm) == {"old": "old"}, "the user")
    with sending(place, old, jvm, tmp_path / "stop") as sender:
        eventually(sender.has_renewed, lambda: f"a renewed session: {sender.report}")
        sender.wait_for_more()
        login = set_password(place, user, "new-secret")
        eventually(lambda: sender.report, "the end of the session")
    assert sender.report["failed logins"] >= 1
    assert sender.report["successful-reauthentication-total"] >= 1
    new = attempt("new", "Java", place.at("SHORT"), topic, login)
    observed = run_attempts("Java", [old, new], lambda: jvm)
    assert "SaslAuthenticationException: " in observed["old"]
    assert observed["new"] == "old"  # The first record of the topic.


def test_replaced_certificate_ends_no_session(
    place: Encrypted, jvm: Jvm, topic: str, tmp_path: Path
) -> None:
    """A new certificate ends no connection of a producer of Java; new connections get it"""
    place.create(topic)
    before = serial(place)
    mine = attempt("sent", "Java", place.login_address, topic, place.login("PLAIN", "alice"))
    stop = tmp_path / "stop"
    with sending(place, mine, jvm, stop) as sender:
        path = write_store(tmp_path, "server").both
        set_certificate(place, path)
        eventually(lambda: serial(place) != before, "the new certificate")
        sender.wait_for_more()
        between = serial(place)
        write_store(tmp_path, "server")
        if place.broker.kind == "kafka":
            set_certificate(place, path)
        eventually(lambda: serial(place) != between, "the certificate of the replaced file")
        sender.wait_for_more()
        stop.touch()
        eventually(lambda: sender.report, "the producer's report")
        end_offset = sender.end_offset
    assert sender.report["errors"] == []
    assert sender.report["connection-close-total"] == 0
    assert sender.report["acknowledged"] == end_offset
    assert run_attempts("Java", [mine], lambda: jvm) == {"sent": "sent"}
