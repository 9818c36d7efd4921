"""A dead letter as a record of a topic, and back: functions from frame to frame.

The record has the original record's key and value. Its headers are the original headers, followed
by `HEADERS` in order, each a text. An original header may have one of these names, because the last
headers are always the letter's own.
"""

from typing import Final

import attrs
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kwire_pipeline.tables.table import BATCH, LETTER_COUNT, NAME, OFFSETS, PIPELINE, Mark

PREFIX: Final = "kwire."
TABLE: Final = f"{PREFIX}table"
RECORD: Final = ("topic", "partition", "offset", "timestamp", "timestamp_type", "reason")
"""The columns of a letter that become headers."""
HEADERS: Final = (
    *(f"{PREFIX}{name.replace('_', '-')}" for name in RECORD),
    NAME,
    TABLE,
    PIPELINE,
    BATCH,
    LETTER_COUNT,
    OFFSETS,
)
"""The headers of a letter; the offsets are the batch's range in the record's partition."""
MARK: Final = ("pipeline", "table", "pipeline_id", "batch_id", "letter_count", "offsets")
"""The columns with the other headers of a letter."""
WRITTEN: Final = "written"
"""The column with the record's time in the dead-letter topic."""
LETTERS_IN: Final = "letters_in"
LETTER_AT: Final = "letter_at"
PLACE: Final = {"timestamp": WRITTEN, "partition": LETTERS_IN, "offset": LETTER_AT}
"""The columns with the record's place in the dead-letter topic."""
KIND: Final = "array<struct<key: string, value: binary>>"
OVERHEAD_BYTES: Final = 160
"""The maximum number of bytes that a batch of one record adds to its key, value and headers."""
HEADER_OVERHEAD_BYTES: Final = 8


@attrs.frozen
class Owner:
    """The pipeline whose letters are meant, as named in the headers."""

    pipeline: str
    table: str


def headers_of(mark: Mark, owner: Owner) -> Column:
    """Return the record headers for a letter of a batch."""
    ranges = F.from_json(F.lit(mark.ranges.dump()), "map<string, map<string, array<bigint>>>")
    partition = F.col("partition").cast("string")
    own_range = F.try_element_at(F.try_element_at(ranges, F.col("topic")), partition)
    texts = {
        **{header: F.col(column) for header, column in zip(HEADERS, RECORD, strict=False)},
        f"{PREFIX}timestamp": F.unix_millis("timestamp"),
        NAME: F.lit(owner.pipeline),
        TABLE: F.lit(owner.table),
        PIPELINE: F.lit(mark.pipeline_id),
        BATCH: F.lit(str(mark.batch_id)),
        LETTER_COUNT: F.lit("" if mark.letter_count is None else str(mark.letter_count)),
        OFFSETS: F.to_json(F.create_map("topic", F.create_map(partition, own_range))),
    }
    own = F.array(
        *[
            F.struct(
                F.lit(header).alias("key"),
                texts[header].cast("string").cast("binary").alias("value"),
            )
            for header in HEADERS
        ]
    )
    before = F.coalesce(F.col("headers"), F.array().cast(KIND))
    return F.concat(before, own).cast(KIND)


def letters_of(records: DataFrame) -> DataFrame:
    """Return the letters among a topic's records, each with its mark.

    The columns are those of a table of letters, followed by `MARK` and `PLACE`.
    """
    count = len(HEADERS)
    total = F.coalesce(F.size("headers"), F.lit(0))
    last = F.slice("headers", F.greatest(total - count + 1, F.lit(1)), F.lit(count))
    names = F.transform(last, lambda header: header["key"])
    place = [F.col(name).alias(as_) for name, as_ in PLACE.items()]
    letters = records.select("key", "value", "headers", last.alias("last"), *place).where(
        F.equal_null(names, F.array(*map(F.lit, HEADERS)))
    )
    texts = {
        header: F.element_at("last", number)["value"].cast("string")
        for number, header in enumerate(HEADERS, 1)
    }
    original = F.slice("headers", F.lit(1), F.size("headers") - count)
    return letters.select(
        "key",
        "value",
        F.when(F.size("headers") > count, original).alias("headers"),
        texts[f"{PREFIX}topic"].alias("topic"),
        texts[f"{PREFIX}partition"].cast("int").alias("partition"),
        texts[f"{PREFIX}offset"].cast("bigint").alias("offset"),
        F.timestamp_millis(texts[f"{PREFIX}timestamp"].cast("bigint")).alias("timestamp"),
        texts[f"{PREFIX}timestamp-type"].cast("int").alias("timestamp_type"),
        texts[f"{PREFIX}reason"].alias("reason"),
        *[
            texts[header].alias(column)
            for header, column in zip(HEADERS[len(RECORD) :], MARK, strict=True)
        ],
        *PLACE.values(),
    )


def size_of() -> Column:
    """Return the maximum number of bytes that a record can take in its topic, uncompressed."""
    headers = F.aggregate(
        "headers",
        F.lit(0).cast("bigint"),
        lambda total_bytes, header: (
            total_bytes
            + F.octet_length(header["key"])
            # A header's value may be null.
            + F.coalesce(F.octet_length(header["value"]), F.lit(0))
            + HEADER_OVERHEAD_BYTES
        ),
    )
    parts = [F.coalesce(F.octet_length(name), F.lit(0)) for name in ("key", "value")]
    return headers + parts[0] + parts[1] + OVERHEAD_BYTES
