"""A pipeline whose dead letters go to a topic, and the end of a run among them."""

from __future__ import annotations

import attrs
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.consumer.fetcher import ConsumerRecord
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from compat_tests.pipeline.scene import Crash, Scene
from kwire_pipeline.config.model import DeadLetters
from kwire_pipeline.tables.table import Mark
from kwire_pipeline.tables.topic import LetterTopic

SEND = LetterTopic._send


@attrs.define
class LetterScene(Scene):
    """A scene whose dead letters go to a topic."""

    letter_topic: str = ""

    def create_letter_topic(self, **configs: str) -> None:
        self.letter_topic = f"{self.topic}-dead"
        letters = DeadLetters(topic=self.letter_topic)
        self.pipeline = attrs.evolve(self.pipeline, dead_letters=letters)
        admin = KafkaAdminClient(bootstrap_servers=self.broker.address)
        admin.create_topics([NewTopic(self.letter_topic, 2, 1, topic_configs=configs)])
        admin.close()

    def set_topic(self, **configs: str) -> None:
        """Change settings of the topic of letters."""
        admin = KafkaAdminClient(bootstrap_servers=self.broker.address)
        kind = ConfigResourceType.TOPIC
        admin.alter_configs([ConfigResource(kind, self.letter_topic, configs=configs)])
        admin.close()

    def delete_letters(self) -> None:
        """Delete all records of the topic of letters, as retention does."""
        admin = KafkaAdminClient(bootstrap_servers=self.broker.address)
        partitions = [TopicPartition(self.letter_topic, number) for number in range(2)]
        admin.delete_records(dict.fromkeys(partitions, -1))
        admin.close()

    def records(self) -> list[ConsumerRecord]:
        """Return what a consumer reads from the topic of letters."""
        consumer = KafkaConsumer(bootstrap_servers=self.broker.address)
        partitions = [TopicPartition(self.letter_topic, number) for number in range(2)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        records = []
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for batch in consumer.poll(1000).values():
                records += batch
        consumer.close()
        return records

    def check_once_in_topic(self, numbers: range) -> None:
        """Assert that table and topic have each record once, for a reader of any kind."""
        self.check_each_once(numbers)
        spots = [tuple(value for _, value in record.headers[:3]) for record in self.records()]
        assert len(spots) == len(set(spots)) == sum(number % 10 == 9 for number in numbers)


def crash_between_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """End the next run in its letters: some of them are written."""

    def send_some(topic: LetterTopic, letters: DataFrame, mark: Mark) -> None:
        SEND(topic, letters.where(F.col("offset") % 2 == 0), mark)
        monkeypatch.setattr(LetterTopic, "_send", SEND)
        raise Crash("letters")

    monkeypatch.setattr(LetterTopic, "_send", send_some)


def lose_a_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next run write the last letter of its batch alone."""

    def send_last(topic: LetterTopic, letters: DataFrame, mark: Mark) -> None:
        SEND(topic, letters.orderBy(F.desc("offset")).limit(1), mark)
        monkeypatch.setattr(LetterTopic, "_send", SEND)

    monkeypatch.setattr(LetterTopic, "_send", send_last)
