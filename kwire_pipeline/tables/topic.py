"""Dead letters in a topic: records with the original key and value, and additional headers.

Spark writes records at least once: a run that ends during a batch may have written any part of its
letters. So the end offsets of the topic are stored beside the checkpoint before the first letter of
a batch is written. A repeated batch reads what the topic has received since then, and writes only
the missing letters. A Spark task that fails and is repeated within a batch can still write letters
twice; the headers with topic, partition and offset identify the record, and `read` returns each one
once.

Letters belong to a pipeline by its name and its table's name: other pipelines may use the same
topic. Records of a topic cannot be deleted individually, so operations that need that are refused.
"""

import datetime
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Final

import attrs
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kwire_pipeline.engine.cluster import Cluster, Topic
from kwire_pipeline.engine.lease import Files
from kwire_pipeline.engine.offsets import Offsets, Ranges, dump, later, offsets_of, parse
from kwire_pipeline.engine.schema import parse_ddl
from kwire_pipeline.errors import Failure, Refusal
from kwire_pipeline.explain import problem_of
from kwire_pipeline.records.frames import LETTER
from kwire_pipeline.tables.letter_records import (
    LETTER_AT,
    LETTERS_IN,
    WRITTEN,
    Owner,
    headers_of,
    letters_of,
    size_of,
)
from kwire_pipeline.tables.table import (
    LETTERS,
    Entry,
    History,
    Mark,
    Upkeep,
    of_topics,
)

FILE: Final = "letters.json"
SPOT: Final = LETTERS.spot
LARGEST_REQUEST_BYTES: Final = 1 << 20
"""The largest request of a producer by default."""


@attrs.frozen
class Note:
    """The end offsets of the topic before the letters of a batch."""

    topic_id: str
    pipeline_id: str
    batch_id: int
    offsets: Offsets

    @classmethod
    def parse(cls, text: str | None) -> "Note | None":
        """Parse the file; None if it is missing or damaged."""
        try:
            plain = json.loads(text or "null")
            offsets = parse(json.dumps(plain["offsets"]))
            return cls(plain["topic_id"], plain["pipeline_id"], int(plain["batch_id"]), offsets)
        except (ValueError, LookupError, TypeError, AttributeError):
            return None

    def before(self, pipeline_id: str, topic: str) -> dict[int, tuple[int, int]]:
        """Return the batch, if it is of this pipeline id, and the end before it, by partition."""
        if pipeline_id != self.pipeline_id:
            return {}
        ends = self.offsets.get(topic, {}).items()
        return {partition: (self.batch_id, end) for partition, end in ends}


class LetterTopic:
    """The letters of one pipeline in a topic on the source's brokers."""

    def __init__(
        self, spark: SparkSession, topic: str, client: Mapping[str, str], owner: Owner, files: Files
    ) -> None:
        self._spark = spark
        self._topic = topic
        self.name = f"topic {topic}"
        self._client = client
        self._owner = owner
        self._files = files

    def exists(self) -> bool:
        with self._cluster() as cluster:
            return cluster.topic(self._topic) is not None

    def check_ready(self) -> None:
        with self._cluster() as cluster:
            if cluster.topic(self._topic) is None:
                raise Refusal(
                    f"dead_letters.topic: {self._topic} does not exist at "
                    f"{self._client['bootstrap.servers']}: create it with the retention that "
                    "letters need, or correct the name"
                )
            if cluster.topics_with_compaction([self._topic]):
                raise Refusal(
                    f"dead_letters.topic: {self._topic} is compacted, so letters with the same "
                    "key would be lost: set its cleanup.policy to delete, or choose another topic"
                )

    def create(self, schema: StructType) -> None:
        self.check_ready()

    def columns(self) -> StructType:
        return parse_ddl(LETTER, "dead letters")

    def owners(self) -> dict[str, str]:
        """Return nothing: the topic's records name their pipelines, the topic itself does not."""
        return {}

    def add_owner(self, pipeline: str, pipeline_id: str) -> None:
        """Do nothing: each record names its pipeline."""

    def has_batch(self, mark: Mark, *, by_rows: bool) -> bool:
        return self._batch(mark).limit(1).count() > 0

    def finish(self, pipeline: str) -> None:
        """Do nothing: a record is visible as soon as it is acknowledged."""

    def last_batch(self, pipeline_id: str) -> int | None:
        """Return the last batch since the stored offsets; earlier batches have lower numbers."""
        own = self._own(self._note_offsets()).where(F.col("pipeline_id") == pipeline_id)
        number: int | None = own.agg(F.max(F.col("batch_id").cast("bigint"))).collect()[0][0]
        return number

    def rolled_back(self, pipeline_id: str) -> int | None:
        """Return None: a topic cannot be rolled back."""
        return None

    def lacks(self, mark: Mark, *, by_rows: bool) -> bool:
        """Return False: retention may have removed the letters, which is not an error."""
        return False

    def has_all_letters(self, mark: Mark) -> bool:
        if mark.letter_count is None:
            return False
        # After a lost checkpoint, the stored offsets can be of any batch.
        there = of_batch(self._own(None), mark).select(*SPOT).distinct()
        return there.count() == mark.letter_count

    def has_letters(self, pipeline: str, topics: Collection[str]) -> bool:
        return of_topics(self._own(None), topics).limit(1).count() > 0

    def marks(self, pipeline: str) -> list[Mark]:
        """Return the mark of the newest batch, with the ranges of partitions that have letters.

        The batch's ranges in other partitions are not known here.
        """
        own = self._own(None)
        number = F.col("batch_id").cast("bigint").alias("number")
        newest = own.orderBy(F.desc(WRITTEN), F.desc(number)).limit(1).collect()
        if not newest:
            return []
        batches = (
            own.where(F.col("pipeline_id") == newest[0]["pipeline_id"])
            .groupBy(number, "letter_count")
            .agg(F.collect_set("offsets").alias("offsets"))
            .orderBy(F.desc("number"))
            .limit(1)
            .collect()
        )
        count = batches[0]["letter_count"]
        return [
            Mark(
                newest[0]["pipeline_id"],
                batches[0]["number"],
                _join_ranges(batches[0]["offsets"]),
                letter_count=int(count) if count else None,
            )
        ]

    def marks_of(self, pipeline_ids: Collection[str]) -> list[Mark]:
        """Return nothing: the topic has no owners whose ids could be known."""
        return []

    def history(self, pipeline_id: str, since: datetime.datetime) -> History:
        """Return the batches whose letters were written after a time, and are still there."""
        own = self._own(None).where(
            (F.col("pipeline_id") == pipeline_id) & (F.col(WRITTEN) >= since)
        )
        batches = (
            own.groupBy(F.col("batch_id").cast("bigint").alias("number"))
            .agg(
                F.unix_millis(F.max(WRITTEN)).alias("at"),
                F.count_distinct(*SPOT).alias("letters"),
                F.collect_set("offsets").alias("offsets"),
            )
            .orderBy("number")
            .collect()
        )
        return History(
            tuple(
                Entry(
                    mark=Mark(pipeline_id, row["number"], _join_ranges(row["offsets"])),
                    at=datetime.datetime.fromtimestamp(row["at"] / 1000, datetime.UTC),
                    rows=row["letters"],
                )
                for row in batches
            )
        )

    def append(self, frame: DataFrame, mark: Mark) -> None:
        with self._cluster() as cluster:
            topic = self._describe(cluster)
            note = {
                "topic_id": topic.topic_id,
                "pipeline_id": mark.pipeline_id,
                "batch_id": mark.batch_id,
                "offsets": json.loads(dump(cluster.ends([topic]))),
            }
        self._files.write(FILE, json.dumps(note) + "\n")
        self._send(frame, mark)

    def add(self, frame: DataFrame) -> None:
        raise Refusal(f"{self.name}: dead letters are added to a topic by batches only")

    def append_rest(self, letters: DataFrame, mark: Mark) -> None:
        there = self._batch(mark).select(*SPOT).distinct()
        self._send(letters.join(there, list(SPOT), "left_anti"), mark)

    def check_sizes(self, letters: DataFrame, mark: Mark) -> None:
        limit = self._max_bytes()
        if limit is None:
            return
        spot = F.format_string("partition %d of %s, offset %d", "partition", "topic", "offset")
        records = letters.withColumns({"headers": headers_of(mark, self._owner), "spot": spot})
        size, place = records.agg(F.max(size_of()), F.max_by("spot", size_of())).collect()[0]
        if size is not None and size > limit:
            raise Refusal(
                f"the dead letter of {place} has {size:,} bytes with its headers, more than the "
                f"{limit:,} of max.message.bytes of topic {self._topic}: raise it there, then run "
                "again"
            )

    def delete_letters(self, spots: DataFrame) -> int:
        raise Refusal(f"{self.name}: records of a topic cannot be deleted one by one")

    def positions(self) -> Offsets:
        positions: Offsets = {}
        for row in self._own(None).select("offsets").distinct().collect():
            positions = later(positions, Ranges.parse(row[0]).ends)
        return positions

    def read(self) -> DataFrame:
        return self._own(None).dropDuplicates(list(SPOT)).select(*self.columns().names)

    def copies(self) -> int:
        own = self._own(None).select(*SPOT)
        return own.count() - own.distinct().count()

    def may_lack_old(self) -> bool:
        with self._cluster() as cluster:
            beginnings = cluster.beginnings([self._describe(cluster)])
        return any(offset > 0 for offset in beginnings[self._topic].values())

    def kept_from(self, pipeline_id: str) -> Offsets:
        """Return the offsets of the batches whose letters were written after all removed ones."""
        with self._cluster() as cluster:
            beginnings = cluster.beginnings([self._describe(cluster)])[self._topic]
        own, number = self._own(None), F.col("batch_id").cast("bigint")
        batch = F.struct("pipeline_id", number.alias("number"))
        first = own.groupBy(LETTERS_IN).agg(F.min_by(batch, LETTER_AT)).collect()
        thinned = newest_thinned(
            beginnings,
            {row[0]: (row[1][0], row[1][1]) for row in first},
            {} if (note := self._note()) is None else note.before(pipeline_id, self._topic),
            pipeline_id,
        )
        if thinned is None:
            return {}
        later_letters = own.where((F.col("pipeline_id") == pipeline_id) & (number > thinned))
        return starts_of(row[0] for row in later_letters.select("offsets").distinct().collect())

    def protect_marks(self) -> None:
        """Do nothing: retention is a setting of the topic."""

    def compact(self, upkeep: Upkeep) -> str:
        return "left alone, since its retention is a setting of the topic"

    def expire(self, upkeep: Upkeep) -> list[str]:
        return []

    def check_delete(self) -> None:
        if self.exists() and self._own(None).limit(1).count():
            raise Refusal(
                f"{self.name} has letters of pipeline {self._owner.pipeline}, and records of a "
                "topic cannot be deleted one by one: choose another topic for dead_letters.topic, "
                "or delete its records (kafka-delete-records.sh), then run again"
            )

    def delete(self, topics: Sequence[str]) -> None:
        """Do nothing: `check_delete` has found no letters to delete."""

    def discard_marks(self, pipeline: str) -> None:
        """Do nothing: the marks are in the letters, and there are no letters."""

    def _send(self, letters: DataFrame, mark: Mark) -> None:
        """Write letters; each is acknowledged by all in-sync replicas."""
        limit = max(self._max_bytes() or 0, LARGEST_REQUEST_BYTES)
        producer = {
            "acks": "all",
            "max.request.size": str(limit),
            "buffer.memory": str(max(32 << 20, 2 * limit)),
            **self._client,
        }
        headers = headers_of(mark, self._owner).alias("headers")
        records = letters.select("key", "value", headers)
        options = {f"kafka.{name}": text for name, text in producer.items()}
        try:
            records.write.format("kafka").options(**options).option("topic", self._topic).save()
        except (PySparkException, Py4JJavaError) as error:
            raise unsent(self.name, error) from error

    def _batch(self, mark: Mark) -> DataFrame:
        """Return the existing letters of a batch."""
        return of_batch(self._own(self._note_offsets(mark)), mark)

    def _own(self, since: Offsets | None) -> DataFrame:
        """Return this pipeline's letters, from ``since`` onwards or from the topic's start."""
        with self._cluster() as cluster:
            topic = self._describe(cluster)
            start = cluster.beginnings([topic])
        # A partition added after the offsets were stored is read from its beginning.
        start = later(start, since or {})
        options = {f"kafka.{name}": text for name, text in self._client.items()}
        options |= {
            "assign": json.dumps({self._topic: list(topic.partitions)}),
            "startingOffsets": dump(start),
            "includeHeaders": "true",
            "failOnDataLoss": "false",
        }
        records = self._spark.read.format("kafka").options(**options).load()
        is_own = (F.col("pipeline") == self._owner.pipeline) & (F.col("table") == self._owner.table)
        return letters_of(records).where(is_own)

    def _note_offsets(self, mark: Mark | None = None) -> Offsets | None:
        """Return the topic's offsets before a batch's letters; None if they are not known.

        Without a mark, return those before the last batch.
        """
        note = self._note()
        if note is None:
            return None  # The whole topic is read.
        if mark is None or note.pipeline_id != mark.pipeline_id:
            return note.offsets
        return note.offsets if note.batch_id <= mark.batch_id else None

    def _note(self) -> "Note | None":
        note = Note.parse(self._files.read(FILE))
        if note is None:
            return None
        with self._cluster() as cluster:
            return note if note.topic_id == self._describe(cluster).topic_id else None

    def _max_bytes(self) -> int | None:
        """Return the size limit of a record; None if the brokers do not reveal it."""
        with self._cluster() as cluster:
            text = cluster.topic_settings([self._topic], "max.message.bytes").get(self._topic)
        return None if text is None else int(text)

    def _describe(self, cluster: Cluster) -> Topic:
        return cluster.topics([self._topic])[self._topic]

    def _cluster(self) -> closing[Cluster]:
        return closing(Cluster(self._spark, self._client))


def unsent(name: str, error: Exception) -> Refusal | Failure:
    """Return why letters cannot be written to a topic; a missing permission is a refusal."""
    problem = problem_of(error)
    return type(problem)(f"{name}: dead letters cannot be written: {problem}")


def _join_ranges(texts: Iterable[str]) -> Ranges:
    """Return the ranges that the letters of one batch name."""
    return Ranges(tuple(sorted(part for text in texts for part in Ranges.parse(text).ranges)))


def newest_thinned(
    beginnings: Mapping[int, int],
    first: Mapping[int, tuple[str, int]],
    before: Mapping[int, tuple[int, int]],
    pipeline_id: str,
) -> int | None:
    """Return the newest batch of which retention may have removed letters; None if unknown.

    ``first`` has the pipeline id and the batch of the first letter in each partition of the topic,
    ``before`` the last batch and the partition's end before it. Batches are written in order, so a
    partition has all letters of the batches after its first letter's. If that letter is of a former
    pipeline id, nothing of the current one is gone, which -1 stands for.
    """
    newest = -1
    for partition, start in beginnings.items():
        bounds = []
        if partition in first:
            first_id, number = first[partition]
            bounds.append(number if first_id == pipeline_id else -1)
        last, end = before.get(partition, (0, -1))
        if start <= end:
            bounds.append(last - 1)
        if start > 0 and not bounds:
            return None
        newest = max(newest, min(bounds) if start > 0 else -1)
    return newest


def starts_of(texts: Iterable[str]) -> Offsets:
    """Return where the first of some batches begins in each partition, from the letters' ranges."""
    parts = sorted(part for text in texts for part in Ranges.parse(text).ranges)
    return offsets_of((part.topic, part.partition, part.start) for part in reversed(parts))


def of_batch(letters: DataFrame, mark: Mark) -> DataFrame:
    """Return the letters of a batch."""
    is_own = F.col("pipeline_id") == mark.pipeline_id
    return letters.where(is_own & (F.col("batch_id") == str(mark.batch_id)))
