"""The rules between keys: what one value requires of others, and of the schema.

Rules of this file: a rule is a generator of problems, each with the key's path and a text that says
what is wrong and what is expected. The rules do not need Spark; with `transform`, the table's
columns are unknown, and the rules about columns are left to the run.
"""

import datetime
import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import urlparse

from kwire_pipeline.config.avro_schema import parse_avro
from kwire_pipeline.config.ddl import Field, find_field, parse_ddl
from kwire_pipeline.config.idle import idle
from kwire_pipeline.config.json_schema import ddl_of
from kwire_pipeline.config.model import (
    KeyFormat,
    Pipeline,
    Problem,
    RecordFormat,
    Registry,
    Table,
)
from kwire_pipeline.config.spark_options import passed_on
from kwire_pipeline.config.values import (
    LATEST,
    NAME,
    WITH_REGISTRY,
    WITH_USER,
    CatalogType,
    Column,
    Envelope,
    Evolution,
    Format,
    Mode,
    Protocol,
    Root,
    TableFormat,
    TimestampUnit,
    Tombstones,
    Transform,
)

ONE_PUT: Final = ("s3a", "s3", "s3n", "gs", "oss", "cosn", "obs")
"""The schemes of object stores in which a file appears whole, in one request, when it is closed."""
OBJECT_STORES: Final = {*ONE_PUT, "abfs", "abfss", "wasb", "wasbs", "adl"}
"""The schemes of stores where a rename onto an existing file does not fail."""
SAME_STORE: Final = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "wasb"}
"""Schemes that name a folder which another scheme names as well."""
ORIGIN: Final = ("topic", "partition", "offset", "timestamp")
"""The columns that each row has, each prefixed with `table.origin_prefix`."""
IDENTIFIER: Final = re.compile(r"\w+")
AVRO: Final = (Format.AVRO, Format.AVRO_REGISTRY)
NEWEST: Final = "; kwire-pipeline init writes the newest one of the registry"
JSON: Final = (Format.JSON, Format.JSON_REGISTRY)
SCHEMA_HINTS: Final = {
    Format.JSON: ", such as id BIGINT, name STRING",
    Format.AVRO: "",
    Format.AVRO_REGISTRY: NEWEST,
    Format.JSON_REGISTRY: NEWEST,
}
"""The formats that have a schema, each with a hint about where to get one."""
MOMENTS: Final = {"TIMESTAMP", "TIMESTAMP_LTZ"}
"""The types of fields whose numbers have a unit."""
TIMES: Final = {*MOMENTS, "DATE", "TIMESTAMP_NTZ"}


def problems(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield the problems of a configuration whose values are individually valid."""
    yield from _source(pipeline)
    yield from _format("key", pipeline.key, pipeline)
    yield from _table(pipeline)
    yield from _mode(pipeline)
    yield from _dead_letters(pipeline)
    yield from _maintenance(pipeline)
    yield from _on_failure(pipeline)
    yield from _folders(pipeline)
    yield from passed_on(pipeline)
    yield from idle(pipeline)
    if pipeline.transform is not None and not re.fullmatch(
        r"[\w.]+:\w+", pipeline.transform, re.ASCII
    ):
        yield "transform", f"{pipeline.transform!r} is not module:function"
    yield from schema_problems(pipeline)


def _source(pipeline: Pipeline) -> Iterator[Problem]:
    source, security = pipeline.source, pipeline.source.security
    for server in source.bootstrap.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not re.fullmatch("[0-9]+", port) or not 0 < int(port) < 65536:
            yield "source.bootstrap", f"{server.strip()!r} is not host:port"
    if bool(source.topics) == (source.pattern is not None):
        both = "not both" if source.topics else "but there is neither"
        yield "source.topics", f"expected either topics or pattern, {both}"
    if source.start.offsets is not None and set(source.start.offsets) != set(source.topics):
        yield "source.start", "offsets are needed for each of source.topics, and for no other"
    sasl = security.protocol in (Protocol.SASL_PLAINTEXT, Protocol.SASL_SSL)
    has_own_login = any(name.lower() == "kafka.sasl.jaas.config" for name in source.options)
    needs_user = security.mechanism in WITH_USER and not has_own_login
    if sasl and needs_user and (security.username is None or security.password is None):
        yield (
            "source.security.username",
            f"{security.mechanism.value} needs a username and a password",
        )


def _format(part: str, record: RecordFormat, pipeline: Pipeline) -> Iterator[Problem]:
    kind = record.format
    if record.schema == LATEST:
        yield from _latest(part, record, pipeline)
        return
    if kind in JSON and record.schema is not None:
        try:
            fields = _fields(record)
        except ValueError as error:
            yield f"{part}.schema", str(error)
        else:
            yield from _timestamps(part, record, fields)
    if record.schema is None and kind in SCHEMA_HINTS:
        yield f"{part}.schema", f"{kind.value} needs a schema{SCHEMA_HINTS[kind]}"
    if record.schema is not None and kind not in SCHEMA_HINTS:
        yield f"{part}.schema", f"{kind.value} takes no schema"
    if record.schema is not None and kind in AVRO:
        yield from _avro(part, record.schema)
    if kind in WITH_REGISTRY:
        yield from _registry(pipeline.registry, kind)
    if record.timestamps and kind not in JSON:
        yield f"{part}.timestamps", f"{kind.value} has its own timestamps; the units are for json"


def _latest(part: str, record: RecordFormat, pipeline: Pipeline) -> Iterator[Problem]:
    """Yield what keeps a run from following the newest schema of a subject."""
    key, topics = f"{part}.schema", pipeline.source.topics
    if part == "key":
        yield key, "latest is for values; kwire-pipeline init writes the newest schema of keys"
    elif record.format not in WITH_REGISTRY:
        yield key, "latest needs a registry: format avro-registry or json-registry"
    else:
        yield from _registry(pipeline.registry, record.format)
    if record.subject is None and len(topics) != 1:
        yield f"{part}.subject", "latest follows one subject, and there are several topics: name it"
    if pipeline.table.evolution is Evolution.FREEZE:
        yield "table.evolution", "latest needs additive or widen, so that new fields are columns"


def schema_problems(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield the problems of the value's schema, and of the keys that name its fields."""
    yield from _format("value", pipeline.value, pipeline)
    try:
        yield from _columns(pipeline)
    except ValueError:
        return  # A schema that does not parse has already been reported.


def _avro(part: str, schema: str) -> Iterator[Problem]:
    """Yield the problems of an Avro schema; a key may have any type, a value must be a record."""
    try:
        kind = parse_avro(schema)
    except ValueError as error:
        yield f"{part}.schema", str(error)
    else:
        if part == "value" and kind.name != "STRUCT":
            yield "value.schema", "a value's Avro schema has to be a record"


def _registry(registry: Registry, kind: Format) -> Iterator[Problem]:
    if registry.url is None:
        yield "registry.url", f"{kind.value} needs the registry's URL"
    elif not re.fullmatch(r"https?://[^/@\s]+(/[^?#\s]*)?", registry.url):
        yield (
            "registry.url",
            "expected http:// or https://, a host and perhaps a path; a login is registry.username "
            "and registry.password",
        )
    if (registry.username is None) != (registry.password is None):
        yield "registry.username", "basic authentication needs a username and a password"


def _timestamps(part: str, record: RecordFormat, fields: tuple[Field, ...]) -> Iterator[Problem]:
    for path, unit in record.timestamps.items():
        field = find_field(fields, path.split("."))
        if field is None:
            yield f"{part}.timestamps", f"the schema has no field {path}"
            continue
        kind = field.type
        while kind.name in ("ARRAY", "MAP"):
            kind = kind.items[-1]
        if kind.name not in MOMENTS and unit is not TimestampUnit.ISO:
            yield f"{part}.timestamps", f"{path} is {kind.name}, not TIMESTAMP"


def _table(pipeline: Pipeline) -> Iterator[Problem]:
    table, catalog = pipeline.table, pipeline.table.catalog
    for key, name in _names(pipeline).items():
        parts = name.split(".")
        if not all(map(IDENTIFIER.fullmatch, parts)) or len(parts) < 2:
            yield key, f"{name!r} is not NAMESPACE.TABLE, such as shop.orders"
        elif table.format is TableFormat.ICEBERG and parts[0] == catalog.name:
            yield key, f"write it without the catalog's name: {'.'.join(parts[1:])}"
    if not re.fullmatch(NAME, catalog.name):
        yield (
            "table.catalog.name",
            f"{catalog.name!r} is not a name of letters, digits and underscores",
        )
    if table.warehouse is None and (
        table.format is not TableFormat.ICEBERG or catalog.type is CatalogType.HADOOP
    ):
        yield "table.warehouse", f"a {table.format.value} table needs the folder of all tables"
    yield from _hadoop_catalog(table)
    if (
        table.format is TableFormat.ICEBERG
        and catalog.uri is None
        and catalog.type in (CatalogType.REST, CatalogType.HIVE, CatalogType.JDBC)
    ):
        yield "table.catalog.uri", f"a {catalog.type.value} catalog needs its address"
    if table.format is not TableFormat.ICEBERG:
        for partition in table.partition_by:
            if partition.transform in (Transform.BUCKET, Transform.TRUNCATE):
                text = f"{partition}: {table.format.value} tables have no such partitions"
                yield "table.partition_by", text
    if table.format is not TableFormat.ICEBERG and table.sort_by:
        yield "table.sort_by", f"{table.format.value} tables have no sort order"


def _hadoop_catalog(table: Table) -> Iterator[Problem]:
    """Yield a problem if two commits of a table could take place at the same time.

    A hadoop catalog commits by renaming a file to the name of the next version. An object store
    cannot refuse the second of two such renames, so the first commit would be lost. Iceberg's
    `lock-impl` allows only one commit at a time.
    """
    catalog = table.catalog
    if table.format is not TableFormat.ICEBERG or catalog.type is not CatalogType.HADOOP:
        return
    is_hadoop = catalog.options.get("type", "hadoop") == "hadoop"
    warehouse = catalog.options.get("warehouse", table.warehouse) or ""
    scheme = urlparse(warehouse).scheme.lower()
    if is_hadoop and scheme in OBJECT_STORES and "lock-impl" not in catalog.options:
        yield (
            "table.catalog.type",
            f"a hadoop catalog loses commits in an object store such as {scheme}://; use rest, "
            "hive, glue or jdbc",
        )


def _mode(pipeline: Pipeline) -> Iterator[Problem]:
    table = pipeline.table
    if table.mode is Mode.UPSERT:
        if not table.keys:
            yield "table.keys", "upsert needs the columns that identify a row"
        if table.format is TableFormat.PARQUET:
            yield "table.mode", "a parquet table cannot be changed by key; use iceberg or delta"
        yield from _upsert(pipeline)
        return
    if table.keys:
        yield "table.keys", "keys are for mode: upsert"
    if table.sequence_by:
        yield "table.sequence_by", "it is for mode: upsert"
    if table.deletions is not None:
        yield "table.deletions", "it is for mode: upsert"
    if table.envelope is not Envelope.NONE:
        yield "table.envelope", f"a {table.envelope.value} envelope needs mode: upsert"
    if table.tombstones is Tombstones.DELETE:
        yield "table.tombstones", "delete needs mode: upsert"


def _upsert(pipeline: Pipeline) -> Iterator[Problem]:
    table = pipeline.table
    if table.envelope is Envelope.DEBEZIUM and pipeline.value.format not in (Format.JSON, *AVRO):
        kind = pipeline.value.format.value
        yield "table.envelope", f"envelopes are read from json and avro values, not {kind} ones"
    has_deletions = table.envelope is Envelope.DEBEZIUM or table.tombstones is Tombstones.DELETE
    if table.sequence_by and has_deletions and table.deletions is None:
        yield (
            "table.deletions",
            "sequence_by needs the name of a table that remembers deletions, such as "
            f"{table.name}_deletions",
        )
    if table.deletions is not None:
        if not table.sequence_by or not has_deletions:
            yield "table.deletions", "it has no effect without sequence_by and deletions"
        if table.deletions in (table.name, pipeline.dead_letters.table):
            yield "table.deletions", "it is another table of this file"
    for name in table.sequence_by:
        if name in table.keys:
            yield "table.sequence_by", f"{name} is the same in all changes of a key"
    if table.tombstones is Tombstones.DELETE:
        for name in (*table.keys, *table.sequence_by):
            place = _place(pipeline, name)
            if place is None or place.root in (Root.VALUE, Root.SOURCE):
                yield (
                    "table.tombstones",
                    f"a tombstone has no value, so {name} has to come from the record's key, such "
                    f"as columns: {{{name}: key}}",
                )
            elif place.root is Root.EXPRESSION:
                yield (
                    "table.tombstones",
                    f"a tombstone has no value, so {name} cannot be an expression, which could "
                    f"read one: take it from the record's key, such as columns: {{{name}: key}}",
                )


def _place(pipeline: Pipeline, name: str) -> Column | None:
    """Return the place of a column that does not come from the value, by its name in any case."""
    places = {key.lower(): place for key, place in pipeline.columns.items()}
    return places.get(name.lower())


ORPHANS: Final = "where maintain takes its files for orphans: choose another name"


def is_below(name: str, other: str) -> bool:
    """Return whether a table's folder lies inside another table's folder."""
    return name.startswith(f"{other}.")


def _names(pipeline: Pipeline) -> dict[str, str]:
    """Return the names of all tables of a pipeline, by their keys."""
    names = {
        "table.name": pipeline.table.name,
        "table.deletions": pipeline.table.deletions,
        "dead_letters.table": pipeline.dead_letters.table,
    }
    return {key: name for key, name in names.items() if name is not None}


def _dead_letters(pipeline: Pipeline) -> Iterator[Problem]:
    letters = pipeline.dead_letters
    if letters.table is not None and letters.topic is not None:
        yield "dead_letters.topic", "expected table or topic, not both"
    if letters.table == pipeline.table.name:
        yield "dead_letters.table", "it is the table itself"
    if letters.topic is not None and letters.topic in pipeline.source.topics:
        yield "dead_letters.topic", f"{letters.topic} is read by this pipeline"


def _maintenance(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield the settings that `maintain` would refuse."""
    table, day = pipeline.table, datetime.timedelta(days=1)
    if table.format is not TableFormat.PARQUET and pipeline.maintenance.orphans_after < day:
        yield (
            "maintenance.orphans_after",
            "expected at least 1 day: younger files may be those of another writer's next commit",
        )


def _on_failure(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield the settings of a hook that would never be called."""
    command, url = pipeline.on_failure.command, pipeline.on_failure.url
    try:
        shlex.split(command or "")
    except ValueError as error:
        yield "on_failure.command", f"it is not a command with arguments: {error}"
    if url is not None and not url.startswith(("http://", "https://")):
        yield "on_failure.url", "expected http://... or https://..."


def _folders(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield settings that place other files in a table's folder, which `maintain` would remove."""
    names, checkpoint = _names(pipeline), _location(pipeline.checkpoint)
    for key, name in names.items():
        for other in names.values():
            if is_below(name, other):
                yield key, f"it lies in the folder of {other}, {ORPHANS}"
        if any(f"{checkpoint}/".startswith(f"{folder}/") for folder in _homes(pipeline, name)):
            yield "checkpoint", f"it lies in the folder of {name}, {ORPHANS}"


def _homes(pipeline: Pipeline, name: str) -> Iterator[str]:
    """Yield the folders that a table may have; Hive and Glue add a suffix to the namespace."""
    table = pipeline.table
    warehouse = table.catalog.options.get("warehouse", table.warehouse) or ""
    *namespace, own = name.split(".")
    yield _location(posixpath.join(warehouse, *namespace, own))
    if table.catalog.type in (CatalogType.HIVE, CatalogType.GLUE):
        yield _location(posixpath.join(warehouse, f"{'.'.join(namespace)}.db", own))


def _location(text: str) -> str:
    """Return a folder in the form that all ways to write it have in common.

    Iceberg's clients and Hadoop's may name one store by different schemes.
    """
    url = urlparse(text)
    if url.scheme in ("", "file"):
        return posixpath.abspath(url.path if url.scheme else text)
    scheme = SAME_STORE.get(url.scheme, url.scheme)  # `urlparse` writes it in lower case.
    path = posixpath.normpath(url.path).strip("/")
    return f"{scheme}://{url.netloc}/{path}"


# Columns ---------------------------------------------------------------------------------------
def table_columns(pipeline: Pipeline) -> dict[str, str] | None:
    """Return the type of each column of the table by name; None if only Spark knows them.

    A type is empty if only Spark knows it. Raises ValueError for a schema that does not parse.
    """
    record = pipeline.value
    if pipeline.transform is not None or (
        record.format not in RAW_FORMATS
        and (record.format not in SCHEMA_HINTS or record.schema in (None, LATEST))
    ):
        return None
    omitted = {name.lower() for name in pipeline.omit}
    columns = {field.name: field.type.name for field in _value_fields(pipeline)}
    columns = {name: kind for name, kind in columns.items() if name.lower() not in omitted}
    origin = pipeline.table.origin_prefix
    times = {"timestamp": "TIMESTAMP"}
    if pipeline.table.evolution is Evolution.RESCUE:
        columns[pipeline.table.rescue_column] = "STRING"
    return {
        **columns,
        **dict.fromkeys(pipeline.columns, ""),
        **{f"{origin}{name}": times.get(name, "") for name in ORIGIN},
    }


def _value_fields(pipeline: Pipeline) -> tuple[Field, ...]:
    match pipeline.value.format:
        case Format.RAW:
            return parse_ddl("value BINARY")
        case Format.STRING:
            return parse_ddl("value STRING")
    fields = _fields(pipeline.value)
    if not has_avro_envelope(pipeline):
        return fields
    row = find_field(fields, ["after"])
    return () if row is None else row.type.fields


def has_avro_envelope(pipeline: Pipeline) -> bool:
    """Return whether `value.schema` is that of a whole envelope, of which a row is a part."""
    return pipeline.table.envelope is Envelope.DEBEZIUM and pipeline.value.format in AVRO


def _avro_envelope(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield what an Avro schema lacks to be that of a Debezium envelope."""
    if not has_avro_envelope(pipeline):
        return
    fields = _fields(pipeline.value)
    parts = {name: find_field(fields, [name]) for name in ("before", "after", "op")}
    kinds = [None if part is None else part.type.name for part in parts.values()]
    if fields and kinds != ["STRUCT", "STRUCT", "STRING"]:
        yield (
            "value.schema",
            "a Debezium envelope in Avro has the records before and after and the string op; "
            "expected its whole schema, as Debezium registers it",
        )
        return
    for name, column in pipeline.columns.items():
        if column.root is Root.SOURCE and find_field(fields, ["source", *column.path]) is None:
            yield f"columns.{name}", f"the envelope's source has no field {column.path[0]}"


def _fields(record: RecordFormat) -> tuple[Field, ...]:
    """Return the fields of a schema, if it is known; raise ValueError if it does not parse."""
    if record.schema == LATEST:
        return ()
    if record.schema is not None and record.format is Format.JSON:
        return parse_ddl(record.schema)
    if record.schema is not None and record.format is Format.JSON_REGISTRY:
        return parse_ddl(ddl_of(record.schema))
    if record.schema is not None and record.format in AVRO:
        return parse_avro(record.schema).fields
    return ()


def _columns(pipeline: Pipeline) -> Iterator[Problem]:
    yield from _avro_envelope(pipeline)
    fields = _value_fields(pipeline)
    origin = {f"{pipeline.table.origin_prefix}{name}" for name in ORIGIN}
    for name in (*(field.name for field in fields), *pipeline.columns):
        if name in origin:
            yield (
                "table.origin_prefix",
                f"the column {name} appears twice; choose another prefix, or omit the field",
            )
    for name, column in pipeline.columns.items():
        path = ".".join(column.path)
        if not IDENTIFIER.fullmatch(name):
            yield f"columns.{name}", f"{name!r} is not a column name"
        if column.root is Root.VALUE and fields and find_field(fields, column.path) is None:
            yield f"columns.{name}", f"the value's schema has no field {path}"
        if column.root is Root.SOURCE and pipeline.table.envelope is not Envelope.DEBEZIUM:
            yield f"columns.{name}", "source is a part of envelope: debezium"
        if column.root is Root.KEY and column.path:
            yield from _key_column(name, column, pipeline.key)
    for name in pipeline.omit:
        if fields and find_field(fields, [name]) is None:
            yield "omit", f"the value's schema has no field {name}"
    columns = table_columns(pipeline)
    if columns is not None:
        yield from _used_columns(pipeline, columns)
    if pipeline.table.evolution is Evolution.RESCUE:
        yield from _rescue(pipeline, fields)


def _rescue(pipeline: Pipeline, fields: tuple[Field, ...]) -> Iterator[Problem]:
    """Yield problems that keep undeclared fields from reaching the rescue column."""
    name, envelope = pipeline.table.rescue_column, pipeline.table.envelope
    if pipeline.value.format not in JSON:
        yield "table.evolution", f"{pipeline.value.format.value} has no fields to rescue; json has"
    if envelope is not Envelope.NONE:
        yield "table.evolution", f"nothing is rescued from a {envelope.value} envelope"
    if not IDENTIFIER.fullmatch(name):
        yield "table.rescue_column", f"{name!r} is not a column name"
    elif find_field(fields, [name]) is not None or name in pipeline.columns:
        yield "table.rescue_column", f"the column {name} appears twice; choose another name"


RAW_FORMATS: Final = (Format.RAW, Format.STRING)


def _key_column(name: str, column: Column, key: KeyFormat) -> Iterator[Problem]:
    if key.format in RAW_FORMATS:
        yield f"columns.{name}", f"a {key.format.value} key has no fields"
    elif key.schema is not None and find_field(_fields(key), column.path) is None:
        yield f"columns.{name}", f"the key's schema has no field {'.'.join(column.path)}"


def _used_columns(pipeline: Pipeline, columns: dict[str, str]) -> Iterator[Problem]:
    table = pipeline.table
    types = {name.lower(): kind for name, kind in columns.items()}
    used: tuple[tuple[str, Iterable[str]], ...] = (
        ("table.partition_by", [partition.column for partition in table.partition_by]),
        ("table.sort_by", [sort.column for sort in table.sort_by]),
        ("table.keys", table.keys),
        ("table.sequence_by", table.sequence_by),
    )
    for key, names in used:
        for name in names:
            if name.lower() not in types:
                yield key, f"the table has no column {name}; it has {', '.join(columns)}"
    if table.format is not TableFormat.ICEBERG:
        for partition in table.partition_by:
            if types.get(partition.column.lower()) == "BINARY":
                yield (
                    "table.partition_by",
                    f"{partition.column} is BINARY, which cannot name a folder",
                )
            name = f"{partition.column}_{partition.transform.value.removesuffix('s')}"
            if partition.transform is not Transform.IDENTITY and name.lower() in types:
                yield (
                    "table.partition_by",
                    f"{partition} makes the column {name}, which already exists; omit it, or "
                    "give it another name with `columns`",
                )
    for partition in table.partition_by:
        kind = types.get(partition.column.lower(), "")
        by_time = (Transform.YEARS, Transform.MONTHS, Transform.DAYS, Transform.HOURS)
        if partition.transform in by_time and kind and kind not in TIMES:
            yield "table.partition_by", f"{partition}: {partition.column} is {kind}, not TIMESTAMP"
