"""The controller and the authorizer of a cluster with 10,000 ACLs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.create_acls import CreateAclsRequest
from kwire.codec.messages.delete_acls import DeleteAclsRequest
from kwire.codec.messages.describe_acls import DescribeAclsRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.configs.authorizer import AuthorizerConfig
from kwire.drive import run_in_slices
from kwire.handlers.describe_acls import describe_acls
from kwire.handlers.metadata import metadata
from kwire.handlers.shared.context import Context, Principal, Services
from kwire.node.authorization import make_authorizer
from kwire.raftmeta.controller.acls import decide_create_acls, decide_delete_acls
from kwire.raftmeta.controller.controller import Controller
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.metadata.image_change import apply
from kwire.raftmeta.metadata.image_records import image_records
from kwire.raftmeta.metadata.publisher import Applier
from kwire.security.authorizer import Authorizer
from tests.support.handlers.services import services_of
from tests.support.raftmeta.clusters import cluster_of, node_config
from tests.support.raftmeta.one_leader import OneLeader, active_controller
from tests.support.turns.meter import TurnMeter
from tests.support.turns.table import Scene

ALL: Final = 10_000
ANYTHING: Final[dict[str, Any]] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


class Appliers:
    """Takes the applier of an authorizer, as the publisher of a node does."""

    def __init__(self) -> None:
        self.applier: Applier | None = None

    def add_applier(self, applier: Applier) -> None:
        self.applier = applier


@attrs.frozen
class Acls:
    """A controller with ACLs, and an authorizer that follows them."""

    meter: TurnMeter
    controller: Controller
    appliers: Appliers
    authorizer: Authorizer

    @property
    def image(self) -> MetadataImage:
        return self.controller.state.image

    @property
    def services(self) -> Services:
        return services_of(config=node_config(), image=self.image, authorizer=self.authorizer)


@asynccontextmanager
async def acls(meter: TurnMeter) -> AsyncIterator[Acls]:
    controller = active_controller(OneLeader(at_once=True), cluster_of(1))
    await controller.wait_ready()
    appliers: Any = Appliers()
    config = AuthorizerConfig({"super.users": "User:ANONYMOUS"})
    yield Acls(meter, controller, appliers, make_authorizer(config, appliers))


ACLS: Final = Scene("acls", acls)
row = ACLS.operation


@row("CreateAcls", "ACLs", ALL, "CreateAcls")
async def create(scene: Acls, size: int) -> None:
    creations = [
        CreateAclsRequest.AclCreation(
            resource_type=2,
            resource_name=f"topic-{number}",
            resource_pattern_type=3 + number % 2,
            principal=f"User:{number % 100}",
            host="*",
            operation=4,
            permission_type=3,
        )
        for number in range(size)
    ]
    request = CreateAclsRequest(creations=creations)
    await trio.lowlevel.checkpoint()
    with scene.meter.measuring():
        await scene.controller.call(decide_create_acls, request)
    assert len(scene.image.acls) == size


@row("DescribeAcls", "ACLs", ALL, "DescribeAcls", after="CreateAcls")
async def describe(scene: Acls, size: int) -> None:
    context = Context(services=scene.services)
    await trio.lowlevel.checkpoint()
    with scene.meter.measuring():
        response = await describe_acls(context, DescribeAclsRequest(**ANYTHING))
    assert response is not None
    assert len(response.resources) == size


@row("an authorizer that gets all ACLs", "ACLs", ALL, after="CreateAcls")
async def follow(scene: Acls, size: int) -> None:
    _, delta = apply(MetadataImage(), image_records(scene.image))
    applier = scene.appliers.applier
    assert applier is not None
    await trio.lowlevel.checkpoint()
    with scene.meter.measuring():
        await applier(delta)
    assert len(scene.authorizer.index.resources) == size


@row("a permission on some topic", "ACLs", ALL, after="an authorizer that gets all ACLs")
async def allow_some(scene: Acls, size: int) -> None:
    await trio.lowlevel.checkpoint()
    with scene.meter.measuring():
        steps = scene.authorizer.allowing_some(("User", "nobody"), "h", "Write", "Topic")
        assert not await run_in_slices(steps)


@row("Metadata of hidden topics", "topics", ALL, after="an authorizer that gets all ACLs")
async def hide(scene: Acls, size: int) -> None:
    records = [r.TopicRecord(name=f"h{n}", topic_id=n.to_bytes(16)) for n in range(1, size + 1)]
    image = apply(scene.image, records)[0]
    services = services_of(config=node_config(), image=image, authorizer=scene.authorizer)
    context = Context(services=services, principal=Principal("User", "nobody"))
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    await trio.lowlevel.checkpoint()
    with scene.meter.measuring():
        response = await metadata(context, request)
    assert response is not None
    assert not response.topics


@row("DeleteAcls", "ACLs", ALL, "DeleteAcls", after="CreateAcls")
async def delete(scene: Acls, size: int) -> None:
    request = DeleteAclsRequest(filters=[DeleteAclsRequest.DeleteAclsFilter(**ANYTHING)])
    await trio.lowlevel.checkpoint()
    with scene.meter.measuring():
        reply = await scene.controller.call(decide_delete_acls, request)
    assert len(reply.filter_results[0].matching_acls) == size
    assert not scene.image.acls
