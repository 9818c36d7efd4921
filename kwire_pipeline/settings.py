"""The settings of one run of the job, from the command line.

Options of Spark and Kafka keep their own names and are passed on unchanged; the options below
are those that the job itself acts on.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

FORMATS: Final = ("parquet", "iceberg")
AVAILABLE_NOW: Final = "available-now"

SOURCE_DEFAULTS: Final = {
    "startingOffsets": "earliest",
    "failOnDataLoss": "true",
    "kafka.isolation.level": "read_committed",
}
"""By default, aborted records are not read, and missing records fail the job."""


@dataclass(frozen=True, kw_only=True)
class Partition:
    """One partition column: its name, and the SQL expression it is computed from (or itself)."""

    name: str
    expression: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Partition":
        name, _, expression = text.partition("=")
        return cls(name=name.strip(), expression=expression.strip() or None)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one run."""

    bootstrap_servers: str
    topic: str
    schema: str
    """Spark's DDL: ``order_id STRING NOT NULL, amount DOUBLE``."""
    table: str
    """A folder for parquet, ``catalog.namespace.name`` for iceberg."""
    dead_letters: str
    checkpoint: str
    format: str = "parquet"
    partition_by: tuple[Partition, ...] = ()
    trigger: str = AVAILABLE_NOW
    """``available-now``, or an interval such as ``30 seconds``."""
    master: str | None = None
    warehouse: str | None = None
    """The folder in which a file-based Iceberg catalog keeps its tables."""
    source_options: Mapping[str, str] = field(default_factory=dict)
    sink_options: Mapping[str, str] = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="kwire-pipeline", description="Turn a topic of JSON records into a partitioned table."
    )
    need = top.add_argument_group("what and where")
    need.add_argument(
        "--bootstrap-servers",
        default="127.0.0.1:9092",
        metavar="HOST:PORT,...",
        help="default: %(default)s",
    )
    need.add_argument("--topic", required=True, help="one that exists; records are JSON objects")
    need.add_argument("--schema", required=True, help="Spark's DDL, or @FILE that holds it")
    need.add_argument(
        "--table", required=True, help="folder (parquet) or catalog.db.name (iceberg)"
    )
    need.add_argument("--dead-letters", required=True, help="table of the records that do not fit")
    need.add_argument("--checkpoint", required=True, help="folder that remembers what is done")
    how = top.add_argument_group("how")
    how.add_argument("--format", choices=FORMATS, default="parquet", help="default: %(default)s")
    how.add_argument(
        "--partition-by",
        action="append",
        default=[],
        metavar="COLUMN[=EXPRESSION]",
        help="a column of the table, or a new one and its SQL; may be repeated",
    )
    how.add_argument(
        "--trigger",
        default=AVAILABLE_NOW,
        help="%(default)s (what is there, then end), or an interval such as '30 seconds'",
    )
    how.add_argument("--master", help="Spark master (default: Spark's own, or local[*])")
    how.add_argument("--warehouse", help="folder of a file-based Iceberg catalog named `kwire`")
    for option, meaning in (
        ("--source-option", "of Spark's Kafka source, such as maxOffsetsPerTrigger=10000"),
        ("--sink-option", "of the table's writer"),
        ("--conf", "of the Spark session"),
    ):
        how.add_argument(option, action="append", default=[], metavar="KEY=VALUE", help=meaning)
    return top


def read(arguments: Sequence[str] | None = None) -> Settings:
    """Read settings from the command line; exit with a message on bad usage."""
    top = parser()
    options = top.parse_args(arguments)
    schema: str = options.schema
    if schema.startswith("@"):
        try:
            schema = Path(schema[1:]).read_text()
        except OSError as error:
            top.error(f"--schema {schema}: {error.strerror}")
    if options.format == "iceberg" and options.warehouse is None and not options.conf:
        top.error("--format iceberg needs --warehouse, or a catalog given by --conf")
    try:
        return Settings(
            bootstrap_servers=options.bootstrap_servers,
            topic=options.topic,
            schema=" ".join(schema.split()),
            table=options.table,
            dead_letters=options.dead_letters,
            checkpoint=options.checkpoint,
            format=options.format,
            partition_by=tuple(map(Partition.parse, options.partition_by)),
            trigger=options.trigger,
            master=options.master,
            warehouse=options.warehouse,
            source_options=pairs(options.source_option),
            sink_options=pairs(options.sink_option),
            conf=pairs(options.conf),
        )
    except ValueError as error:
        top.error(str(error))


def pairs(texts: Sequence[str]) -> dict[str, str]:
    """Return ``["a=1"]`` as ``{"a": "1"}``; raise ValueError that names a text without ``=``."""
    for text in texts:
        if "=" not in text:
            raise ValueError(f"{text}: expected KEY=VALUE")
    return {text.partition("=")[0]: text.partition("=")[2] for text in texts}
