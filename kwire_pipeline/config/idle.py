"""Keys without effect because of other keys' values: rejected, so that none is silently ignored.

Rules of this file: a key is in use if it differs from its default; a rule yields one problem for
each key that is in use but has no effect.
"""

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import attrs

from kwire_pipeline.config.model import (
    Catalog,
    Limits,
    Metrics,
    OnFailure,
    Pipeline,
    Problem,
    RecordFormat,
    Registry,
    Security,
    Table,
)
from kwire_pipeline.config.values import (
    WITH_REGISTRY,
    WITH_USER,
    CatalogType,
    Evolution,
    Mode,
    Protocol,
    TableFormat,
)

Section: TypeAlias = Security | Registry | Catalog | Metrics | OnFailure
"""A section in which each key has a default."""
LOGIN: Final = ("mechanism", "username", "password")
FILES: Final = ("ca_file", "cert_file", "key_password")


def idle(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield a problem for each key without effect."""
    yield from _security(pipeline.source.security)
    for part, record in (("key", pipeline.key), ("value", pipeline.value)):
        yield from _format(part, record)
    if not {pipeline.key.format, pipeline.value.format} & WITH_REGISTRY.keys():
        for name in keys_in_use(pipeline.registry):
            yield (
                f"registry.{name}",
                "it has no effect without the format avro-registry or json-registry",
            )
    if pipeline.metrics.port is None:
        for name in keys_in_use(pipeline.metrics):
            yield f"metrics.{name}", "it has no effect without metrics.port"
    if pipeline.on_failure.command is None and pipeline.on_failure.url is None:
        for name in keys_in_use(pipeline.on_failure):
            yield f"on_failure.{name}", "it has no effect without on_failure.command or url"
    if pipeline.trigger.available_now and pipeline.maintenance.every is not None:
        yield "maintenance.every", "it has no effect without a trigger at an interval"
    if pipeline.max_bad_share in (0, 1) and is_set(pipeline, "min_bad_records"):
        yield "min_bad_records", "it has no effect without a max_bad_share between 0 and 1"
    if is_set(pipeline.limits, "parallel_tables"):
        yield "limits.parallel_tables", "it has no effect without {topic} in table.name"
    if pipeline.table.names:
        yield "table.names", "it has no effect without {topic} in table.name"
    yield from _table(pipeline)


def is_set(section: Pipeline | Limits | Table, name: str) -> bool:
    """Return whether the value of a key with a plain default is not the default."""
    default: object = attrs.fields_dict(type(section))[name].default
    return bool(getattr(section, name) != default)


def keys_in_use(section: Section, names: Sequence[str] = ()) -> list[str]:
    """Return the keys of a section (or those in ``names``) whose values are not the defaults."""
    default = type(section)()
    return [
        field.name
        for field in attrs.fields(type(section))
        if (not names or field.name in names)
        and getattr(section, field.name) != getattr(default, field.name)
    ]


def _security(security: Security) -> Iterator[Problem]:
    protocol = security.protocol
    is_sasl = protocol in (Protocol.SASL_PLAINTEXT, Protocol.SASL_SSL)
    if not is_sasl:
        for name in keys_in_use(security, LOGIN):
            yield (
                f"source.security.{name}",
                f"{protocol.value} has no login; expected protocol: SASL_SSL or SASL_PLAINTEXT",
            )
    elif security.mechanism not in WITH_USER:
        for name in keys_in_use(security, ("username", "password")):
            yield (
                f"source.security.{name}",
                f"{security.mechanism.value} takes none; set kafka.sasl.* in source.options",
            )
    if protocol not in (Protocol.SSL, Protocol.SASL_SSL):
        for name in keys_in_use(security, FILES):
            yield (
                f"source.security.{name}",
                f"{protocol.value} has no TLS; expected protocol: SSL or SASL_SSL",
            )
    elif security.key_password is not None and security.cert_file is None:
        yield "source.security.key_password", "there is no key without cert_file"


def _format(part: str, record: RecordFormat) -> Iterator[Problem]:
    if record.format not in WITH_REGISTRY and record.subject is not None:
        yield f"{part}.subject", f"{record.format.value} has none; it is for avro-registry"


def _table(pipeline: Pipeline) -> Iterator[Problem]:
    table = pipeline.table
    kind = table.format
    if kind is TableFormat.PARQUET and table.properties:
        yield "table.properties", "parquet tables have no properties"
    if table.evolution is not Evolution.RESCUE and is_set(table, "rescue_column"):
        yield "table.rescue_column", "it has no effect without evolution: rescue"
    if table.mode is Mode.APPEND and is_set(table, "unavailable_value"):
        yield "table.unavailable_value", "it has no effect without mode: upsert"
    if kind is not TableFormat.ICEBERG:
        for name in keys_in_use(table.catalog):
            yield f"table.catalog.{name}", f"{kind.value} tables have no catalog"
    elif table.catalog.type is CatalogType.HADOOP and table.catalog.uri is not None:
        yield "table.catalog.uri", "a hadoop catalog is the folder table.warehouse"
