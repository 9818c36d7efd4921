"""Queries the brokers without a JVM: whether they answer, and which topics they have.

Rules of this file: every wait is bounded; an error names the address, and says what happened and
what to do. The connection uses kafka-python, with TLS, PLAIN and SCRAM as configured in the file.
Configurations that only Java's client supports (other mechanisms, Java's key stores) are left to
Spark: then only the TCP connection is tried, because a set-up that works for Spark must not be
rejected here.
"""

import contextlib
import logging
import re
import socket
import warnings
from collections.abc import Iterator
from typing import Final

import attrs

from kwire_pipeline.config.model import Source
from kwire_pipeline.config.values import WITH_USER, Protocol
from kwire_pipeline.errors import Failure, Refusal

TIMEOUT_S: Final = 5.0
SASL: Final = (Protocol.SASL_PLAINTEXT, Protocol.SASL_SSL)
TLS: Final = (Protocol.SSL, Protocol.SASL_SSL)
FOR_JAVA: Final = ("kafka.ssl.", "kafka.sasl.", "kafka.security.")
"""The prefixes of options that only Java's client understands."""
HOSTNAME_CHECK: Final = "kafka.ssl.endpoint.identification.algorithm"
"""Spark's option whose empty value turns the check of host names in certificates off."""


@attrs.frozen
class Brokers:
    """The brokers' answer: the cluster and its topics."""

    address: str
    """The first bootstrap address that accepts connections."""
    cluster_id: str | None
    """None if only the TCP connection was tried."""
    topics: dict[str, int]
    """The number of partitions of each topic; empty if only Java can read the pattern."""
    untried: str = ""
    """A feature of Java's client alone, for which only the TCP connection was tried."""


def look_up(source: Source, timeout_s: float = TIMEOUT_S, *, letters: str | None = None) -> Brokers:
    """Ask the brokers for the source's topics, and for the dead-letter topic.

    Raises Failure if no broker answers, and Refusal if a topic is missing or the brokers reject the
    client.
    """
    address = connect(source.bootstrap, timeout_s)
    untried = only_for_java(source)
    if untried is not None:
        return Brokers(address, None, {}, untried)
    try:
        cluster_id, topics = _metadata(source, letters, address, timeout_s)
    except Failure:
        if source.security.protocol not in TLS or source.security.ca_file is not None:
            raise
        return Brokers(address, None, {}, f"TLS with Java's own authorities, {LACKS_AUTHORITY},")
    if letters is not None and letters not in topics:
        raise Refusal(
            f"dead_letters.topic: {letters} does not exist at {address}: create it with the "
            "retention that letters need, or correct the name"
        )
    if source.pattern is not None:
        pattern = python_pattern(source.pattern)
        if pattern is None:
            return Brokers(address, cluster_id, {})
        matching = {name: count for name, count in topics.items() if pattern.fullmatch(name)}
        if letters in matching:
            raise Refusal(
                f"dead_letters.topic: {letters} matches source.pattern {source.pattern!r}, so "
                "letters would be read again: choose another name"
            )
        if not matching:
            raise Refusal(f"source.pattern: no topic at {address} matches {source.pattern!r}")
        return Brokers(address, cluster_id, matching)
    missing = [name for name in source.topics if name not in topics]
    if missing:
        raise Refusal(
            f"source.topics: {', '.join(missing)} does not exist at {address}: create it, or "
            "correct the name"
        )
    return Brokers(address, cluster_id, {name: topics[name] for name in source.topics})


LACKS_AUTHORITY: Final = "which Python may lack without source.security.ca_file"


def only_for_java(source: Source) -> str | None:
    """Return the first security setting that needs Java's client; None if there is none."""
    security = source.security
    if security.protocol in SASL and security.mechanism not in WITH_USER:
        return str(security.mechanism.value)
    for name, text in source.options.items():
        is_known = name.lower() == HOSTNAME_CHECK and text.strip() in ("", "https")
        if name.lower().startswith(FOR_JAVA) and not is_known:
            return name
    return None


def connect(servers: str, timeout_s: float, *, kind: str = "broker") -> str:
    """Return the first address that accepts a TCP connection; raise Failure if none does."""
    problems = []
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
        except socket.gaierror:
            problems.append(f"{server.strip()}: there is no such host")
        except TimeoutError:
            problems.append(f"{server.strip()} does not answer within {timeout_s:g} s")
        except OSError as error:
            problems.append(f"{server.strip()}: {(error.strerror or str(error)).lower()}")
        else:
            return server.strip()
    raise Failure(f"no {kind} can be reached: {'; '.join(problems)}; is it running?")


def python_pattern(pattern: str) -> re.Pattern[str] | None:
    """Return a Java pattern as a Python one; None if Python has no equivalent.

    Python warns about character sets that it interprets differently from Java.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            return re.compile(pattern)
    except (re.error, FutureWarning):
        return None


def _metadata(
    source: Source, letters: str | None, address: str, timeout_s: float
) -> tuple[str, dict[str, int]]:
    """Return the cluster id, and the topics with their partition counts."""
    from kafka import KafkaAdminClient

    with _explain(source, address):
        client = KafkaAdminClient(**_options(source, timeout_s))
        try:
            names = [*source.topics, letters] if letters is not None else [*source.topics]
            described = client.describe_topics(names if source.topics else None)
            cluster_id = client.describe_cluster()["cluster_id"]
        finally:
            client.close()
    # Java's client, and so a pattern, knows no internal topics; a name in the file may be one.
    answers = (t for t in described if t["error_code"] == 0)
    visible = (t for t in answers if source.topics or not t.get("is_internal"))
    return cluster_id, {t["name"]: len(t["partitions"]) for t in visible}


def sample(source: Source, count: int, timeout_s: float = TIMEOUT_S) -> list[bytes | None]:
    """Return the values of up to ``count`` records, the newest of each partition."""
    from kafka import KafkaConsumer, TopicPartition

    brokers = look_up(source, timeout_s)
    if brokers.cluster_id is None:
        raise Failure(f"{brokers.address} was not asked: only Spark can use {brokers.untried}")
    partitions = [
        TopicPartition(topic, number)
        for topic, partition_count in brokers.topics.items()
        for number in range(partition_count)
    ]
    values: list[bytes | None] = []
    if not partitions:
        return values
    with _explain(source, brokers.address):
        options = {**_options(source, timeout_s), "isolation_level": source.isolation.value}
        consumer = KafkaConsumer(**options)
        try:
            consumer.assign(partitions)
            starts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
            share = max(1, count // max(1, len(partitions)))
            for partition in partitions:
                consumer.seek(partition, max(starts[partition], ends[partition] - share))
            unread = {p for p in partitions if ends[p] > starts[p]}
            while unread and (batches := consumer.poll(timeout_ms=int(timeout_s * 1000))):
                for records in batches.values():
                    values.extend(record.value for record in records)
                unread = {p for p in unread if consumer.position(p) < ends[p]}
        finally:
            consumer.close()
    return values


def _options(source: Source, timeout_s: float) -> dict[str, object]:
    """Return the options of a kafka-python client."""
    return {
        "bootstrap_servers": source.bootstrap.split(","),
        "client_id": "kwire-pipeline",
        "security_protocol": source.security.protocol.value,
        "request_timeout_ms": int(timeout_s * 1000),
        "bootstrap_timeout_ms": int(timeout_s * 1000),
        **dict(_security(source)),
    }


@contextlib.contextmanager
def _explain(source: Source, address: str) -> Iterator[None]:
    """Turn a client error into a sentence about the broker at ``address``."""
    from kafka import errors

    security = source.security
    try:
        with _silence("kafka"):
            yield
    except (errors.SaslAuthenticationFailedError, errors.UnsupportedSaslMechanismError) as error:
        raise Refusal(
            f"{address} refuses the user {security.username} with {security.mechanism.value}: "
            f"{error}"
        ) from None
    except errors.KafkaError as error:
        raise Failure(
            f"{address} accepts connections, but does not answer as a Kafka broker with "
            f"{security.protocol.value} ({type(error).__name__}): are source.bootstrap and "
            "source.security right?"
        ) from None


def _security(source: Source) -> Iterator[tuple[str, str | bool]]:
    security = source.security
    if security.protocol in SASL:
        yield "sasl_mechanism", security.mechanism.value
        yield "sasl_plain_username", security.username or ""
        yield "sasl_plain_password", security.password or ""
    if security.ca_file is not None:
        yield "ssl_cafile", security.ca_file
    if security.cert_file is not None:
        yield "ssl_certfile", security.cert_file
        yield "ssl_keyfile", security.cert_file
    if security.key_password is not None:
        yield "ssl_password", security.key_password
    options = {name.lower(): text for name, text in source.options.items()}
    if options.get(HOSTNAME_CHECK, "https").strip() == "":
        yield "ssl_check_hostname", False


@contextlib.contextmanager
def _silence(name: str) -> Iterator[None]:
    """Silence a logger whose errors are also raised as exceptions."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
