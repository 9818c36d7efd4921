"""A broker with `--secure`: real clients with its client files, and a scan of what it encrypts."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer, KafkaProducer

from compat_tests.confluent_kafka.clients import deliver, read
from compat_tests.harness.jvm import Jvm
from compat_tests.harness.wait import eventually
from compat_tests.security.clients import refusal
from compat_tests.security.secure import Secure, run_secure, start
from kwire.secure.folder import SecureFolder
from kwire.secure.settings import kafka_python_settings

pytestmark = pytest.mark.single
SECURITY_PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"
TOOLS = "org.apache.kafka.tools"


@pytest.fixture(scope="module")
def broker(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    with run_secure(broker_kind, tmp_path_factory.mktemp("secure")) as running:
        yield running


def round_trip(broker: Secure, topic: str, replicas: int = 1) -> None:
    """Create a topic, write a record and read it, with librdkafka and the JSON file."""
    settings = dict(broker.settings)
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(topic, 1, replicas)])[topic].result(30)
    deliver(Producer(settings), [{"topic": topic, "value": b"hello"}])
    address = settings.pop("bootstrap.servers")
    names = {name.replace(".", "_"): value for name, value in settings.items()}
    assert read(address, topic, 1, **names)[0].value() == b"hello"


def test_confluent_kafka_reads_the_json_file(broker: Secure, topic: str) -> None:
    round_trip(broker, topic)


def test_kafka_python_writes_and_reads(broker: Secure, topic: str) -> None:
    folder = broker.folder
    settings: dict[str, Any] = kafka_python_settings(
        broker.address, folder.passwords.admin, folder.authority
    )
    producer = KafkaProducer(**settings)
    producer.send(topic, b"from python").get(30)
    producer.close()
    consumer = KafkaConsumer(topic, **settings, auto_offset_reset="earliest")
    assert next(consumer).value == b"from python"
    consumer.close()


def test_kafkas_tools_read_the_properties_file(broker: Secure, jvm: Jvm, topic: str) -> None:
    server = ("--bootstrap-server", broker.address)
    config = ("--command-config", broker.java)
    jvm.tool(f"{TOOLS}.TopicCommand", *server, *config, "--create", "--topic", topic).ok()
    produce = (*server, "--topic", topic, "--producer.config", broker.java)
    jvm.tool(f"{TOOLS}.ConsoleProducer", *produce, stdin="from java\n").ok()
    consume = (*server, "--topic", topic, "--consumer.config", broker.java)
    more = ("--from-beginning", "--max-messages", "1", "--timeout-ms", "30000")
    out = jvm.tool(f"{TOOLS}.consumer.ConsoleConsumer", *consume, *more).ok()
    assert "from java" in out


def test_pipeline_logs_in_with_three_lines(broker: Secure, topic: str, tmp_path: Path) -> None:
    """`kwire-pipeline check` reaches the broker with the lines of docs/security.md."""
    admin = AdminClient(broker.settings)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    example = re.findall(r"```yaml\n(.*?)```", SECURITY_PAGE.read_text(), re.DOTALL)[0]
    folder = str(broker.folder.path)
    text = example.replace("127.0.0.1:9092", broker.address).replace("orders]", f"{topic}]")
    file = tmp_path / "orders.yaml"
    file.write_text(
        f"name: orders\n{text.replace('kwire-data-secure', folder)}"
        "value: {format: json, schema: 'id STRING'}\n"
        f"table: {{format: parquet, warehouse: {tmp_path}, name: shop.orders}}\n"
        f"checkpoint: {tmp_path}/checkpoint\n"
    )
    password = broker.folder.passwords.admin
    for secret, is_right in ((password, True), ("mistaken", False)):
        done = subprocess.run(
            [sys.executable, "-m", "kwire_pipeline", "check", str(file)],
            env={**os.environ, "KAFKA_PASSWORD": secret},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode == 0) == is_right, done.stdout + done.stderr
        assert secret not in done.stdout + done.stderr


def test_clients_without_the_password_or_the_authority_are_refused(
    broker: Secure, tmp_path: Path
) -> None:
    settings = broker.settings
    address = settings.pop("bootstrap.servers")
    assert "Authentication failed" in refusal(address, settings | {"sasl.password": "wrong"})
    other = SecureFolder(tmp_path / "other")
    other.fill([], 1_700_000_000_000)
    untrusted = settings | {"ssl.ca.location": str(other.authority)}
    assert "certificate verify failed" in refusal(address, untrusted)
    assert refusal(address, {"security.protocol": "PLAINTEXT"})


def test_user_without_an_acl_may_nothing(broker: Secure, jvm: Jvm, topic: str, group: str) -> None:
    """The authorizer is on: a new user sees no topic until the admin allows it."""
    admin = AdminClient(broker.settings)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion(group, info, b"secret")
    for future in admin.alter_user_scram_credentials([change]).values():
        future.result(30)
    own = broker.settings | {"sasl.username": group, "sasl.password": "secret"}

    visible: list[set[str]] = []

    def has_logged_in() -> bool:
        try:
            visible.append(set(AdminClient(own).list_topics(timeout=5).topics))
        except KafkaException:
            return False
        return True

    eventually(has_logged_in, "a login")
    assert topic not in visible[0]


def handshake(address: str, *options: str) -> str:
    """Return what `openssl s_client` says about a connection."""
    command = ["openssl", "s_client", "-connect", address, *options]
    result = subprocess.run(command, input="", capture_output=True, text=True, timeout=30)
    return result.stdout + result.stderr


def test_scan_finds_no_weak_protocol_or_cipher(broker: Secure) -> None:
    address, trusted = broker.address, ("-CAfile", str(broker.folder.authority))
    for version in ("-tls1_2", "-tls1_3"):
        text = handshake(address, version, *trusted, "-verify_ip", "127.0.0.1")
        assert "Verify return code: 0 (ok)" in text, text
    accepted: set[str] = set()
    while True:  # Offer everything that has not been accepted yet.
        rest = ":".join(["ALL", "COMPLEMENTOFALL", *(f"!{suite}" for suite in accepted)])
        text = handshake(address, "-tls1_2", "-cipher", f"{rest}:@SECLEVEL=0")
        suite = re.findall(r"Cipher is (\S+)", text)[0]
        if suite == "(NONE)":
            break
        accepted.add(suite)
    assert accepted == {
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "ECDHE-ECDSA-CHACHA20-POLY1305",
    }
    for version in ("-tls1", "-tls1_1"):
        text = handshake(address, version, "-cipher", "ALL:@SECLEVEL=0")
        assert "Cipher is (NONE)" in text, text


def test_no_password_is_in_a_log_or_a_description(broker: Secure) -> None:
    """Logins have failed and worked before; every setting of the broker is described."""
    admin = AdminClient(broker.settings)
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    described = admin.describe_configs([resource])[resource].result(30)
    assert described["sasl.enabled.mechanisms"].value == "SCRAM-SHA-512"
    futures: Any = admin.describe_user_scram_credentials()
    users = futures.result(30)
    texts = [broker.log.read_text(), str(users), *(str(c.value) for c in described.values())]
    texts.append(Path(f"/proc/{broker.process.pid}/cmdline").read_text())
    for password in broker.folder.passwords:
        assert not [text for text in texts if password in text]


def test_no_listener_answers_in_the_clear(broker: Secure) -> None:
    """Every port on which the node listens, its controller's too, hangs up on clear text."""
    listing = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
    pid = f"pid={broker.process.pid},"
    ports = [
        int(line.split()[3].rpartition(":")[2]) for line in listing.splitlines() if pid in line
    ]
    assert len(ports) >= 2, listing
    for port in ports:
        with socket.create_connection(("127.0.0.1", port), 10) as connection:
            connection.sendall(b"\x00\x00\x00\x0e\x00\x12\x00\x00\x00\x00\x00\x07\x00\x04test")
            answer = b""
            while more := connection.recv(4096):
                answer += more
        assert answer[4:8] != b"\x00\x00\x00\x07"


def wait_ready(log: Path, count: int) -> None:
    eventually(lambda: log.read_text().count("client files:") == count, log.read_text)


def test_cluster_is_protected_as_a_whole(broker_kind: str, tmp_path: Path, topic: str) -> None:
    """Three nodes replicate and elect over their protected listeners; a restart changes nothing."""
    if broker_kind != "kwire":
        pytest.skip("`kwire cluster` runs kwire")
    folder, log = SecureFolder(tmp_path / "nodes" / "secure"), tmp_path / "log"
    ports = ("--data", "nodes", "--port", "0")
    for count, arguments in enumerate([(*ports, "--secure"), ("--data", "nodes")]):
        process = start(tmp_path, log, "cluster", *arguments)
        try:
            wait_ready(log, count + 1)
            broker = Secure(folder, process, log)
            assert len(broker.address.split(",")) == 3
            round_trip(broker, f"{topic}-{count}", replicas=3)
            written = f"{topic}-0"
            names = {k.replace(".", "_"): v for k, v in broker.settings.items()}
            address = names.pop("bootstrap_servers")
            assert read(address, written, 1, **names)[0].value() == b"hello"
        finally:
            process.terminate()
            assert process.wait(60) == 0
    texts = [path.read_text() for path in tmp_path.glob("nodes/node-*/server.*")]
    for password in folder.passwords:
        assert not any(password in text for text in texts)
