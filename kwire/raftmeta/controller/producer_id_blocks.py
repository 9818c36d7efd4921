"""The decision on AllocateProducerIds: the next block of producer ids for a broker."""

from typing import Final

from kwire import errors
from kwire.codec.messages import metadata_records as r
from kwire.codec.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from kwire.raftmeta.controller.state import ControllerDecision, ControllerState

PRODUCER_IDS: Final = 1000
"""Producer ids in one block for a broker."""


def decide_allocate_producer_ids(
    state: ControllerState, request: AllocateProducerIdsRequest
) -> ControllerDecision[AllocateProducerIdsResponse]:
    """Allocate a block of producer ids to a broker; no id is ever allocated twice."""
    state.broker(request.broker_id, request.broker_epoch)
    start = max(state.image.next_producer_id, 0)
    if start > (1 << 63) - 1 - PRODUCER_IDS:
        raise errors.UnknownServerError("There are no producer ids left.")
    record = r.ProducerIdsRecord(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        next_producer_id=start + PRODUCER_IDS,
    )
    reply = AllocateProducerIdsResponse(producer_id_start=start, producer_id_len=PRODUCER_IDS)
    return ControllerDecision((record,), reply)
