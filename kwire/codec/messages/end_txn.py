"""EndTxn (API key 26): its request and its response."""

from kwire.codec.schema import Bool, Int8, Int16, Int32, Int64, Request, String, field, message
from kwire.errors import InvalidProducerEpoch, ProducerFenced


@message(api_key=26, versions="0-5", flexible="3+")
class EndTxnRequest(Request["EndTxnResponse"]):
    transactional_id: String = field("0+")
    producer_id: Int64 = field("0+")
    producer_epoch: Int16 = field("0+")
    committed: Bool = field("0+")
    client_version: Int8 = field("", default=2, ignorable=True)
    """The `transaction.version` of the producer, by the request's version; not on the wire."""


@message(api_key=26, versions="0-5", flexible="3+")
class EndTxnResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
    producer_id: Int64 = field("5+", default=-1, ignorable=True)
    producer_epoch: Int16 = field("5+", default=-1, ignorable=True)


def widen_request(request: EndTxnRequest, version: int) -> EndTxnRequest:
    """Derive the producer's `transaction.version`: 2 from version 5 onwards (KIP-890)."""
    request.client_version = 2 if version >= 5 else 0
    return request


def narrow_response(
    response: EndTxnResponse, version: int, request: EndTxnRequest
) -> EndTxnResponse:
    """Replace ProducerFenced by InvalidProducerEpoch, which clients before version 2 expect."""
    if version < 2 and response.error_code == ProducerFenced.code:
        response.error_code = InvalidProducerEpoch.code
    return response
