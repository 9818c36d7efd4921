"""The options passed on to Spark and its Kafka source, and those that the pipeline sets."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from kwire_pipeline.config.model import Pipeline, Problem, Security
from kwire_pipeline.config.values import Protocol

CONF: Final = {
    "spark.jars.packages": "spark.packages, which adds to the pipeline's own",
    "spark.jars": "spark.jars",
    "spark.master": "spark.master",
}
FIXED_CONF: Final = {
    "spark.sql.session.timezone": "UTC",
    "spark.sql.ansi.enabled": "false",
}
"""The configuration that every run sets, because its results depend on it."""
OPTIONS: Final = {
    "subscribe": "source.topics",
    "subscribepattern": "source.pattern",
    "assign": "source.topics",
    "startingoffsets": "source.start",
    "startingtimestamp": "source.start",
    "startingoffsetsbytimestamp": "source.start",
    "startingoffsetsbytimestampstrategy": "source.start",
    "endingoffsets": "trigger: available-now",
    "endingtimestamp": "trigger: available-now",
    "endingoffsetsbytimestamp": "trigger: available-now",
    "failondataloss": "source.fail_on_data_loss",
    "maxoffsetspertrigger": "limits.max_offsets_per_trigger",
    "maxrecordsperpartition": "limits.max_records_per_partition",
    "minpartitions": "limits.min_partitions",
    "kafka.bootstrap.servers": "source.bootstrap",
    "kafka.isolation.level": "source.isolation",
    "kafka.security.protocol": "source.security.protocol",
    "kafka.sasl.mechanism": "source.security.mechanism",
}
FIXED_OPTIONS: Final = {
    "includeheaders": "the pipeline reads headers always",
    "kafka.key.deserializer": "Spark reads bytes; key.format says what they are",
    "kafka.value.deserializer": "Spark reads bytes; value.format says what they are",
    "kafka.auto.offset.reset": "Spark takes offsets from the checkpoint, and from source.start",
    "kafka.enable.auto.commit": "Spark commits no offsets to Kafka",
    "kafka.interceptor.classes": "Spark takes no interceptors",
}


MASTER: Final = re.compile(
    r"local(\[([1-9]\d*|\*)(\s*,\s*\d+)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    r"|spark://[^\s/]+:\d+(,[^\s/]+:\d+)*|k8s://\S+|yarn"
)
"""The forms of a Spark master URL."""


def passed_on(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield a wrong master, and options that would override a key or the pipeline itself."""
    master = pipeline.spark.master
    if master is not None and not MASTER.fullmatch(master):
        yield (
            "spark.master",
            f"{master!r} is not a master; expected local[*], local[N], spark://HOST:PORT, "
            "k8s://URL or yarn",
        )
    for option in pipeline.spark.conf:
        if option in CONF:
            yield "spark.conf", f"{option} has its own key: {CONF[option]}"
        elif option.lower() in FIXED_CONF:
            value = FIXED_CONF[option.lower()]
            yield "spark.conf", f"{option} is {value} in each pipeline; leave it out"
    keys = {**OPTIONS, **dict(_files_and_login(pipeline.source.security))}
    for option in pipeline.source.options:
        name = option.lower()
        if name in keys:
            yield "source.options", f"{option} has its own key: {keys[name]}"
        elif name in FIXED_OPTIONS:
            yield "source.options", f"{option} has no effect: {FIXED_OPTIONS[name]}"
    yield from _twice(pipeline.source.options)


def _twice(options: Mapping[str, str]) -> Iterator[Problem]:
    """Yield options that differ only in case, of which Spark would use just one."""
    names: set[str] = set()
    for option in options:
        if option.lower() in names:
            yield "source.options", f"{option} appears twice: Spark ignores the case of options"
        names.add(option.lower())


def _files_and_login(security: Security) -> Iterator[tuple[str, str]]:
    """Yield the options that the pipeline sets itself, each with the key of the file for it."""
    tls = security.protocol in (Protocol.SSL, Protocol.SASL_SSL)
    if security.username is not None:
        yield "kafka.sasl.jaas.config", "source.security.username"
    if tls and security.ca_file is not None:
        for name in ("type", "location"):
            yield f"kafka.ssl.truststore.{name}", "source.security.ca_file"
    if tls and security.cert_file is not None:
        for name in ("type", "location"):
            yield f"kafka.ssl.keystore.{name}", "source.security.cert_file"
        yield "kafka.ssl.key.password", "source.security.key_password"
