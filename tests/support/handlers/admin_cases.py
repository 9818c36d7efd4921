"""Admin requests with the answers that Apache Kafka 4.3.1 gave to them.

The cases build on each other, in order, on a fresh single node with ``log.retention.hours=48``
and ``num.partitions=2``. ``python -m tests.support.handlers.admin_cases HOST:PORT`` records the
answers of such a node anew. Values that are arbitrary (ids, ports, orders without meaning) are
replaced first.
"""

import gzip
import json
import socket
import sys
from pathlib import Path
from typing import Any

from kwire.codec.apis import BY_KEY
from kwire.codec.compile import decoder
from kwire.codec.frame import request_frame
from tests.support.codec.message_json import from_json, to_json

ANSWERS = Path(__file__).parent / "admin-answers.json.gz"

Case = tuple[str, int, int, dict[str, Any]]
"""A name, an API key, a version and a request in JSON."""


def topic(name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> dict[str, Any]:
    configs = [{"name": n, "value": v} for n, v in more.get("configs", {}).items()]
    assignments = [
        {"partitionIndex": number, "brokerIds": brokers}
        for number, brokers in more.get("assignments", ())
    ]
    return {
        "name": name,
        "numPartitions": partitions,
        "replicationFactor": replicas,
        "assignments": assignments,
        "configs": configs,
    }


def create(name: str, *topics: dict[str, Any], validate: bool = False) -> Case:
    request = {"topics": list(topics), "timeoutMs": 30000, "validateOnly": validate}
    return (f"create {name}", 19, 7, request)


def grow(name: str, topic: str, count: int, *, times: int = 1, **more: Any) -> Case:
    topic_request = {"name": topic, "count": count, "assignments": None}
    if "assignments" in more:
        topic_request["assignments"] = [{"brokerIds": brokers} for brokers in more["assignments"]]
    request = {
        "topics": [topic_request] * times,
        "timeoutMs": 30000,
        "validateOnly": more.get("validate", False),
    }
    return (f"grow {name}", 37, 3, request)


def describe(name: str, kind: int, resource: str, keys: list[str] | None = None) -> Case:
    request = {
        "resources": [{"resourceType": kind, "resourceName": resource, "configurationKeys": keys}],
        "includeSynonyms": True,
        "includeDocumentation": False,
    }
    return (f"describe {name}", 32, 4, request)


def alter(
    name: str,
    kind: int,
    resource: str,
    *operations: tuple[str, int, str | None],
    times: int = 1,
    validate: bool = False,
) -> Case:
    configs = [{"name": n, "configOperation": o, "value": v} for n, o, v in operations]
    change = {"resourceType": kind, "resourceName": resource, "configs": configs}
    return (f"alter {name}", 44, 1, {"resources": [change] * times, "validateOnly": validate})


def replace(name: str, kind: int, resource: str, **texts: str | None) -> Case:
    configs = [{"name": n.replace("_", "."), "value": v} for n, v in texts.items()]
    change = {"resourceType": kind, "resourceName": resource, "configs": configs}
    return (f"replace {name}", 33, 2, {"resources": [change], "validateOnly": False})


def delete(name: str, *topics: str | None, ids: tuple[str, ...] = ()) -> Case:
    zero = "A" * 22
    listed: list[dict[str, Any]] = [{"name": topic, "topicId": zero} for topic in topics]
    listed += [{"name": None, "topicId": topic_id} for topic_id in ids]
    return (f"delete {name}", 20, 6, {"topics": listed, "timeoutMs": 30000})


def elect(name: str, kind: int, topic: str | None, *partitions: int) -> Case:
    topic_list = None if topic is None else [{"topic": topic, "partitions": list(partitions)}]
    request = {"electionType": kind, "topicPartitions": topic_list, "timeoutMs": 30000}
    return (f"elect {name}", 43, 2, request)


def move(name: str, topic: str, partition: int, replicas: list[int] | None) -> Case:
    partitions = [{"partitionIndex": partition, "replicas": replicas}]
    request = {
        "timeoutMs": 30000,
        "allowReplicationFactorChange": True,
        "topics": [{"name": topic, "partitions": partitions}],
    }
    return (f"move {name}", 45, 1, request)


def metadata(name: str, names: list[str] | None, *, create: bool, version: int = 13) -> Case:
    zero = "A" * 22
    topics = None if names is None else [{"topicId": zero, "name": topic} for topic in names]
    if topics is not None and version < 10:
        topics = [{"name": topic["name"]} for topic in topics]
    request: dict[str, Any] = {"topics": topics}
    if version >= 4:
        request["allowAutoTopicCreation"] = create
    if 8 <= version <= 10:
        request["includeClusterAuthorizedOperations"] = True
    if version >= 8:
        request["includeTopicAuthorizedOperations"] = True
    return (f"metadata {name}", 3, version, request)


def pages(name: str, topics: list[str], limit: int, cursor: tuple[str, int] | None) -> Case:
    at = None if cursor is None else {"topicName": cursor[0], "partitionIndex": cursor[1]}
    request = {
        "topics": [{"name": topic} for topic in topics],
        "responsePartitionLimit": limit,
        "cursor": at,
    }
    return (f"pages {name}", 75, 0, request)


def quota(name: str, entity: dict[str, str | None], *ops: tuple[str, float, bool]) -> Case:
    entry = {
        "entity": [{"entityType": t, "entityName": n} for t, n in entity.items()],
        "ops": [{"key": k, "value": v, "remove": r} for k, v, r in ops],
    }
    return (f"quota {name}", 49, 1, {"entries": [entry], "validateOnly": False})


def together(name: str, *users: str) -> Case:
    """Return a request that sets one quota for several users."""
    entries = [
        quota("", {"user": user}, ("producer_byte_rate", 1000.0, False))[3]["entries"][0]
        for user in users
    ]
    return (f"quota {name}", 49, 1, {"entries": entries, "validateOnly": False})


def typed_twice(*names: str) -> Case:
    case = quota("type twice", {}, ("producer_byte_rate", 1000.0, False))
    case[3]["entries"][0]["entity"] = [{"entityType": "user", "entityName": n} for n in names]
    return case


def quotas(name: str, *components: tuple[str, int, str | None], strict: bool = False) -> Case:
    listed = [{"entityType": t, "matchType": m, "match": x} for t, m, x in components]
    return (f"quotas {name}", 48, 1, {"components": listed, "strict": strict})


def levels(name: str, feature: str, level: int) -> Case:
    update = {"feature": feature, "maxVersionLevel": level, "upgradeType": 1}
    request = {"timeoutMs": 30000, "featureUpdates": [update], "validateOnly": False}
    return (f"levels {name}", 57, 1, request)


def cluster(name: str, kind: int, operations: bool = False) -> Case:
    request = {
        "includeClusterAuthorizedOperations": operations,
        "endpointType": kind,
        "includeFencedBrokers": False,
    }
    return (f"cluster {name}", 60, 2, request)


TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32

CREATE = [
    create("plain", topic("t", 3, configs={"retention.ms": "1000"})),
    create("existing", topic("t")),
    create("no name", topic("")),
    create("dots", topic("."), topic("..")),
    create("bad characters", topic("a b"), topic("ü")),
    create("long name", topic("x" * 249), topic("x" * 250)),
    create("a.b", topic("a.b")),
    create("a_b", topic("a_b")),
    create("too many replicas", topic("u", 1, 2)),
    create("bad replicas", topic("u", 1, 0), topic("v", 1, -2)),
    create("bad partitions", topic("u", 0), topic("v", -2)),
    create("unknown setting", topic("u", configs={"no.such": "1"})),
    create("bad setting", topic("u", configs={"retention.ms": "abc"})),
    create("bad list", topic("u", configs={"cleanup.policy": "shred"})),
    create("small segment", topic("u", configs={"segment.bytes": "100"})),
    create("null setting", topic("u", configs={"retention.ms": None})),
    create(
        "lags", topic("u", configs={"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"})
    ),
    create("remote", topic("u", configs={"remote.storage.enable": "true"})),
    create("internal setting", topic("u", configs={"internal.segment.bytes": "1000"})),
    create("assigned", topic("assigned", -1, -1, assignments=[(0, [1]), (1, [1])])),
    create("unknown broker", topic("v", -1, -1, assignments=[(0, [9])])),
    create("same broker", topic("v", -1, -1, assignments=[(0, [1, 1])])),
    create("no brokers", topic("v", -1, -1, assignments=[(0, [])])),
    create("gap", topic("v", -1, -1, assignments=[(1, [1])])),
    create("twice", topic("v", -1, -1, assignments=[(0, [1]), (0, [1])])),
    create("count and assignment", topic("v", 1, -1, assignments=[(0, [1])])),
    create("factor and assignment", topic("v", -1, 1, assignments=[(0, [1])])),
    create("validated", topic("w", 4), validate=True),
    create("defaults", topic("defaults", -1, -1)),
    create("duplicate", topic("x"), topic("x"), topic("y")),
    create("metadata log", topic("__cluster_metadata")),
    create("too many", topic("many", 20_000)),
]
GROW = [
    grow("by two", "t", 5),
    grow("to the same", "t", 5),
    grow("to fewer", "t", 2),
    grow("to none", "t", 0),
    grow("unknown", "nosuch", 2),
    grow("assigned", "t", 6, assignments=[[1]]),
    grow("too few assigned", "t", 9, assignments=[[1]]),
    grow("unknown broker", "t", 7, assignments=[[9]]),
    grow("two brokers", "t", 7, assignments=[[1, 1]]),
    grow("duplicate", "t", 8, times=2),
    grow("validated", "t", 9, validate=True),
]
ALTER = [
    alter("set", TOPIC, "t", ("segment.ms", 0, "5000"), ("flush.ms", 0, "7")),
    alter("append", TOPIC, "t", ("cleanup.policy", 2, "compact")),
    alter("append again", TOPIC, "t", ("cleanup.policy", 2, "compact")),
    alter("subtract", TOPIC, "t", ("cleanup.policy", 3, "delete")),
    alter("append to a number", TOPIC, "t", ("segment.ms", 2, "1")),
    alter("delete", TOPIC, "t", ("segment.ms", 1, None)),
    alter("delete what is not set", TOPIC, "t", ("segment.bytes", 1, None)),
    alter("unknown key", TOPIC, "t", ("no.such", 0, "1")),
    alter("bad value", TOPIC, "t", ("segment.ms", 0, "x")),
    alter("null", TOPIC, "t", ("segment.ms", 0, None)),
    alter("duplicate keys", TOPIC, "t", ("segment.ms", 0, "1"), ("segment.ms", 1, None)),
    alter("duplicate resource", TOPIC, "t", ("segment.ms", 0, "1"), times=2),
    alter("unknown operation", TOPIC, "t", ("segment.ms", 7, "1")),
    alter("unknown topic", TOPIC, "nosuch", ("segment.ms", 0, "1")),
    alter("invalid topic", TOPIC, "a b", ("segment.ms", 0, "1")),
    alter("no topic", TOPIC, "", ("segment.ms", 0, "1")),
    alter("validated", TOPIC, "t", ("segment.ms", 0, "9"), validate=True),
    alter("broker", BROKER, "1", ("log.retention.ms", 0, "3600000")),
    alter("broker read-only", BROKER, "1", ("node.id", 0, "2")),
    alter("broker bad value", BROKER, "1", ("message.max.bytes", 0, "x")),
    alter("broker low value", BROKER, "1", ("message.max.bytes", 0, "-1")),
    alter("broker unknown key", BROKER, "1", ("own.extension", 0, "x")),
    alter("unknown broker", BROKER, "9", ("log.retention.ms", 0, "1")),
    alter("odd broker", BROKER, "x", ("log.retention.ms", 0, "1")),
    alter("all brokers", BROKER, "", ("message.max.bytes", 0, "2000000")),
    alter("all brokers, per-broker setting", BROKER, "", ("listeners", 0, "PLAINTEXT://:1")),
    alter("group", GROUP, "g", ("consumer.session.timeout.ms", 0, "50000")),
    alter("group unknown key", GROUP, "g", ("no.such", 0, "1")),
    alter("group bad value", GROUP, "g", ("consumer.session.timeout.ms", 0, "x")),
    alter("no group", GROUP, "", ("consumer.session.timeout.ms", 0, "50000")),
    alter("metrics", METRICS, "m", ("interval.ms", 0, "5000"), ("metrics", 0, "a,b")),
    alter("metrics unknown key", METRICS, "m", ("no.such", 0, "1")),
    alter("metrics low value", METRICS, "m", ("interval.ms", 0, "1")),
    alter("no metrics", METRICS, "", ("interval.ms", 0, "5000")),
    alter("unknown kind", 3, "x", ("a", 0, "b")),
    alter("append to an unknown kind", 3, "x", ("a", 2, "b")),
    replace("all", TOPIC, "defaults", segment_ms="6000", flush_ms="8"),
    replace("one", TOPIC, "defaults", flush_ms="9"),
    replace("null", TOPIC, "defaults", flush_ms=None),
    replace("unknown topic", TOPIC, "nosuch", flush_ms="9"),
]
LEVELS = [
    alter("levels", LOGGER, "1", ("root", 0, "DEBUG")),
    alter("lowest level", LOGGER, "1", ("root", 0, "TRACE")),
    alter("highest level", LOGGER, "1", ("root", 0, "FATAL")),
    alter("level in lower case", LOGGER, "1", ("root", 0, "debug")),
    alter("level of log4j", LOGGER, "1", ("root", 0, "OFF")),
    alter("empty level", LOGGER, "1", ("root", 0, "")),
    alter("null level", LOGGER, "1", ("root", 0, None)),
    alter("unknown logger", LOGGER, "1", ("root", 0, "INFO"), ("no.such", 0, "INFO")),
    alter("unknown logger deleted", LOGGER, "1", ("no.such", 1, None)),
    alter("root logger deleted", LOGGER, "1", ("root", 1, None)),
    alter("level appended", LOGGER, "1", ("root", 2, "INFO")),
    alter("level subtracted", LOGGER, "1", ("root", 3, "INFO")),
    alter("logger twice", LOGGER, "1", ("root", 0, "INFO"), ("root", 0, "WARN")),
    alter("loggers twice", LOGGER, "1", ("root", 0, "INFO"), times=2),
    alter("no levels", LOGGER, "1"),
    alter("levels validated", LOGGER, "1", ("root", 0, "ERROR"), validate=True),
    alter("levels of no broker", LOGGER, "", ("root", 0, "INFO")),
    alter("levels of an odd broker", LOGGER, "x", ("root", 0, "INFO")),
    alter("levels of another broker", LOGGER, "9", ("root", 0, "INFO")),
    replace("levels", LOGGER, "1", root="INFO"),
    describe("loggers of no broker", LOGGER, ""),
    describe("loggers of an odd broker", LOGGER, "x"),
    describe("loggers of another broker", LOGGER, "9"),
]
RETENTION = ["log.retention.ms", "log.retention.minutes", "log.retention.hours"]
DESCRIBE = [
    describe("topic", TOPIC, "t"),
    describe("one setting", TOPIC, "defaults", ["flush.ms", "no.such"]),
    describe("unknown topic", TOPIC, "nosuch"),
    describe("invalid topic", TOPIC, "a b"),
    describe("broker", BROKER, "1", [*RETENTION, "message.max.bytes", "ssl.key.password"]),
    describe(
        "broker ids", BROKER, "1", ["node.id", "broker.id", "process.roles", "num.partitions"]
    ),
    describe("all brokers", BROKER, ""),
    describe("other broker", BROKER, "2"),
    describe("odd broker", BROKER, "x"),
    describe("group", GROUP, "g"),
    describe("no group", GROUP, ""),
    describe("metrics", METRICS, "m"),
    describe("no metrics", METRICS, ""),
    describe("unknown kind", 3, "x"),
    ("resources", 74, 1, {"resourceTypes": [TOPIC, GROUP, METRICS, BROKER]}),
    ("resources of an unknown kind", 74, 1, {"resourceTypes": [3]}),
]
PARTITIONS = [
    elect("preferred", 0, "t", 0, 1),
    elect("unclean", 1, "t", 0),
    elect("unknown topic", 0, "nosuch", 0),
    elect("unknown partition", 0, "t", 99),
    elect("everything", 0, None),
    elect("unknown kind", 5, "t", 0),
    move("to the same", "t", 0, [1]),
    move("to nowhere", "t", 0, [9]),
    move("to no broker", "t", 0, []),
    move("cancel", "t", 0, None),
    move("unknown topic", "nosuch", 0, [1]),
    move("unknown partition", "t", 99, [1]),
    (
        "move nothing",
        45,
        1,
        {"timeoutMs": 30000, "allowReplicationFactorChange": False, "topics": []},
    ),
    ("moving", 46, 0, {"timeoutMs": 30000, "topics": None}),
    pages("all", [], 2000, None),
    pages("first", [], 2, None),
    pages("next", [], 3, ("a.b", 0)),
    pages("middle", ["t"], 2, ("t", 1)),
    pages("exact", ["t", "y"], 6, None),
    pages("unknown", ["nosuch", "a b"], 10, None),
    pages("cursor elsewhere", ["t"], 10, ("y", 0)),
    pages("negative cursor", ["t"], 10, ("t", -1)),
]
CLUSTER = [
    cluster("brokers", 1, True),
    cluster("controllers", 2),
    cluster("neither", 3),
    metadata("none", [], create=False),
    metadata("named", ["t", "nosuch", "a b"], create=False),
    metadata("old", ["t"], create=False, version=1),
    metadata("operations", ["t"], create=False, version=9),
    (
        "acls",
        29,
        3,
        {
            "resourceTypeFilter": 1,
            "resourceNameFilter": None,
            "patternTypeFilter": 1,
            "principalFilter": None,
            "hostFilter": None,
            "operation": 1,
            "permissionType": 1,
        },
    ),
    levels("unsupported", "group.version", 99),
    levels("unknown", "odd.version", 1),
    levels("negative", "metadata.version", -1),
    ("unregister an unknown broker", 64, 0, {"brokerId": 9}),
    quota("user", {"user": "ann"}, ("producer_byte_rate", 1000.0, False)),
    quota("default", {"user": None}, ("consumer_byte_rate", 2000.0, False)),
    quota("pair", {"user": "ann", "client-id": "c"}, ("request_percentage", 50.0, False)),
    quota("unknown key", {"user": "ann"}, ("no_such", 1.0, False)),
    quota("negative", {"user": "ann"}, ("producer_byte_rate", -1.0, False)),
    quota("fraction", {"user": "ann"}, ("producer_byte_rate", 1.5, False)),
    quota("unknown type", {"tenant": "ann"}, ("producer_byte_rate", 1.0, False)),
    quota("no entity", {}, ("producer_byte_rate", 1.0, False)),
    quota("ip with user", {"ip": "1.2.3.4", "user": "a"}, ("connection_creation_rate", 1.0, False)),
    quota("unknown key removed", {"user": "bob"}, ("no_such", 1.0, True)),
    quota("key twice", {"user": "bob"}, *[("producer_byte_rate", 1.0, False)] * 2),
    together("entity twice", "eve", "eve"),
    together("entities", "eve", "fay"),
    typed_twice("ann", "gus"),
    quotas("all"),
    quotas("of ann", ("user", 0, "ann")),
    quotas("strictly of ann", ("user", 0, "ann"), strict=True),
    quotas("default", ("user", 1, None)),
    quotas("any", ("user", 2, None)),
    quotas("unknown type", ("tenant", 2, None)),
    quotas("twice", ("user", 2, None), ("user", 0, "ann")),
    quotas("default with a name", ("user", 1, "ann")),
    quotas("any with a name", ("user", 2, "ann")),
    quotas("exact without a name", ("user", 0, None)),
    quotas("unknown match", ("user", 7, None)),
    quotas("no type", ("", 2, None)),
    quotas("ip and user", ("ip", 2, None), ("user", 2, None)),
]
DELETE = [
    delete("one", "x" * 249),
    delete("unknown", "nosuch"),
    delete("unknown id", ids=("AAAAAAAAAAAAAAAAAAAABw",)),
    delete("nothing", None),
    delete("nothing twice", None, None, "nosuch", "nosuch"),
    delete("twice", "y", "y"),
    delete("rest", "y", "defaults"),
]
CASES: list[Case] = [*CREATE, *GROW, *ALTER, *LEVELS, *DESCRIBE, *PARTITIONS, *CLUSTER, *DELETE]

_UNORDERED = frozenset(
    {"topics", "responses", "results", "configs", "entries", "configResources", "entity"}
)
_ARBITRARY = frozenset({"port", "clusterId", "throttleTimeMs", "topicId"})
_ZERO = "A" * 22


def alike(value: Any, name: str = "") -> Any:
    """Return an answer without ids, ports and orders that are arbitrary."""
    if name in _ARBITRARY:
        return value if value in (_ZERO, "AAAAAAAAAAAAAAAAAAAABw", 0) else f"<{name}>"
    if isinstance(value, dict):
        return {key: alike(item, key) for key, item in value.items()}
    if isinstance(value, list):
        listed = [alike(item) for item in value]
        if name in _UNORDERED or name == "replicaElectionResults":
            listed.sort(key=_name_of)
        return listed
    return value


def _name_of(item: Any) -> str:
    """Return the name by which a list without an order of its own is sorted."""
    names = (item.get(n) for n in ("name", "topic", "resourceName", "entityType"))
    return next((n for n in names if n is not None), json.dumps(item, sort_keys=True))


def frame(case: Case, correlation_id: int) -> bytes:
    _, key, version, request = case
    message = from_json(BY_KEY[key].request, request, version)
    return bytes(request_frame(key, version, correlation_id, "admin", message))


def read(case: Case, answer: bytes) -> Any:
    """Return the body of an answer, which begins with the correlation id."""
    _, key, version, _ = case
    api = BY_KEY[key]
    start = 5 if _is_flexible(key, version) else 4
    message, end = decoder(api.response, version)(memoryview(answer), start)
    assert end == len(answer)
    return alike(to_json(message, version))


def _is_flexible(key: int, version: int) -> bool:
    from kwire.codec.schema import spec_of

    return version in spec_of(BY_KEY[key].response).flexible


def load() -> dict[str, Any]:
    answers: dict[str, Any] = json.loads(gzip.decompress(ANSWERS.read_bytes()))
    return {name: alike(answer) for name, answer in answers.items()}


def record(host: str, port: int) -> None:
    answers = {}
    with socket.create_connection((host, port)) as connection, connection.makefile("rb") as file:
        for number, case in enumerate(CASES):
            connection.sendall(frame(case, number))
            size = int.from_bytes(file.read(4))
            if not size:
                raise SystemExit(f"the node closed the connection on {case[0]!r}")
            answers[case[0]] = read(case, file.read(size))
    text = json.dumps(answers, indent=0, sort_keys=True)
    ANSWERS.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    address = sys.argv[1].rpartition(":")
    record(address[0], int(address[2]))
