"""InitProducerId (API key 22): its request and its response."""

from kwire.codec.schema import Bool, Int16, Int32, Int64, NullableString, Request, field, message
from kwire.errors import InvalidProducerEpoch, ProducerFenced


@message(api_key=22, versions="0-6", flexible="2+", unstable="6")
class InitProducerIdRequest(Request["InitProducerIdResponse"]):
    transactional_id: NullableString = field("0+", nullable="0+")
    transaction_timeout_ms: Int32 = field("0+")
    producer_id: Int64 = field("3+", default=-1)
    producer_epoch: Int16 = field("3+", default=-1)
    enable2_pc: Bool = field("6+", default=False)
    keep_prepared_txn: Bool = field("6+", default=False)


@message(api_key=22, versions="0-6", flexible="2+")
class InitProducerIdResponse:
    throttle_time_ms: Int32 = field("0+", default=0, ignorable=True)
    error_code: Int16 = field("0+", default=0)
    producer_id: Int64 = field("0+", default=-1)
    producer_epoch: Int16 = field("0+")
    ongoing_txn_producer_id: Int64 = field("6+", default=-1)
    ongoing_txn_producer_epoch: Int16 = field("6+", default=-1)


def narrow_response(
    response: InitProducerIdResponse, version: int, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """Replace ProducerFenced by InvalidProducerEpoch, which clients before version 4 expect."""
    if version < 4 and response.error_code == ProducerFenced.code:
        response.error_code = InvalidProducerEpoch.code
    return response
