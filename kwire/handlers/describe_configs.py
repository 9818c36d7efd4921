"""DescribeConfigs (API key 32): settings, their sources, and their documentation.

A node describes its own broker settings and the defaults for all brokers, but not the settings of
other brokers. The loggers are those of this process.
"""

from kwire import errors
from kwire.codec.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from kwire.configs.describe import (
    Entry,
    describe_broker,
    describe_broker_default,
    describe_client_metrics,
    describe_group,
    describe_topic,
)
from kwire.configs.resource_types import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from kwire.drive import Slices
from kwire.errors import KafkaError
from kwire.handlers.shared.config_resources import check_config_allowed, parse_id
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.handlers.shared.loggers import describe_levels
from kwire.raftmeta.metadata.topic_names import check_topic_name

Resource = DescribeConfigsRequest.DescribeConfigsResource
Result = DescribeConfigsResponse.DescribeConfigsResult
Config = Result.DescribeConfigsResourceResult


def refuse(request: DescribeConfigsRequest, error: KafkaError) -> DescribeConfigsResponse:
    results = [_refuse_resource(resource, error) for resource in request.resources]
    return DescribeConfigsResponse(results=results)


@handles(DescribeConfigsRequest, refuse=refuse)
async def describe_configs(
    context: Context, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    slices = Slices(context.clock.now)

    async def answer(resource: Resource) -> Result:
        await slices.pause()
        try:
            entries = _entries(context, resource)
        except KafkaError as error:
            return _refuse_resource(resource, error)
        keys = set(resource.configuration_keys or ())
        return Result(
            error_message="",
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[
                _config(entry, request) for entry in entries if not keys or entry.name in keys
            ],
        )

    return DescribeConfigsResponse(
        results=[await answer(resource) for resource in request.resources]
    )


def _refuse_resource(resource: Resource, error: KafkaError) -> Result:
    return Result(
        error_code=error.code,
        error_message=error.text or "",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _entries(context: Context, resource: Resource) -> list[Entry]:
    kind, name = resource.resource_type, resource.resource_name
    check_config_allowed(context, "DescribeConfigs", kind, name)
    image = context.image
    if kind == TOPIC:
        check_topic_name(name)
        if name not in image.topic_ids:
            raise errors.UnknownTopicOrPartition
        return describe_topic(image.config(TOPIC, name), context.config)
    if kind == BROKER:
        return _broker(context, name)
    if kind == BROKER_LOGGER:
        _check_own(context, name, "")
        return describe_levels()
    if kind == CLIENT_METRICS:
        if not name:
            raise errors.InvalidRequest("Client metrics subscription name must not be empty")
        return describe_client_metrics(image.config(CLIENT_METRICS, name))
    if kind == GROUP:
        if not name:
            raise errors.InvalidRequest("Group name must not be empty")
        return describe_group(image.config(GROUP, name), context.config)
    raise errors.InvalidRequest(f"Unexpected resource type {kind} for resource {name}")


def _broker(context: Context, name: str) -> list[Entry]:
    if not name:
        return describe_broker_default(context.config)
    _check_own(context, name, " or empty string,")
    return describe_broker(context.config)


def _check_own(context: Context, name: str, others: str) -> None:
    """Raise InvalidRequest unless a name is this broker's id; ``others`` tells of other names."""
    if not name:
        raise errors.InvalidRequest("Broker id must not be empty")
    own = context.config.node_id
    if parse_id(name, "Broker") != own:
        raise errors.InvalidRequest(
            f"Unexpected broker id, expected {own}{others} but received {name}"
        )


def _config(entry: Entry, request: DescribeConfigsRequest) -> Config:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return Config(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[
            Config.DescribeConfigsSynonym(
                name=synonym.name, value=synonym.value, source=synonym.source
            )
            for synonym in synonyms
        ],
        config_type=int(entry.kind),
        documentation=entry.doc if request.include_documentation else None,
    )
