"""Clients that write and read over TLS while a certificate, a session or a user is replaced."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from compat_tests.harness.wait import eventually
from compat_tests.security.changes import remove_user, serial, set_certificate, set_password
from compat_tests.security.encrypted_broker import SESSION_MS, Encrypted, allow, run_encrypted
from compat_tests.security.loads import IN_PROGRAMS, IN_PYTHON, Load, Report, loading
from compat_tests.security.programs import attempt
from compat_tests.tls.stores import write_store

SESSION_S: Final = SESSION_MS / 1000
RENEWING: Final = ("librdkafka", "kafka-python", "franz-go", "sarama", "kafkajs")
"""The libraries that renew sessions on their connections (KIP-368); the others reconnect."""
REMOVED: Final = {
    "librdkafka": "SASL authentication error: ",
    "kafka-python": "SaslAuthenticationFailed|KafkaTimeoutError",
    "aiokafka": "NodeNotReadyError|KafkaTimeoutError",
    "franz-go": "SASL_AUTHENTICATION_FAILED",
    "sarama": "SASL Authentication failed",
    "kafka-go": "SASL Authentication Failed",
    "kafkajs": "KafkaJSSASLAuthenticationError",
}
"""Regular expressions for what the libraries report about a user who has been removed.

kafka-python may, and aiokafka does, log the refused logins and report only that the broker is gone.
"""
each_client = pytest.mark.parametrize(
    "client",
    [*IN_PYTHON, *(pytest.param(client, marks=pytest.mark.long) for client in IN_PROGRAMS)],
)


@pytest.fixture(scope="module")
def place(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    with run_encrypted(broker_kind, tmp_path_factory.mktemp("loads")) as running:
        yield running


def check_nothing_lost(report: Report) -> None:
    assert report.errors == []
    assert report.acknowledged
    assert report.losses == []


@each_client
def test_certificates_are_replaced_under_load(
    place: Encrypted, client: str, topic: str, tmp_path: Path
) -> None:
    """A new certificate ends no connection and loses no record; new connections get it"""
    place.create(topic)
    login = place.login("PLAIN", "alice")
    mine = attempt("sent", client, place.login_address, topic, login)
    with loading(mine, login, place.address, tmp_path / "stop") as load:
        lasting = find_lasting(load)
        store = write_store(tmp_path, "server").both
        check_replaced(place, load, lambda: set_certificate(place, store))

        def replace_file() -> None:
            write_store(tmp_path, "server")
            if place.broker.kind == "kafka":
                set_certificate(place, store)

        check_replaced(place, load, replace_file)
        assert lasting <= load.connections()
        check_nothing_lost(load.stop())
    with loading(mine, login, place.address, tmp_path / "stop again") as load:
        assert load.stop().errors == []


def find_lasting(load: Load) -> set[int]:
    """Return the connections that the client keeps while nothing changes."""
    before = load.connections()
    time.sleep(1)
    load.wait_for_more()
    lasting = before & load.connections()
    assert lasting
    return lasting


def check_replaced(place: Encrypted, load: Load, replace: Callable[[], None]) -> None:
    before = serial(place)
    replace()
    eventually(lambda: serial(place) != before, "the new certificate")
    load.wait_for_more()


@contextmanager
def loading_in_sessions(
    place: Encrypted, client: str, topic: str, user: str, stop: Path
) -> Iterator[Load]:
    """Keep a client of a new user busy, whose sessions end soon."""
    place.create(topic)
    login = set_password(place, user, "secret")
    allow(place.address, f"User:{user}", topic)
    mine = attempt("sent", client, place.at("SHORT"), topic, login)
    with loading(mine, login, place.address, stop) as load:
        yield load


@each_client
def test_sessions_are_renewed_under_load(
    place: Encrypted, client: str, topic: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Sessions end again and again while a client writes and reads: no error, no record is lost"""
    with loading_in_sessions(place, client, topic, unique("user"), tmp_path / "stop") as load:
        has_kept_one = keeps_a_connection(load)
        if client in RENEWING and not has_kept_one:
            # The machine may have stopped for the tenth of a session in which a client renews it.
            eventually(lambda: keeps_a_connection(load), "a connection whose session is renewed")
            has_kept_one = True
        check_nothing_lost(load.stop())
    assert has_kept_one == (client in RENEWING)


def keeps_a_connection(load: Load) -> bool:
    """Return whether a connection of the client outlives several sessions."""
    first = load.connections()
    time.sleep(3 * SESSION_S)
    load.wait_for_more()
    return bool(first & load.connections())


@each_client
def test_user_who_is_removed_is_not_served_after_the_session(
    place: Encrypted, client: str, topic: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """A user is removed who writes and reads: the session is not renewed, the client reports why"""
    user = unique("user")
    with loading_in_sessions(place, client, topic, user, tmp_path / "stop") as load:
        remove_user(place, user)
        eventually(lambda: load.has_ended, "the end of the client")
        (error, *_) = load.report.errors
        assert re.search(REMOVED[client], error), load.report.errors
        end_offset = load.end_offset
        time.sleep(SESSION_S)
        assert load.end_offset == end_offset
    if place.broker.kind == "kwire":  # A client may be about to log in once more when it stops.
        eventually(lambda: not load.connections(), "the end of the connections")
