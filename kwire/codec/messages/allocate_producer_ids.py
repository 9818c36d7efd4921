"""AllocateProducerIds (API key 67): its request and its response."""

from kwire.codec.schema import Int16, Int32, Int64, Request, field, message


@message(api_key=67, versions="0", flexible="0+")
class AllocateProducerIdsRequest(Request["AllocateProducerIdsResponse"]):
    broker_id: Int32 = field("0+")
    broker_epoch: Int64 = field("0+", default=-1)


@message(api_key=67, versions="0", flexible="0+")
class AllocateProducerIdsResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
    producer_id_start: Int64 = field("0+")
    producer_id_len: Int32 = field("0+")
