"""A folder of Parquet files: any Parquet reader sees only committed files.

A batch is written to a folder beside the table; then one file names all of its files (the commit);
then each file is moved into the table. A run that ends before the commit has added nothing; after
the commit, the next run moves the rest, or the same run before it repeats the batch. So a reader
may briefly see part of the newest batch, but never a row twice, and never a row of an uncommitted
batch. The moves are finished before a run compares offsets with the table, because the next run may
classify a batch differently, and before the next commit, which replaces the names of the files.

Layout: ``_kwire/table.json`` has the table's id, columns and owners, ``_kwire/commits`` the last
commit of each pipeline; Spark and other readers skip names that begin with an underscore.
"""

import datetime
import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import attrs
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from kwire_pipeline.config.values import Partition
from kwire_pipeline.engine.offsets import Offsets, Ranges, later
from kwire_pipeline.engine.schema import Difference, with_fields
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.errors import Refusal
from kwire_pipeline.tables.folder_columns import FolderColumn, without_derived
from kwire_pipeline.tables.table import (
    Atomic,
    Mark,
    Origin,
    Size,
    Upkeep,
    positions_of_rows,
    refuse_partitions,
)

META: Final = "_kwire"
FILE: Final = "table.json"
STAGING: Final = ".staging"
SUFFIX: Final = ".parquet"


@attrs.frozen(kw_only=True)
class Meta:
    """The file that makes a folder a table."""

    table_id: str
    columns: str
    """The schema as Spark's JSON."""
    owners: dict[str, str]
    partitions: list[str] | None = None
    """The columns of the folders; None in files from earlier versions."""

    def dump(self) -> str:
        return json.dumps(attrs.asdict(self), indent=2) + "\n"


@attrs.frozen(kw_only=True)
class Commit:
    """The last batch of a pipeline: each file with its path in staging and in the table."""

    batch_id: int
    ranges: str
    moves: tuple[tuple[str, str], ...]
    topic_ids: Mapping[str, str] = attrs.field(factory=dict)
    letter_count: int | None = None

    def dump(self) -> str:
        return json.dumps(attrs.asdict(self), indent=1) + "\n"

    @classmethod
    def parse(cls, text: str) -> "Commit":
        plain = json.loads(text)
        plain["moves"] = tuple((source, target) for source, target in plain["moves"])
        return cls(**plain)


class ParquetTable(Atomic):
    """A table in a folder."""

    def __init__(
        self, spark: SparkSession, url: str, origin: Origin, *, partition_by: Sequence[Partition]
    ) -> None:
        self._spark = spark
        self.name = url
        self._root = Folder(spark, url)
        self._meta = self._root.at(META)
        self._staging = Folder(spark, f"{url.rstrip('/')}{STAGING}")
        self._origin = origin
        self._partitions = tuple(map(FolderColumn.of, partition_by))

    @property
    def _folders(self) -> list[str]:
        """The names of the columns that name folders."""
        return [column.name for column in self._partitions]

    def exists(self) -> bool:
        return self._meta.exists(FILE)

    def create(self, schema: StructType) -> None:
        # A run that ended during this call has left a folder without the file.
        if self._root.names() not in ([], [META]):
            raise Refusal(
                f"{self.name} has files and is not a table of a pipeline: choose another name, or "
                "move the files away"
            )
        fields = [*schema.fields]
        names = {field.name.lower() for field in fields}
        fields += [
            StructField(column.name, DataType.fromDDL(column.kind or "STRING"))
            for column in self._partitions
            if column.name.lower() not in names
        ]
        meta = Meta(
            table_id=uuid.uuid4().hex,
            columns=StructType(fields).json(),
            owners={},
            partitions=self._folders,
        )
        self._meta.write(FILE, meta.dump())

    def evolve(self, changes: Difference) -> None:
        if changes.widened:
            raise Refusal(f"{self.name}: columns of Parquet cannot be widened: choose a new table")
        columns = with_fields(self._columns(), changes.added).json()
        self._meta.write(FILE, attrs.evolve(self._read(), columns=columns).dump())

    def check_partitions(self) -> None:
        """Check that the folder layout matches the file, because readers accept only one layout."""
        own = self._read().partitions
        if own is not None:
            refuse_partitions(self.name, own, self._folders)

    def table_id(self) -> str:
        return self._read().table_id

    def columns(self) -> StructType:
        """Return the columns of rows, without those that only name a partition."""
        return without_derived(self._columns(), self._partitions)

    def owners(self) -> dict[str, str]:
        return self._read().owners

    def add_owner(self, pipeline: str, pipeline_id: str) -> None:
        meta = self._read()
        owners = {**meta.owners, pipeline: pipeline_id}
        self._meta.write(FILE, attrs.evolve(meta, owners=owners).dump())

    def has_batch(self, mark: Mark, *, by_rows: bool) -> bool:
        commit = self._commit(mark.pipeline_id)
        return commit is not None and commit.batch_id == mark.batch_id

    def keys(self) -> tuple[str, ...]:
        return ()

    def set_keys(self, keys: Sequence[str]) -> None:
        raise Refusal(f"{self.name} is a Parquet table, whose rows cannot be changed")

    def finish(self, pipeline: str) -> None:
        pipeline_id = self.owners().get(pipeline)
        commit = None if pipeline_id is None else self._commit(pipeline_id)
        if commit is not None:
            self._move(commit)

    def last_batch(self, pipeline_id: str) -> int | None:
        commit = self._commit(pipeline_id)
        return None if commit is None else commit.batch_id

    def rolled_back(self, pipeline_id: str) -> int | None:
        """Return None: a folder has no earlier versions."""
        return None

    def has_letters(self, pipeline: str, topics: Collection[str]) -> bool:
        """Return whether the pipeline has a commit; `finish` may still have to move its files."""
        pipeline_id = self.owners().get(pipeline)
        return pipeline_id is not None and self._commit(pipeline_id) is not None

    def marks(self, pipeline: str) -> list[Mark]:
        pipeline_id = self.owners().get(pipeline)
        return [] if pipeline_id is None else self.marks_of([pipeline_id])

    def marks_of(self, pipeline_ids: Collection[str]) -> list[Mark]:
        commits = {pipeline_id: self._commit(pipeline_id) for pipeline_id in pipeline_ids}
        return [
            Mark(
                pipeline_id,
                commit.batch_id,
                Ranges.parse(commit.ranges),
                commit.topic_ids,
                commit.letter_count,
            )
            for pipeline_id, commit in commits.items()
            if commit is not None
        ]

    def history(self, pipeline_id: str, since: datetime.datetime) -> None:
        """Return None: only the last commit of each pipeline is kept."""

    def append(self, frame: DataFrame, mark: Mark) -> None:
        derived = {c.name: F.expr(c.expression) for c in self._partitions if c.expression}
        folder = f"{mark.pipeline_id[:8]}-{mark.batch_id}"
        staged = self._staging.at(folder)
        staged.delete()
        writer = frame.withColumns(derived).write
        if self._partitions:
            writer = writer.partitionBy(*self._folders)
        writer.parquet(staged.url)
        files = sorted(path for path, _ in staged.files() if path.endswith(SUFFIX))
        commit = Commit(
            batch_id=mark.batch_id,
            ranges=mark.ranges.dump(),
            topic_ids=dict(mark.topic_ids),
            letter_count=mark.letter_count,
            moves=tuple(
                (f"{folder}/{path}", _target(path, folder, n)) for n, path in enumerate(files)
            ),
        )
        self._meta.at("commits").write(f"{mark.pipeline_id}.json", commit.dump())
        self._move(commit)

    def forgotten_before(self) -> datetime.datetime | None:
        return None

    def forget(self, before: datetime.datetime) -> None:
        raise Refusal(f"{self.name} is a Parquet table, from which rows cannot be deleted")

    def merge(
        self,
        changes: DataFrame,
        keys: Sequence[str],
        mark: Mark | None,
        order: Sequence[str] = (),
    ) -> None:
        raise Refusal(f"{self.name} is a Parquet table, whose rows cannot be changed")

    def add(self, frame: DataFrame) -> None:
        raise Refusal(f"{self.name}: rows are added to a Parquet table by batches only")

    def delete_letters(self, spots: DataFrame) -> int:
        raise Refusal(f"{self.name} is a Parquet table, from which rows cannot be deleted")

    def positions(self) -> Offsets:
        positions = positions_of_rows(self.read(), self._origin)
        for pipeline_id in self.owners().values():
            commit = self._commit(pipeline_id)
            if commit is not None:
                positions = later(positions, Ranges.parse(commit.ranges).ends)
        return positions

    def read(self) -> DataFrame:
        return self._spark.read.schema(self._columns()).parquet(self.name)

    def size(self) -> Size:
        files = [size for path, size in self._root.files() if not path.startswith(META)]
        return Size(rows=self.read().count(), files=len(files), bytes=sum(files))

    def protect_marks(self) -> None:
        """Do nothing: commits of Parquet tables do not expire."""

    def compact(self, upkeep: Upkeep) -> str:
        return "Parquet tables are not compacted: choose iceberg or delta for that"

    def expire(self, upkeep: Upkeep) -> list[str]:
        return []

    def delete(self, topics: Sequence[str]) -> None:
        self.check_delete()

    def discard_marks(self, pipeline: str) -> None:
        """Do nothing: a commit belongs to its pipeline's current id."""

    def check_delete(self) -> None:
        if self._root.names() not in ([], [META]):
            raise Refusal(
                f"{self.name} is a Parquet table, from which rows cannot be deleted: remove the "
                "folder, then run again"
            )

    def _move(self, commit: Commit) -> None:
        """Move a commit's files, except those that an earlier run has already moved."""
        for place, target in commit.moves:
            source = self._staging.at(place)
            if source.exists():
                self._move_file(source, self._root.at(target))
        for folder in {place.partition("/")[0] for place, _ in commit.moves}:
            self._staging.delete(folder)

    def _move_file(self, source: Folder, target: Folder) -> None:
        """Move one file; if only its deletion is left of an earlier move, delete it.

        An object store moves a file by copying it, and the copy appears complete or not at all. The
        name of the target belongs to this file alone.
        """
        try:
            source.move_to(target)
        except Py4JJavaError:
            if not target.exists():
                raise
            source.delete()

    def _commit(self, pipeline_id: str) -> Commit | None:
        text = self._meta.at("commits").read(f"{pipeline_id}.json")
        return None if text is None else Commit.parse(text)

    def _read(self) -> Meta:
        text = self._meta.read(FILE)
        if text is None:
            raise Refusal(f"{self.name} is not a table of a pipeline")
        return Meta(**json.loads(text))

    def _columns(self) -> StructType:
        return StructType.fromJson(json.loads(self._read().columns))


def _target(path: str, folder: str, number: int) -> str:
    """Return a staged file's place in the table: its partition, and a unique name."""
    partition, slash, _ = path.rpartition("/")
    return f"{partition}{slash}batch-{folder}-{number:04d}{SUFFIX}"
