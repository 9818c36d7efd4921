"""The brokers as the pipeline needs them: cluster id, topic ids and offsets.

The client is the one of Spark's connector, in Spark's JVM, so settings that work for the source
also work here.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from functools import cached_property
from typing import Final

import attrs
from py4j.java_gateway import JavaClass, JavaObject, JVMView
from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.values import Isolation
from kwire_pipeline.engine.offsets import Offsets, offsets_of
from kwire_pipeline.engine.source import client
from kwire_pipeline.engine.storage import jvm_of
from kwire_pipeline.errors import Failure, Refusal
from kwire_pipeline.explain import is_denied, sentence

TIMEOUTS: Final = {"request.timeout.ms": "5000", "default.api.timeout.ms": "10000"}
"""Timeouts that fail a run within seconds if a broker is down; the source's client tries longer."""


class Denied(Refusal):
    """The brokers do not authorize this client for a request."""


@attrs.frozen
class Topic:
    """A topic as the brokers describe it."""

    name: str
    topic_id: str
    partitions: tuple[int, ...]


@attrs.frozen
class Classes:
    """The Java classes that each batch needs, looked up in the JVM once."""

    jvm: JVMView
    isolation: Isolation

    @cached_property
    def array_list(self) -> JavaClass:
        return self.jvm.java.util.ArrayList

    @cached_property
    def hash_map(self) -> JavaClass:
        return self.jvm.java.util.HashMap

    @cached_property
    def topic_partition(self) -> JavaClass:
        return self.jvm.org.apache.kafka.common.TopicPartition

    @cached_property
    def specs(self) -> JavaClass:
        return self.jvm.org.apache.kafka.clients.admin.OffsetSpec

    @cached_property
    def offset_options(self) -> JavaObject:
        """The options that return the end offset as a reader with the isolation sees it."""
        kafka = self.jvm.org.apache.kafka
        level = getattr(kafka.common.IsolationLevel, self.isolation.name)
        return kafka.clients.admin.ListOffsetsOptions(level)


class Cluster:
    """A client of the brokers' Admin API."""

    def __init__(
        self,
        spark: SparkSession,
        properties: Mapping[str, str],
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> None:
        """Create a client from the connector's properties, such as ``bootstrap.servers``.

        A partition ends for it where it ends for a reader with this isolation.
        """
        self._jvm = jvm_of(spark)
        self._classes = Classes(self._jvm, isolation)
        self._servers = properties["bootstrap.servers"]
        settings = self._jvm.java.util.HashMap()
        for name, value in {**TIMEOUTS, **properties}.items():
            settings.put(name, value)
        self._admin = self._call(
            lambda: self._jvm.org.apache.kafka.clients.admin.Admin.create(settings)
        )

    @classmethod
    def of(cls, spark: SparkSession, pipeline: Pipeline) -> "closing[Cluster]":
        """Return a client of a pipeline's brokers for a block."""
        return closing(cls(spark, client(pipeline.source), pipeline.source.isolation))

    def close(self) -> None:
        self._admin.close(self._jvm.java.time.Duration.ofSeconds(1))

    def cluster_id(self) -> str:
        return str(self._call(lambda: self._admin.describeCluster().clusterId().get()))

    def matching(self, pattern: str, former: Iterable[str] = ()) -> list[str]:
        """Return the names of topics, current or ``former``, that match a Java pattern."""
        try:
            matches = self._jvm.java.util.regex.Pattern.compile(pattern)
        except IllegalArgumentException as error:
            reason = sentence(str(error))
            raise Refusal(f"source.pattern: Java does not accept {pattern!r}: {reason}") from None
        listed = self._call(lambda: self._admin.listTopics().names().get())
        # A loop over Java's names would take a call for each of them.
        names = str(self._jvm.java.lang.String.join(" ", listed)).split()
        all_names = {*names, *former}
        return sorted(name for name in all_names if matches.matcher(name).matches())

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Describe topics; raise Refusal if one does not exist."""
        names = list(dict.fromkeys(names))
        listed = self._classes.array_list()
        for name in names:
            listed.add(name)
        answers = self._call(lambda: self._admin.describeTopics(listed).allTopicNames().get())
        topics = {}
        for name in names:
            answer = answers.get(name)
            topics[name] = Topic(
                name,
                str(answer.topicId().toString()),
                tuple(range(answer.partitions().size())),  # Kafka numbers them without gaps.
            )
        return topics

    def existing(self, names: Iterable[str]) -> dict[str, Topic]:
        """Describe the topics that exist, with one request for all.

        A topic may be deleted between the two requests, so an error about one topic leaves the
        others.
        """
        listed = self._call(lambda: self._admin.listTopics().names().get())
        names = [name for name in names if listed.contains(name)]
        try:
            return self.topics(names)
        except Refusal:
            described: dict[str, Topic] = {}
            for name in names:
                with suppress(Refusal):
                    described |= self.topics([name])
            return described

    def topic(self, name: str) -> Topic | None:
        """Describe a topic; return None if it does not exist."""
        if not self._call(lambda: self._admin.listTopics().names().get()).contains(name):
            return None
        return self.topics([name])[name]

    def topics_with_compaction(self, names: Iterable[str]) -> list[str]:
        """Return the topics from which compaction removes records.

        The list is empty if this client may not see configurations.
        """
        policies = self.topic_settings(names, "cleanup.policy")
        return sorted(name for name, policy in policies.items() if "compact" in policy)

    def topic_settings(self, names: Iterable[str], key: str) -> dict[str, str]:
        """Return a setting of each topic; empty if this client may not see settings."""
        resources = self._jvm.org.apache.kafka.common.config
        kind = getattr(resources, "ConfigResource$Type").TOPIC
        named = {name: resources.ConfigResource(kind, name) for name in names}
        listed = self._classes.array_list()
        for resource in named.values():
            listed.add(resource)
        try:
            configs = self._call(lambda: self._admin.describeConfigs(listed).all().get())
        except (Failure, Denied):
            return {}
        return {
            name: str(configs.get(resource).get(key).value()) for name, resource in named.items()
        }

    def beginnings(self, topics: Iterable[Topic]) -> Offsets:
        return self._offsets(topics, self._specs().earliest())

    def ends(self, topics: Iterable[Topic]) -> Offsets:
        """Return the end offsets as a reader with the client's isolation sees them."""
        return self._offsets(topics, self._specs().latest())

    def known_ends(self, topics: Iterable[Topic]) -> Offsets:
        """Return the end offsets of the topics whose leaders all answer, with one request.

        Leaders that do not answer delay the request by `TIMEOUTS`, however many they are.
        """
        topics = list(topics)
        parts = self._parts(topics)
        request = self._list_offsets(parts.values(), self._specs().latest())
        try:
            return self._answers(request, parts)
        except (Failure, Refusal):
            ends: dict[str, Mapping[int, int]] = {}
            for topic in topics:
                with suppress(Failure, Refusal):
                    ends[topic.name] = {
                        number: self._answer(request, parts[topic.name, number])
                        for number in topic.partitions
                    }
            return ends

    def at_time(self, topics: Iterable[Topic], timestamp_ms: int) -> Offsets:
        """Return the first offsets at or after a time, or the end offset if there is none."""
        topics = list(topics)
        ends = self.ends(topics)
        first = self._offsets(topics, self._specs().forTimestamp(timestamp_ms))
        return {
            topic: {p: o if o >= 0 else ends[topic][p] for p, o in partitions.items()}
            for topic, partitions in first.items()
        }

    def commit(self, group: str, offsets: Offsets) -> None:
        """Commit offsets to a consumer group; raise Refusal if the group has members."""
        classes = self._jvm.org.apache.kafka
        committed = self._jvm.java.util.HashMap()
        for topic, partitions in offsets.items():
            for partition, offset in partitions.items():
                committed.put(
                    classes.common.TopicPartition(topic, partition),
                    classes.clients.consumer.OffsetAndMetadata(offset),
                )
        try:
            self._call(lambda: self._admin.alterConsumerGroupOffsets(group, committed).all().get())
        except Failure as failure:
            if "UnknownMemberId" not in str(failure):
                raise
            raise Refusal(
                f"commit_group: the group {group} has members that commit its offsets: choose a "
                "group that no consumer is in"
            ) from failure

    def _specs(self) -> JavaObject:
        return self._classes.specs

    def _offsets(self, topics: Iterable[Topic], spec: JavaObject) -> Offsets:
        parts = self._parts(topics)
        return self._answers(self._list_offsets(parts.values(), spec), parts)

    def _parts(self, topics: Iterable[Topic]) -> dict[tuple[str, int], JavaObject]:
        """Return Kafka's own objects for the partitions of the topics."""
        return {
            (topic.name, number): self._classes.topic_partition(topic.name, number)
            for topic in topics
            for number in topic.partitions
        }

    def _list_offsets(self, parts: Iterable[JavaObject], spec: JavaObject) -> JavaObject:
        """Request offsets of partitions from all their leaders; the answers arrive later."""
        wanted_specs = self._classes.hash_map()
        for part in parts:
            wanted_specs.put(part, spec)
        return self._call(
            lambda: self._admin.listOffsets(wanted_specs, self._classes.offset_options)
        )

    def _answers(self, request: JavaObject, parts: Mapping[tuple[str, int], JavaObject]) -> Offsets:
        """Wait for all answers; raise Failure or Refusal if one of them is an error."""
        answers = self._call(lambda: request.all().get())
        return offsets_of(
            (topic, number, int(answers.get(part).offset()))
            for (topic, number), part in parts.items()
        )

    def _answer(self, request: JavaObject, part: JavaObject) -> int:
        """Wait for the answer about one partition."""
        return int(self._call(lambda: request.partitionResult(part).get()).offset())

    def _call(self, request: Callable[[], JavaObject]) -> JavaObject:
        """Make a request; turn an error from the brokers into a sentence."""
        try:
            return request()
        except Py4JJavaError as error:
            reason = _cause(error.java_exception)
        if "UnknownTopicOrPartition" in reason:
            raise Refusal(
                f"a topic of the pipeline does not exist at {self._servers}: create it, or correct "
                "source.topics"
            )
        if is_denied(reason):
            raise Denied(
                f"the brokers at {self._servers} deny the request ({reason}): correct "
                "source.security, or the permissions of its user"
            )
        if "Timeout" in reason:
            raise Failure(f"no broker answers at {self._servers}: {reason}")
        raise Failure(f"the brokers at {self._servers} answered {reason}")


def topics_of(pipeline: Pipeline, cluster: Cluster) -> dict[str, Topic]:
    """Describe the topics of a pipeline; raise Refusal if there are none.

    A topic that matches a pattern may have been created or deleted just now, so that not every
    broker knows about it: that is a Failure, because the next look will not find it so.
    """
    pattern = pipeline.source.pattern
    if pattern is None:
        return cluster.topics(pipeline.source.topics)
    names = cluster.matching(pattern)
    if not names:
        raise Refusal(f"source.pattern: no topic matches {pattern}")
    if pipeline.dead_letters.topic in names:
        raise Refusal(
            f"dead_letters.topic: {pipeline.dead_letters.topic} matches source.pattern "
            f"{pattern}, so letters would be read again: choose another name"
        )
    try:
        return cluster.topics(names)
    except Denied:
        raise
    except Refusal:
        raise Failure(
            f"a topic that matches source.pattern {pattern} was created or deleted at this moment"
        ) from None


def may_lack_topics(pipeline: Pipeline) -> bool:
    """Return whether a topic of the pipeline may be deleted without a refusal."""
    return pipeline.source.pattern is not None and not pipeline.source.fail_on_data_loss


def topics_left(pipeline: Pipeline, cluster: Cluster, names: Iterable[str]) -> dict[str, Topic]:
    """Describe topics that a run has read, without deleted ones if the pipeline may lack them.

    A run notes that a topic is gone with its next batch, and there may be none for long.
    """
    return cluster.existing(names) if may_lack_topics(pipeline) else cluster.topics(names)


def _cause(error: JavaObject) -> str:
    while error.getCause() is not None:
        error = error.getCause()
    return f"{error.getClass().getSimpleName()}: {error.getMessage()}"
