"""Settings changed at run time: which records they lead to."""

from functools import partial
from typing import Any

import pytest

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.update_features import UpdateFeaturesRequest
from kwire.configs.resource_types import BROKER, GROUP, TOPIC
from kwire.raftmeta.controller.configs import (
    APPEND,
    DELETE,
    SET,
    SUBTRACT,
    decide_alter,
    decide_incremental_alter,
    operate,
)
from kwire.raftmeta.controller.feature_updates import decide_update_features
from kwire.raftmeta.controller.state import USER_RECORDS_MAX, ControllerState, whole
from kwire.raftmeta.controller.topics import decide_create_topics
from kwire.raftmeta.storage.levels import ELR
from kwire.types import NO_LEADER
from tests.support.raftmeta.clusters import Cluster
from tests.support.raftmeta.requests import alter, replace


def records(state: ControllerState, request: Any) -> list[tuple[str, str | None]]:
    decision = whole(decide_incremental_alter(state, request))
    assert [response.error_code for response in decision.reply.responses] == [0]
    configs = [record for record in decision.records if isinstance(record, r.ConfigRecord)]
    assert len(configs) == len(decision.records)
    return [(record.name, record.value) for record in configs]


@pytest.mark.parametrize(
    ("kind", "name", "repeated_records", "deleted_records"),
    [
        # a broker reads the file that a setting names again
        (BROKER, "1", [("message.max.bytes", "5")], [("log.retention.ms", None)]),
        (BROKER, "", [("message.max.bytes", "5")], [("log.retention.ms", None)]),
        (TOPIC, "t", [], []),
    ],
)
def test_repeated_setting_is_written_again_only_for_brokers(
    kind: int, name: str, repeated_records: Any, deleted_records: Any
) -> None:
    cluster = Cluster()
    topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    cluster.do(decide_create_topics, CreateTopicsRequest(topics=[topic], timeout_ms=1000))
    setting = "message.max.bytes" if kind == BROKER else "max.message.bytes"
    other = "log.retention.ms" if kind == BROKER else "retention.ms"
    same = alter(kind, name, (setting, SET, "5"))
    assert records(cluster.state, same) == [(setting, "5")]
    cluster.do(decide_incremental_alter, same)
    assert records(cluster.state, same) == repeated_records
    assert records(cluster.state, alter(kind, name, (other, DELETE, None))) == deleted_records


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log.retention.ms", "0"),
        ("log.roll.ms", "0"),
        ("log.roll.jitter.ms", "-1"),
        ("max.connections", "0"),  # no client could undo it
        ("max.connections.per.ip", "0"),
        ("max.connection.creation.rate", "0"),
        ("max.connections.per.ip.overrides", "abc"),
        ("max.connections.per.ip.overrides", "127.0.0.1:x"),
    ],
)
@pytest.mark.parametrize("broker", ["", "1"])
def test_settings_that_make_a_broker_unusable_are_refused(
    broker: str, name: str, value: str
) -> None:
    decision = whole(
        decide_incremental_alter(Cluster().state, alter(BROKER, broker, (name, SET, value)))
    )
    assert decision.records == ()
    assert decision.reply.responses[0].error_code == errors.InvalidRequest.code


@pytest.mark.parametrize(
    ("broker", "operation", "value", "refusal"),
    [
        ("1", SET, "2", "Broker-level min.insync.replicas cannot be altered"),
        ("1", DELETE, None, "Broker-level min.insync.replicas cannot be altered"),
        ("", DELETE, None, "Cluster-level min.insync.replicas cannot be removed"),
    ],
)
def test_brokers_cannot_differ_in_min_insync_replicas_with_elr(
    broker: str, operation: int, value: str | None, refusal: str
) -> None:
    """KIP-966; the texts are Kafka's."""
    request = alter(BROKER, broker, ("min.insync.replicas", operation, value))
    for level, code in ((0, 0), (1, errors.InvalidConfig.code)):
        cluster = Cluster()
        cluster.write(r.FeatureLevelRecord(name=ELR, feature_level=level))
        cluster.do(decide_incremental_alter, alter(BROKER, "", ("min.insync.replicas", SET, "1")))
        reply = cluster.do(decide_incremental_alter, request)
        assert reply.responses[0].error_code == code
        if code:
            assert reply.responses[0].error_message == f"{refusal} while ELR is enabled."


def test_enabling_elr_removes_min_insync_replicas_of_single_brokers() -> None:
    cluster = Cluster()
    for broker in ("1", "2"):
        request = alter(BROKER, broker, ("min.insync.replicas", SET, "2"))
        cluster.do(decide_incremental_alter, request)
    update = UpdateFeaturesRequest.FeatureUpdateKey(
        feature=ELR, max_version_level=1, upgrade_type=1
    )
    cluster.do(
        partial(decide_update_features, kraft_version=0, check_kraft_version=lambda level: None),
        UpdateFeaturesRequest(feature_updates=[update]),
    )
    assert cluster.kinds() == ["Config", "Config", "Config", "FeatureLevel"]
    configs = {resource: dict(values) for resource, values in cluster.state.image.configs.items()}
    assert configs == {(BROKER, ""): {"min.insync.replicas": "1"}}


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        (
            {"consumer.session.timeout.ms": "44999"},
            "consumer.session.timeout.ms must be greater than or equal to "
            "group.consumer.min.session.timeout.ms",
        ),
        (
            {"consumer.heartbeat.interval.ms": "15001"},
            "consumer.heartbeat.interval.ms must be less than or equal to "
            "group.consumer.max.heartbeat.interval.ms",
        ),
        (
            {"consumer.assignment.interval.ms": "15001"},
            "consumer.assignment.interval.ms must be less than or equal to "
            "group.consumer.max.assignment.interval.ms",
        ),
        ({"consumer.session.timeout.ms": "45000", "consumer.heartbeat.interval.ms": "15000"}, None),
    ],
)
def test_settings_of_a_group_stay_within_those_of_the_broker(
    settings: dict[str, str], refusal: str | None
) -> None:
    operations = [(name, SET, value) for name, value in settings.items()]
    decision = whole(decide_incremental_alter(Cluster().state, alter(GROUP, "g", *operations)))
    (response,) = decision.reply.responses
    assert (response.error_code == 0) == (refusal is None)
    assert (refusal or "") in (response.error_message or "")


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("ssl.keystore.location", "These security configs can be dynamically updated only per-li"),
        ("ssl.truststore.type", "These security configs can be dynamically updated only per-list"),
        ("listener.name.a.ssl.allow.dn.changes", "Cannot update these configs dynamically: [lis"),
        ("listener.name.A.ssl.client.auth", "listener.name.A.ssl.client.auth names its listener"),
        ("listener.name.a.plain.sasl.jaas.config", "Cannot update these configs dynamically: [l"),
        ("listener.name.a.plain.connections.max.reauth.ms", "Cannot update these configs dynami"),
        ("listener.name.a.plain.sasl.server.callback.handler.class", "Cannot update these conf"),
        ("sasl.jaas.config", "Cannot update these configs dynamically: [sasl.jaas.config]"),
    ],
)
def test_protection_that_is_fixed_is_refused(name: str, refusal: str) -> None:
    response = whole(
        decide_incremental_alter(Cluster().state, alter(BROKER, "1", (name, SET, "1")))
    ).reply.responses[0]
    assert response.error_code == errors.InvalidRequest.code
    assert (response.error_message or "").startswith(refusal)


SECRETS = (
    "ssl.key.password",
    "listener.name.a.ssl.key.password",
    "listener.name.a.ssl.keystore.key",
    "listener.name.a.ssl.keystore.password",
    "listener.name.a.ssl.truststore.password",
)


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("broker", ["", "1"])
@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize("incremental", [False, True])
def test_password_or_private_key_is_refused(
    incremental: bool, validate_only: bool, broker: str, name: str
) -> None:
    """Apache Kafka 4.3.1 stores it as it is, in the metadata log of every node."""
    cluster = Cluster()
    if incremental:
        decide: Any = decide_incremental_alter
        request: Any = alter(BROKER, broker, (name, SET, "SECRET"), ("log.retention.ms", SET, "5"))
    else:
        decide = decide_alter
        request = replace(BROKER, broker, (name, "SECRET"), ("log.retention.ms", "5"))
    request.validate_only = validate_only
    (response,) = cluster.do(decide, request).responses
    assert response.error_code == errors.InvalidRequest.code
    assert cluster.records == [], "the resource keeps all its settings"
    assert name in (response.error_message or "")
    assert "server.properties" in (response.error_message or "")
    assert "SECRET" not in (response.error_message or "")


@pytest.mark.parametrize(
    "name",
    ["listener.name.a.ssl.keystore.password", "listener.name.a.plain.sasl.jaas.config"],
)
def test_stored_password_can_be_deleted_but_not_repeated(name: str) -> None:
    """Metadata that Apache Kafka wrote may have one."""
    cluster = Cluster()
    stored = r.ConfigRecord(resource_type=BROKER, resource_name="1", name=name, value="SECRET")
    cluster.write(stored)
    changes = ((name, SET, "SECRET"), ("log.retention.ms", SET, "5"), (name, DELETE, None))
    codes = [
        cluster.do(decide_incremental_alter, alter(BROKER, "1", change)).responses[0].error_code
        for change in changes
    ]
    assert codes == [errors.InvalidRequest.code, 0, 0]
    cluster.write(stored)
    request = replace(BROKER, "1", ("log.retention.ms", "6"))
    assert cluster.do(decide_alter, request).responses[0].error_code == 0
    assert dict(cluster.state.image.config(BROKER, "1")) == {"log.retention.ms": "6"}


@pytest.mark.parametrize("name", ["ssl.keystore.certificate.chain", "ssl.truststore.certificates"])
def test_certificates_can_be_altered_because_they_are_public(name: str) -> None:
    request = alter(BROKER, "1", (f"listener.name.a.{name}", SET, "CERTIFICATES"))
    (response,) = whole(decide_incremental_alter(Cluster().state, request)).reply.responses
    assert response.error_code == 0


@pytest.mark.parametrize(
    "name",
    [
        "sasl.kerberos.min.time.before.relogin",
        "listener.name.a.gssapi.sasl.kerberos.ticket.renew.jitter",
    ],
)
def test_settings_for_kerberos_can_change_though_they_have_no_effect(name: str) -> None:
    """Apache Kafka 4.3.1 accepts them for one broker."""
    decision = whole(
        decide_incremental_alter(Cluster().state, alter(BROKER, "1", (name, SET, "1")))
    )
    assert decision.reply.responses[0].error_code == 0


def test_setting_longer_than_32767_characters_is_refused() -> None:
    for length, code in ((32767, 0), (32768, errors.InvalidConfig.code)):
        cluster = Cluster()
        cluster.topic("t", [1])
        text = ",".join(["1:1"] * (length // 4)) + ",1:1"
        request = alter(
            TOPIC, "t", ("leader.replication.throttled.replicas", SET, text.ljust(length)[:length])
        )
        assert cluster.do(decide_incremental_alter, request).responses[0].error_code == code


def test_topic_is_not_created_with_a_setting_longer_than_32767_characters() -> None:
    for length, code in ((32767, 0), (32771, errors.InvalidConfig.code)):
        text = ",".join(["1:1"] * ((length + 1) // 4))
        assert len(text) == length
        setting = CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(
            name="leader.replication.throttled.replicas", value=text
        )
        topic = CreateTopicsRequest.CreatableTopic(
            name="t", num_partitions=1, replication_factor=1, configs=[setting]
        )
        (result,) = Cluster().do(decide_create_topics, CreateTopicsRequest(topics=[topic])).topics
        assert result.error_code == code


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ([("retention.ms", "1"), ("retention.ms", "2")], "Error due to duplicate config keys"),
        (
            [("retention.ms", None), ("segment.ms", "1"), ("retention.bytes", None)],
            "Null value not supported for : retention.ms, retention.bytes",
        ),
    ],
)
def test_request_that_names_a_setting_twice_or_without_a_value_changes_nothing(
    settings: list[tuple[str, Any]], refusal: str
) -> None:
    cluster = Cluster()
    cluster.topic("t", [1])
    all_set = alter(TOPIC, "t", *((name, SET, value) for name, value in settings))
    for decide, request in (
        (decide_alter, replace(TOPIC, "t", *settings)),
        (decide_incremental_alter, all_set),
    ):
        (response,) = cluster.do(decide, request).responses
        assert (response.error_code, response.error_message) == (
            errors.InvalidRequest.code,
            refusal,
        )
        assert cluster.kinds() == []


def test_topic_can_be_altered_beside_settings_of_another_release() -> None:
    """Apache Kafka 4.3.1 accepts that, too, and the deletion of a setting that it does not know."""
    cluster = Cluster()
    cluster.topic("t", [1])
    outdated = {"segment.bytes": "14", "message.format.version": "2.8-IV1"}
    for name, value in outdated.items():
        cluster.write(
            r.ConfigRecord(resource_type=TOPIC, resource_name="t", name=name, value=value)
        )
    codes = [
        cluster.do(decide_incremental_alter, alter(TOPIC, "t", change)).responses[0].error_code
        for change in (
            ("retention.ms", SET, "5000"),
            ("segment.bytes", SET, "15"),
            ("message.format.version", SET, "3.0"),
            ("message.format.version", DELETE, None),
        )
    ]
    invalid = errors.InvalidConfig.code
    assert codes == [0, invalid, invalid, 0]
    settings = dict(cluster.state.image.config(TOPIC, "t"))
    assert settings == {"segment.bytes": "14", "retention.ms": "5000"}


@pytest.mark.parametrize(("kind", "name", "topic_name"), [(TOPIC, "t", "t"), (BROKER, "", "")])
def test_new_min_insync_replicas_clears_eligible_replicas(
    kind: int, name: str, topic_name: str
) -> None:
    """The old minimum of in-sync replicas decided who was eligible to lead (KIP-966)."""
    cluster = Cluster()
    cluster.write(r.FeatureLevelRecord(name=ELR, feature_level=1))
    topic_id = cluster.topic("t", [1, 2])
    cluster.write(
        r.PartitionChangeRecord(
            topic_id=topic_id, partition_id=0, isr=[1], eligible_leader_replicas=[2]
        )
    )
    cluster.do(decide_incremental_alter, alter(kind, name, ("message.max.bytes", DELETE, None)))
    assert cluster.partition("t").elr == (2,)
    cluster.do(decide_incremental_alter, alter(kind, name, ("min.insync.replicas", SET, "1")))
    assert cluster.kinds() == ["Config", "ClearElr"]
    assert cluster.records[-1].topic_name == topic_name
    assert cluster.partition("t").elr == ()


def test_partitions_without_leader_do_not_count_as_changes_of_a_request() -> None:
    """A low min.insync.replicas may be what the operator of a failed cluster needs."""
    cluster = Cluster()
    cluster.write(r.FeatureLevelRecord(name=ELR, feature_level=1))
    count = USER_RECORDS_MAX + 1
    topic_id = cluster.topic("t", *[[2]] * count)
    cluster.write(
        *(
            r.PartitionChangeRecord(
                topic_id=topic_id,
                partition_id=number,
                leader=NO_LEADER,
                isr=[],
                eligible_leader_replicas=[2],
            )
            for number in range(count)
        )
    )
    request = alter(BROKER, "", ("min.insync.replicas", SET, "1"))
    reply = cluster.do(decide_incremental_alter, request)
    assert reply.responses[0].error_code == errors.NONE
    assert cluster.partition("t", count - 1).elr == (2,)


@pytest.mark.parametrize(("kind", "name"), [(TOPIC, "t"), (BROKER, "")])
@pytest.mark.parametrize("minimum", ["1", "3"])
def test_partition_whose_brokers_are_all_down_keeps_its_eligible_replicas(
    kind: int, name: str, minimum: str
) -> None:
    """Without them it would stay without a leader when its brokers come back."""
    cluster = Cluster()
    cluster.write(r.FeatureLevelRecord(name=ELR, feature_level=1))
    cluster.do(decide_incremental_alter, alter(BROKER, "", ("min.insync.replicas", SET, "2")))
    cluster.topic("t", [1, 2, 3])
    cluster.topic("single", [2])
    for broker in (3, 2, 1):
        cluster.fence(broker)
    elected = cluster.partition("t").elr
    assert (elected, cluster.partition("single").elr) == ((1, 2), (2,))
    cluster.do(decide_incremental_alter, alter(kind, name, ("min.insync.replicas", SET, minimum)))
    assert (cluster.partition("t").elr, cluster.partition("single").elr) == ((1, 2), (2,))
    assert cluster.partition("single").last_known_elr == (2,)
    cluster.unfence(2)
    partition = cluster.partition("t")
    assert (partition.leader, partition.isr, partition.recovering) == (2, (2,), False)
    assert partition.elr == (() if minimum == "1" else (1,)), "2 commits alone if it may"
    assert cluster.partition("single").leader == 2


def test_controllers_have_settings_even_before_they_register() -> None:
    cluster = Cluster(
        brokers=(1, 2),
        node_id="3000",
        controller_quorum_voters="3000@localhost:9093,3001@localhost:9094",
    )
    cluster.write(
        r.RegisterControllerRecord(
            controller_id=3002, incarnation_id=b"c" * 16, zk_migration_ready=False
        )
    )
    for node_id in ("1", "3000", "3001", "3002"):
        change = alter(BROKER, node_id, ("leader.replication.throttled.rate", SET, "5"))
        assert records(cluster.state, change) == [("leader.replication.throttled.rate", "5")]
    change = alter(BROKER, "3003", ("leader.replication.throttled.rate", DELETE, None))
    response = whole(decide_incremental_alter(cluster.state, change)).reply.responses[0]
    assert response.error_code == errors.BrokerIdNotRegistered.code
    assert response.error_message == "No node with id 3003 found."


@pytest.mark.parametrize("name", ["x", "-1", "\u0661", str(1 << 31), "1" * 5000])
def test_name_that_is_no_node_id_fails_alone(name: str) -> None:
    change = alter(BROKER, name, ("log.retention.ms", SET, "1000"))
    change.resources += alter(BROKER, "1", ("log.retention.ms", SET, "1000")).resources
    responses = whole(decide_incremental_alter(Cluster().state, change)).reply.responses
    assert [response.error_code for response in responses] == [errors.InvalidRequest.code, 0]


@pytest.mark.parametrize(
    ("current", "kind", "operand", "result"),
    [
        ("delete", APPEND, "compact,compact", "delete,compact"),
        ("delete", APPEND, "delete,compact", "delete,compact"),
        ("delete", APPEND, "compact,", "delete,compact"),
        ("delete", APPEND, ",", "delete"),
        ("delete,compact,delete", SUBTRACT, "delete", "compact,delete"),
        ("delete,compact,delete", SUBTRACT, "delete,delete,", "compact"),
        ("delete,,compact", SUBTRACT, "other", "delete,compact"),
    ],
)
def test_list_is_edited_as_kafka_edits_it(
    current: str, kind: int, operand: str, result: str
) -> None:
    """By ConfigurationControlManager: Java splits no empty parts off the end."""
    name = "cleanup.policy"
    assert operate({name: current}, [(name, kind, operand)], (TOPIC, "t")) == {name: result}


class Part(str):
    """A part of a list that counts how often it is compared."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Part.compared += 1
        return str.__eq__(self, other)


class Text(str):
    """The text of a list."""

    __slots__ = ()

    def split(self, *args: Any, **options: Any) -> Any:
        return [Part(part) for part in str.split(self, *args, **options)]


@pytest.mark.parametrize("kind", [APPEND, SUBTRACT])
def test_long_list_is_edited_with_few_comparisons(kind: int) -> None:
    """Two lists of 5,000 replicas, which fit a setting, would keep a controller busy for 1 s."""
    name, count = "leader.replication.throttled.replicas", 300
    current, operand = (
        Text(",".join(f"{number}:{broker}" for number in range(count))) for broker in (1, 2)
    )
    Part.compared = 0
    operate({name: current}, [(name, kind, operand)], (TOPIC, "t"))
    assert Part.compared <= 10 * count
