"""Mistakes of quorum, controller and metadata images; the simulation must catch them."""

from typing import Final, TypeVar

from kwire.raftmeta.controller.controller import Controller, Decide
from kwire.raftmeta.controller.state import ControllerState, whole
from kwire.raftmeta.delivery import Delivery
from kwire.raftmeta.metadata.image import MetadataImage
from kwire.raftmeta.metadata.publisher import MetadataPublisher
from kwire.raftmeta.raft.events import Committed, LeaderKnown, SnapshotLoaded
from kwire.raftmeta.storage.records import SnapshotReader
from simulation.raft.mutations import Mutation

Q = TypeVar("Q")
R = TypeVar("R")


async def _answer_at_once(
    controller: Controller, decide: "Decide[Q, R]", request: Q, **_: object
) -> R:
    return whole(controller._decide(decide, request)).reply


def _deliver_appended(delivery: Delivery, item: Committed | LeaderKnown | SnapshotLoaded) -> None:
    """Deliver everything in the log as committed."""
    if isinstance(item, Committed):
        item = Committed(delivery._state.log.end_offset)
    _put(delivery, item)


_put = Delivery.put


def _keep_state(state: ControllerState, image: MetadataImage, next_offset: int) -> None:
    """Keep this controller's uncommitted decisions when it becomes active again."""
    if state.image.features:
        state.next_offset = next_offset
    else:
        _reset(state, image, next_offset)


_reset = ControllerState.reset


def _ignore_snapshots(publisher: MetadataPublisher, reader: SnapshotReader) -> None:
    """Keep the current image."""


MUTATIONS: Final = (
    Mutation(
        "answer-before-commit",
        "the controller answers when it has decided, not when the records are committed",
        ((Controller, "call", _answer_at_once),),
        (42, 48),
    ),
    Mutation(
        "publish-uncommitted",
        "the image has records that are not committed yet",
        ((Delivery, "put", _deliver_appended),),
        (43, 49),
    ),
    Mutation(
        "decisions-outlive-leadership",
        "a controller that leads again keeps decisions of an earlier epoch that were not committed",
        ((ControllerState, "reset", _keep_state),),
        (48, 49),
    ),
    Mutation(
        "image-ignores-snapshots",
        "a broker that loads a snapshot keeps its previous image",
        ((MetadataPublisher, "on_snapshot", _ignore_snapshots),),
        (49,),
    ),
)
