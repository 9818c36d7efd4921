"""AddOffsetsToTxn (API key 25): its request and its response."""

from kwire.codec.schema import Int16, Int32, Int64, Request, String, field, message
from kwire.errors import InvalidProducerEpoch, ProducerFenced


@message(api_key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest(Request["AddOffsetsToTxnResponse"]):
    transactional_id: String = field("0+")
    producer_id: Int64 = field("0+")
    producer_epoch: Int16 = field("0+")
    group_id: String = field("0+")


@message(api_key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)


def narrow_response(
    response: AddOffsetsToTxnResponse, version: int, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Replace ProducerFenced by InvalidProducerEpoch, which clients before version 2 expect."""
    if version < 2 and response.error_code == ProducerFenced.code:
        response.error_code = InvalidProducerEpoch.code
    return response
