"""Attacks by clients that have no account, as endless generators: each step attacks once more.

A step raises AssertionError if the attacker gets in. An attack keeps its connections open, at most
:data:`OPEN_MAX` of them, until its generator is closed.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import pack
from typing import Any

import attrs

from compat_tests.harness.broker import Broker, make_broker
from compat_tests.harness.ports import new_ports
from compat_tests.security.brokers import JAAS, SCRAM_MODULE
from compat_tests.tls.stores import HOST, write_store, write_trusted
from kwire.codec.frame import request_frame
from kwire.codec.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from kwire.codec.messages.api_versions import ApiVersionsRequest
from kwire.codec.messages.create_acls import CreateAclsRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.delete_acls import DeleteAclsRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.codec.messages.produce import ProduceRequest
from kwire.codec.messages.sasl_authenticate import SaslAuthenticateRequest
from kwire.codec.messages.sasl_handshake import SaslHandshakeRequest
from kwire.records import build
from kwire.security.scram import BY_NAME, salt_password
from kwire.security.scram_client import ScramClient
from kwire.testing.wire import Closed, WireClient

TOPIC = "guarded"
OPEN_MAX = 3000
"""More than a listener waits for."""
PASSWORD = "carol-secret"
SCRAM = BY_NAME["SCRAM-SHA-256"]
_IN_FLIGHT = 64
_REFUSED = 58
Attack = Generator[None, None, None]


@attrs.frozen
class Target:
    """A broker with an authorizer, and its listeners."""

    broker: Broker
    owner: tuple[str, int]
    """The listener of a super user."""
    login: tuple[str, int]
    """SASL_PLAINTEXT with PLAIN and SCRAM-SHA-256."""
    tls: tuple[str, int]
    trusted: Path

    @property
    def resident_mb(self) -> float:
        """The memory of the broker's process."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0]) / 1024

    @property
    def descriptor_count(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    @property
    def cpu_s(self) -> float:
        """The CPU seconds that the broker has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def pid(self) -> int:
        process = self.broker.process
        assert process is not None, "a broker that this process has started"
        return process.pid


@contextmanager
def run_target(kind: str, directory: Path) -> Iterator[Target]:
    """Run a broker in which only alice may write, and only to one topic."""
    directory.mkdir(parents=True, exist_ok=True)
    owner, login, tls, controller = new_ports(4)
    names = {"OWNER": owner, "LOGIN": login, "TLS": tls}
    listeners = ",".join(f"{name}://{HOST}:{port}" for name, port in names.items())
    settings = {
        "listeners": f"{listeners},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": listeners,
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "inter.broker.listener.name": "OWNER",
        "listener.security.protocol.map": "OWNER:PLAINTEXT,LOGIN:SASL_PLAINTEXT,TLS:SSL,"
        "CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.login.plain.sasl.jaas.config": JAAS,
        "listener.name.login.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(write_store(directory, "server").both),
    }
    broker = make_broker(kind, directory / "broker", settings)
    target = Target(broker, (HOST, owner), (HOST, login), (HOST, tls), write_trusted(directory))
    try:
        with WireClient(*target.owner) as client:
            topic = CreateTopicsRequest.CreatableTopic(
                name=TOPIC, num_partitions=1, replication_factor=1
            )
            client.call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
            client.call(CreateAclsRequest(creations=[_acl("User:alice")]), 3)
            client.call(AlterUserScramCredentialsRequest(upsertions=[_carol()]), 0)
        yield target
    finally:
        broker.close()


def _acl(principal: str) -> Any:
    """Return the permission to write to the topic."""
    return CreateAclsRequest.AclCreation(
        resource_type=2,
        resource_name=TOPIC,
        resource_pattern_type=3,
        principal=principal,
        host="*",
        operation=4,
        permission_type=3,
    )


def _carol() -> AlterUserScramCredentialsRequest.ScramCredentialUpsertion:
    """Return the credential of a user of SCRAM."""
    salted = salt_password(SCRAM, PASSWORD, b"salt", 4096)
    return AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name="carol",
        mechanism=SCRAM.number,
        iterations=4096,
        salt=b"salt",
        salted_password=salted,
    )


# The client that is not to notice anything -----------------------------------------------------
def _records() -> bytes:
    return bytes(build.batch([build.New(None, b"x" * 100)], timestamp_ms=round(time.time() * 1000)))


def log_in(client: WireClient, token: bytes, mechanism: str = "PLAIN") -> Any:
    """Send a handshake and a token; return the answer to the token."""
    assert client.call(SaslHandshakeRequest(mechanism=mechanism), 1).error_code == 0
    return client.call(SaslAuthenticateRequest(auth_bytes=token), 2)


def connect_alice(target: Target) -> WireClient:
    """Return a client that has logged in."""
    client = WireClient(*target.login)
    assert log_in(client, b"\0alice\0alice-secret").error_code == 0
    return client


def produce(client: WireClient) -> int:
    """Write a record; return the error code."""
    topic = ProduceRequest.TopicProduceData(
        name=TOPIC,
        partition_data=[
            ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=_records())
        ],
    )
    answer = client.call(ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[topic]), 12)
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


# Attacks ---------------------------------------------------------------------------------------
class _OpenSockets:
    """The newest connections of an attack."""

    def __init__(self) -> None:
        self.socks: deque[socket.socket] = deque()

    def open(self, address: tuple[str, int], data: bytes = b"") -> None:
        with suppress(OSError):
            sock = socket.create_connection(address, 30)
            self.socks.append(sock)
            if data:
                sock.sendall(data)
        if len(self.socks) > OPEN_MAX:
            self.socks.popleft().close()

    def close(self) -> None:
        for sock in self.socks:
            sock.close()


def silent_connections(target: Target) -> Attack:
    """Open connections for logins that never come."""
    open_socks = _OpenSockets()
    try:
        while True:
            open_socks.open(target.login)
            yield
    finally:
        open_socks.close()


def half_open_handshakes(target: Target) -> Attack:
    """Open connections for handshakes of TLS that never come."""
    open_socks = _OpenSockets()
    try:
        while True:
            open_socks.open(target.tls)
            yield
    finally:
        open_socks.close()


def slow_handshakes(target: Target) -> Attack:
    """Begin handshakes that go on byte by byte."""
    hello, open_socks = _client_hello(), _OpenSockets()
    try:
        while True:
            open_socks.open(target.tls, hello[:1])
            for index in range(min(8, len(open_socks.socks))):
                with suppress(OSError):
                    open_socks.socks[-1 - index].send(hello[1 + index : 2 + index])
            yield
    finally:
        open_socks.close()


def _client_hello() -> bytes:
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(back, there, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return there.read()


def whole_handshakes(target: Target) -> Attack:
    """Complete handshakes of TLS and hang up."""
    context = ssl.create_default_context(cafile=str(target.trusted))
    while True:
        with suppress(OSError), socket.create_connection(target.tls, 30) as sock:
            context.wrap_socket(sock, server_hostname=HOST).close()
        yield


def oversized_frames(target: Target) -> Attack:
    """Announce large frames before the login, or send nearly all of a permitted one."""
    open_socks = _OpenSockets()
    try:
        while True:
            open_socks.open(target.login, pack(">i", (16 << 10) - 1) + bytes(16_000))
            with suppress(OSError), WireClient(*target.login) as client:
                client.send_bytes(pack(">i", 1 << 30) + bytes(1000))
                assert client.is_closed()
            yield
    finally:
        open_socks.close()


def requests_without_a_login(target: Target) -> Attack:
    """Ask for metadata before the login."""
    while True:
        with suppress(OSError), WireClient(*target.login) as client:
            client.send(MetadataRequest(topics=None), 12)
            assert client.is_closed()
        yield


def wrong_passwords(target: Target) -> Attack:
    """Log in with one wrong password after the other, many at a time."""
    waiting: deque[WireClient] = deque()
    number = 0
    try:
        while True:
            number += 1
            user = ("alice", "nobody")[number % 2]
            token = f"\0{user}\0wrong-{number}".encode()
            with suppress(OSError):
                client = WireClient(*target.login)
                waiting.append(client)
                client.send(SaslHandshakeRequest(mechanism="PLAIN"), 1)
                client.send(SaslAuthenticateRequest(auth_bytes=token), 2)
                client.send(MetadataRequest(topics=None), 12)
            if len(waiting) >= _IN_FLIGHT:
                _check_refused(waiting.popleft())
            yield
    finally:
        for client in waiting:
            client.close()


def _check_refused(client: WireClient) -> None:
    """Read the answers to a handshake and a token, and the end of the connection."""
    with client, suppress(OSError, Closed):
        _, handshake = client.receive()
        _, answer = client.receive()
        assert (handshake.error_code, answer.error_code) == (0, _REFUSED)
        assert client.is_closed()


def replayed_tokens(target: Target) -> Attack:
    """Repeat the messages of a login with SCRAM that somebody has listened to."""
    user = ScramClient(SCRAM, "carol", "nonceofcarol")
    with WireClient(*target.login) as client:
        answer = log_in(client, user.first(), SCRAM.name)
        challenge = user.challenge(bytes(answer.auth_bytes))
        final = user.final(salt_password(SCRAM, PASSWORD, *challenge))
        assert client.call(SaslAuthenticateRequest(auth_bytes=final), 2).error_code == 0
    while True:
        with suppress(OSError), WireClient(*target.login) as client:
            assert log_in(client, user.first(), SCRAM.name).error_code == 0
            answer = client.call(SaslAuthenticateRequest(auth_bytes=final), 2)
            assert answer.error_code == _REFUSED
        yield


def acl_changes(target: Target) -> Attack:
    """Give a right to somebody else and take it away again, as the owner."""
    grant = CreateAclsRequest(creations=[_acl("User:bob")])
    revoke = DeleteAclsRequest(
        filters=[
            DeleteAclsRequest.DeleteAclsFilter(
                resource_type_filter=2,
                resource_name_filter=TOPIC,
                pattern_type_filter=3,
                principal_filter="User:bob",
                host_filter=None,
                operation=1,
                permission_type=1,
            )
        ]
    )
    with WireClient(*target.owner) as client:
        while True:
            assert client.call(grant, 3).results[0].error_code == 0
            assert client.call(revoke, 3).filter_results[0].error_code == 0
            yield


def piled_up_requests(target: Target) -> Attack:
    """Send 10,000 small requests at once, on a connection that is logged in."""
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    frames = request_frame(18, 3, 1, "x", request) * 10_000
    with connect_alice(target) as client:
        client.sock.setblocking(False)
        to_send, expected, received = memoryview(b""), 0, 0
        while True:
            if not to_send:
                to_send, expected = memoryview(frames), expected + 1
            with suppress(BlockingIOError):
                to_send = to_send[client.sock.send(to_send) :]
            with suppress(BlockingIOError):
                received += len(client.sock.recv(1 << 20))
            yield


ATTACKS: Mapping[str, Callable[[Target], Attack]] = {
    attack.__name__: attack
    for attack in (
        silent_connections,
        half_open_handshakes,
        slow_handshakes,
        whole_handshakes,
        oversized_frames,
        requests_without_a_login,
        wrong_passwords,
        replayed_tokens,
        acl_changes,
        piled_up_requests,
    )
}
