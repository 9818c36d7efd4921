"""Spark's Kafka source: its options, those of the client beside it, and a range of records."""

import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from kwire_pipeline.config.model import Pipeline, Security, Source
from kwire_pipeline.config.values import Mechanism, Protocol
from kwire_pipeline.engine.offsets import Offsets, dump

CLIENT: Final = "kafka."
LOGIN_MODULES: Final = {
    Mechanism.PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    Mechanism.SCRAM_SHA_256: "org.apache.kafka.common.security.scram.ScramLoginModule",
    Mechanism.SCRAM_SHA_512: "org.apache.kafka.common.security.scram.ScramLoginModule",
}
MSK_LOGIN: Final = {
    "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
    "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
}
"""The login settings from the documentation of Amazon's library; options may replace them."""


def client(source: Source) -> dict[str, str]:
    """Return the properties of a Kafka client; the user's own settings win."""
    own = {
        name.removeprefix(CLIENT): text
        for name, text in source.options.items()
        if name.startswith(CLIENT)
    }
    return {"bootstrap.servers": source.bootstrap, **_security(source.security), **own}


def options(pipeline: Pipeline, topics: Mapping[str, str], start: Offsets) -> dict[str, str]:
    """Return the options of a stream over topics that begins at ``start``."""
    source, limits = pipeline.source, pipeline.limits
    chosen = {f"{CLIENT}{name}": text for name, text in client(source).items()}
    chosen |= {
        f"{CLIENT}isolation.level": source.isolation.value,
        "failOnDataLoss": "true" if source.fail_on_data_loss else "false",
        "startingOffsets": dump(start),
        "maxOffsetsPerTrigger": str(limits.max_offsets_per_trigger),
        "maxRecordsPerPartition": str(limits.max_records_per_partition),
        "includeHeaders": "true",
    }
    if limits.min_partitions is not None:
        chosen["minPartitions"] = str(limits.min_partitions)
    if source.pattern is not None:
        # Spark searches a name for the pattern; the pipeline and Kafka's clients compare all of it.
        chosen["subscribePattern"] = f"^(?:{source.pattern})$"
    else:
        chosen["subscribe"] = ",".join(sorted(topics))
    return {**chosen, **source.options}


def records(spark: SparkSession, pipeline: Pipeline, start: Offsets, end: Offsets) -> DataFrame:
    """Return the committed records in a range of offsets, unparsed."""
    chosen = options(pipeline, {}, start)
    for name in ("maxOffsetsPerTrigger", "subscribePattern", "subscribe"):
        chosen.pop(name, None)
    partitions = {topic: sorted(offsets) for topic, offsets in end.items()}
    chosen |= {"assign": json.dumps(partitions), "endingOffsets": dump(end)}
    return spark.read.format("kafka").options(**chosen).load()


def _security(security: Security) -> dict[str, str]:
    properties: dict[str, str] = {}
    if security.protocol is Protocol.PLAINTEXT:
        return properties
    properties["security.protocol"] = security.protocol.value
    if security.protocol in (Protocol.SASL_PLAINTEXT, Protocol.SASL_SSL):
        properties["sasl.mechanism"] = security.mechanism.value
        if security.mechanism is Mechanism.AWS_MSK_IAM:
            properties |= MSK_LOGIN
        module = LOGIN_MODULES.get(security.mechanism)
        if module is not None and security.username is not None:
            user, password = map(_quote, (security.username, security.password or ""))
            properties["sasl.jaas.config"] = (
                f"{module} required username={user} password={password};"
            )
    if security.ca_file is not None:
        properties["ssl.truststore.type"] = "PEM"
        properties["ssl.truststore.location"] = security.ca_file
    if security.cert_file is not None:
        properties["ssl.keystore.type"] = "PEM"
        properties["ssl.keystore.location"] = security.cert_file
        if security.key_password is not None:
            properties["ssl.key.password"] = security.key_password
    return properties


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
