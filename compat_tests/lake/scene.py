"""A pipeline whose table and checkpoint are in an object store, read by others than Spark."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from compat_tests.harness.broker import Broker
from compat_tests.lake import readers
from compat_tests.lake.install import readers_python
from compat_tests.lake.servers import BUCKET, PASSWORD, REGION, USER, Lake
from compat_tests.pipeline.scene import Scene
from kwire_pipeline.config.model import Catalog, Table
from kwire_pipeline.config.values import CatalogType, TableFormat
from kwire_pipeline.engine.session import iceberg_catalog
from kwire_pipeline.engine.storage import Folder

CATALOG = "lake"
QUICK_ERRORS = {"fs.s3a.attempts.maximum": "1", "fs.s3a.retry.limit": "1"}
"""Hadoop's own tries again take minutes; a test need not wait for them."""


def use(spark: SparkSession, lake: Lake) -> None:
    """Let a session reach the objects of a lake."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    for key, text in (lake.hadoop_options() | QUICK_ERRORS).items():
        hadoop.set(key, text)


@attrs.define
class LakeScene(Scene):
    """One pipeline on a lake; its checkpoint has a folder of its own in the bucket."""

    lake: Lake | None = None

    @classmethod
    def on(
        cls, lake: Lake, spark: SparkSession, broker: Broker, topic: str, kind: TableFormat
    ) -> LakeScene:
        place = f"s3a://{BUCKET}/{uuid.uuid4().hex[:8]}"
        scene = cls(spark, broker, topic, Path("unused"), lake=lake)
        table = attrs.evolve(scene.pipeline.table, format=kind, warehouse=f"{place}/tables")
        if kind is TableFormat.ICEBERG:
            table = attrs.evolve(table, warehouse=None, catalog=catalog_of(lake))
        scene.pipeline = attrs.evolve(scene.pipeline, table=table, checkpoint=f"{place}/checkpoint")
        if kind is TableFormat.ICEBERG:
            for key, text in iceberg_catalog(scene.pipeline).items():
                spark.conf.set(key, text)
        return scene

    @property
    def checkpoint(self) -> Folder:
        return Folder(self.spark, self.pipeline.checkpoint)

    def roll_back(self) -> None:
        """Bring the table and the dead letters back to the state before their newest commit."""
        for name in self.table_names():
            if self.pipeline.table.format is TableFormat.DELTA:
                history = self.spark.sql(f"DESCRIBE HISTORY delta.`{self.url_of(name)}`")
                (last,) = history.agg(F.max("version")).collect()[0]
                self.spark.sql(
                    f"RESTORE TABLE delta.`{self.url_of(name)}` TO VERSION AS OF {last - 1}"
                )
                continue
            history = self.spark.table(f"{CATALOG}.{name}.history").orderBy("made_current_at")
            former = history.collect()[-2].snapshot_id
            self.spark.sql(f"CALL {CATALOG}.system.rollback_to_snapshot('{name}', {former})")

    def table_names(self) -> tuple[str, str]:
        assert self.pipeline.dead_letters.table is not None
        return self.pipeline.table.name, self.pipeline.dead_letters.table

    def url_of(self, name: str) -> str:
        """Return the folder of a Delta table."""
        return f"{self.pipeline.table.warehouse}/{name.replace('.', '/')}"

    def check_readers(self) -> None:
        """Assert that another reader finds the rows that Spark finds."""
        assert self.lake is not None
        columns = ["kafka_partition", "kafka_offset", "id"]
        own = sorted([row[name] for name in columns] for row in self.rows())
        table = self.pipeline.table
        assert sorted(read_apart(self.lake, table, table.name, columns)) == own


def catalog_of(lake: Lake) -> Catalog:
    """Return the catalog of a pipeline's Iceberg tables."""
    return Catalog(
        name=CATALOG,
        type=CatalogType.REST,
        uri=lake.catalog.url,
        options=lake.catalog_options(),
    )


def read_apart(
    lake: Lake, table: Table, name: str, columns: Sequence[str]
) -> list[list[int | str]]:
    """Return the rows of a table, each as the values of its columns, read without Spark."""
    rows: list[list[int | str]] = ask(lake, table, name, {"columns": list(columns)})
    return rows


def roll_back_apart(lake: Lake, table: Table, name: str) -> None:
    """Bring a table back to the state before its newest commit, without Spark."""
    ask(lake, table, name, {"roll_back": True})


def ask(lake: Lake, table: Table, name: str, request: dict[str, object]) -> Any:
    """Return what `readers.py` answers to a request about a table."""
    request = {"format": table.format.value, **request}
    if table.format is TableFormat.ICEBERG:
        options = {**lake.catalog_options(), "type": "rest", "uri": lake.catalog.url}
        del options["io-impl"]  # a class of Java
        request |= {"options": {**options, "s3.region": REGION}, "table": name}
    else:
        url = f"{table.warehouse}/{name.replace('.', '/')}".replace("s3a://", "s3://")
        options = {
            "AWS_ENDPOINT_URL": lake.store.url,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": USER,
            "AWS_SECRET_ACCESS_KEY": PASSWORD,
            "AWS_ALLOW_HTTP": "true",
        }
        request |= {"options": options, "table": url}
    done = subprocess.run(
        [str(readers_python()), readers.__file__],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
