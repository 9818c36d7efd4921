"""Protected brokers in the process of a test, and the users that they create."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kwire.testing import Broker, BrokerError, Cluster
from kwire.testing.wire import Closed, WireClient

pytestmark = pytest.mark.slow


def admin(settings: dict[str, str]) -> AdminClient:
    return AdminClient({**settings})


def topics(settings: dict[str, str]) -> set[str]:
    return set(admin(settings).list_topics(timeout=20).topics)


def may_log_in(settings: dict[str, str]) -> bool:
    try:
        admin(settings).list_topics(timeout=3)
    except KafkaException:
        return False
    return True


def set_password(broker: Broker, password: bytes) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion("admin", info, password)
    client = admin(broker.client_settings())  # Its calls end with it.
    for future in client.alter_user_scram_credentials([change]).values():
        future.result(20)


def test_clients_need_only_the_settings() -> None:
    with Broker(secure=True) as broker:
        producer = Producer(broker.client_settings())
        producer.produce("orders", b"book")
        assert producer.flush(20) == 0
        own = {"group.id": "readers", "auto.offset.reset": "earliest"}
        consumer = Consumer({**broker.client_settings(), **own})
        consumer.subscribe(["orders"])
        message = consumer.poll(20)
        assert message is not None
        assert message.value() == b"book"
        consumer.close()
        assert broker.requests.count("Produce") == 1
        assert broker.client_settings("kafka-python")["security_protocol"] == "SASL_SSL"


def test_client_without_a_log_in_is_refused() -> None:
    with Broker(secure=True) as broker:
        with WireClient(*broker.address, timeout_s=20) as client:
            client.send_bytes(b"\0\0\0\x0e\0\x12\0\0\0\0\0\x07\0\x04test")
            with pytest.raises(Closed):
                client.read_frame()
        assert not may_log_in({**broker.client_settings(), "sasl.password": "wrong"})


def test_methods_of_the_broker_work_despite_the_acls() -> None:
    with Broker(secure=True) as broker:
        broker.create_topic("orders", 2)
        assert "orders" in topics(broker.client_settings())
        broker.restart()
        assert "orders" in topics(broker.client_settings())
        broker.reset()
        assert "orders" not in topics(broker.client_settings())


def test_cluster_replicates_behind_its_protection() -> None:
    with Cluster(3, secure=True) as cluster:
        cluster.create_topic("orders")
        producer = Producer({**cluster.client_settings(), "acks": "all"})
        leader = cluster.wait_leader("orders")
        cluster.kill(leader)
        producer.produce("orders", "book")
        assert producer.flush(30) == 0
        cluster.start(leader)
        cluster.wait_in_sync("orders")


def test_settings_of_an_open_broker_are_its_addresses() -> None:
    with Broker() as broker:
        servers = broker.bootstrap_servers
        assert broker.client_settings() == {"bootstrap.servers": servers}
        assert broker.client_settings("kafka-python") == {"bootstrap_servers": servers}
        with pytest.raises(BrokerError, match="name confluent-kafka or kafka-python"):
            broker.client_settings("other")


def test_data_from_before_can_be_protected(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data=data) as broker:
        broker.create_topic("orders")
    with Broker(data=data, secure=True) as broker:
        assert "orders" in topics(broker.client_settings())


def test_restart_keeps_another_password_of_the_admin(tmp_path: Path) -> None:
    """The former password, which may be known to others, stays invalid."""
    data = tmp_path / "data"
    with Broker(data=data, secure=True) as broker:
        set_password(broker, b"changed")
    with Broker(data=data, secure=True) as broker:
        assert not may_log_in(broker.client_settings())
        assert may_log_in({**broker.client_settings(), "sasl.password": "changed"})


def test_new_passwords_take_effect_after_the_old_ones_were_deleted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data=data, secure=True) as broker:
        set_password(broker, b"forgotten")
    (tmp_path / "data-secure" / "passwords.json").unlink()
    with Broker(data=data, secure=True) as broker:
        assert may_log_in(broker.client_settings())
        assert not may_log_in({**broker.client_settings(), "sasl.password": "forgotten"})
