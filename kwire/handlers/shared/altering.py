"""The shared part of the two requests that change settings: decides which changes a node accepts.

Each resource fails or succeeds alone; the results are in the order of the request's resources. The
broker that receives the request rejects settings that the client may not change, settings of other
brokers, and settings and certificates that it cannot use itself, because an Apache Kafka controller
does not check them. It also changes the levels of its loggers; the active controller decides on the
rest.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from copy import copy
from typing import Generic, TypeVar

import attrs

from kwire.codec.apis import ListenerType
from kwire.codec.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from kwire.codec.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kwire.configs.checks import check_own_change
from kwire.configs.declare import ConfigError
from kwire.configs.resource_types import BROKER, BROKER_LOGGER
from kwire.drive import Slices
from kwire.errors import NONE, InvalidRequest, KafkaError
from kwire.handlers.shared.config_resources import (
    ConfigResource,
    Result,
    add_results,
    check_may_alter,
    resources_of,
)
from kwire.handlers.shared.context import Context
from kwire.raftmeta.controller.configs import ConfigAlteration, check_broker_settings
from kwire.raftmeta.controller.controller import Decide

Req = TypeVar("Req", AlterConfigsRequest, IncrementalAlterConfigsRequest)
Resp = TypeVar("Resp", AlterConfigsResponse, IncrementalAlterConfigsResponse)


@attrs.frozen(eq=False, repr=False)
class Altering(Generic[Req, Resp]):
    """The handling of one of the two requests; only the classes of their results differ."""

    response_type: type[Resp]
    decide: "Decide[Req, Resp]"
    """The active controller's decision on the resources that this node accepts."""
    alteration: Callable[..., ConfigAlteration]
    """Returns the change to one resource."""
    alter_levels: Callable[..., None] | None = None
    """Changes the levels of loggers; None if the request cannot change them."""

    def refuse(self, request: Req, error: KafkaError) -> Resp:
        """Return the response to a request that fails as a whole."""
        result_type = self.response_type.AlterConfigsResourceResponse
        results = [_result(result_type, resource, error) for resource in request.resources]
        return self.response_type(responses=results)

    async def alter(self, context: Context, request: Req) -> Resp:
        """Change the settings that the client may change; reject the others."""
        order = resources_of(request)
        # The original is needed if the rest fails, to reject the whole request.
        rest = copy(request)
        counts = Counter(order)

        async def answer(resource: ConfigResource) -> bool:
            await self._check(context, resource)
            if resource.resource_type != BROKER_LOGGER or self.alter_levels is None:
                return False
            if counts[resource.resource_type, resource.resource_name] > 1:
                raise InvalidRequest("Each resource must appear at most once.")
            self.alter_levels(resource, context.config.node_id, request.validate_only)
            return True

        results = await self._answer(rest, self.response_type.AlterConfigsResourceResponse, answer)
        response = await self._decide(context, rest)
        add_results(response.responses, results, order)
        return response

    async def _decide(self, context: Context, request: Req) -> Resp:
        if not request.resources:
            return self.response_type(responses=[])
        if context.listener_type is not ListenerType.BROKER:
            return await context.decide(self.decide, request)
        active = context.services.active_controller
        try:
            return await active.call(self.decide, request, context.requester, in_force=True)
        except KafkaError as error:
            return self.refuse(request, error)

    async def _check(self, context: Context, resource: ConfigResource) -> None:
        """Raise KafkaError if the client may not alter a resource, or this broker not use it."""
        kind, name = resource.resource_type, resource.resource_name
        check_may_alter(context, kind, name)
        if kind != BROKER or context.listener_type is not ListenerType.BROKER:
            return
        alteration, image = self.alteration(resource), context.image
        former = image.config(kind, name)
        settings = alteration.change(dict(former))
        check_broker_settings(context.config, image, alteration, settings)
        cluster = image.config(BROKER, "") if name else settings
        own = settings if name else image.config(BROKER, str(context.config.node_id))
        changed = context.config.with_dynamic(cluster, own)
        check_certificates = context.services.check_certificates
        names = _names_to_check(alteration, former, settings)
        try:
            check_own_change(context.config, changed, names)
            if check_certificates is not None:
                await check_certificates(changed, alteration.names)
        except ConfigError as error:
            raise InvalidRequest(str(error)) from None

    async def _answer(
        self,
        request: Req,
        result_type: Callable[..., Result],
        answer: Callable[[ConfigResource], Awaitable[bool]],
    ) -> list[Result]:
        """Keep the resources for which ``answer`` is false; return the results of the others."""
        others, results = [], []
        slices = Slices()
        for resource in request.resources:
            await slices.pause()
            try:
                if await answer(resource):
                    results.append(_result(result_type, resource))
                else:
                    others.append(resource)
            except KafkaError as error:
                results.append(_result(result_type, resource, error))
        request.resources = others
        return results


def _names_to_check(
    alteration: ConfigAlteration, former: Mapping[str, str], settings: Mapping[str, str]
) -> set[str]:
    """Return the settings of an alteration; one that replaces all of them removes unnamed ones."""
    return {*alteration.names, *(former.keys() - settings.keys())}


def _result(
    result_type: Callable[..., Result], resource: ConfigResource, error: KafkaError | None = None
) -> Result:
    """Return the result for a resource; its settings are not changed if there is an error."""
    return result_type(
        error_code=NONE if error is None else error.code,
        error_message=None if error is None else error.text,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
