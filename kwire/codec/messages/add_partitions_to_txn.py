"""AddPartitionsToTxn (API key 24): its request and its response."""

from kwire.codec.schema import (
    Array,
    Bool,
    Int16,
    Int32,
    Int64,
    Request,
    String,
    field,
    message,
    struct,
)
from kwire.errors import InvalidProducerEpoch, ProducerFenced


@struct
class AddPartitionsToTxnTopic:
    name: String = field("0+")
    partitions: Array[Int32] = field("0+", factory=list)


@message(api_key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnRequest(Request["AddPartitionsToTxnResponse"]):
    @struct
    class AddPartitionsToTxnTransaction:
        transactional_id: String = field("4+", default="")
        producer_id: Int64 = field("4+", default=0)
        producer_epoch: Int16 = field("4+", default=0)
        verify_only: Bool = field("4+", default=False)
        topics: Array[AddPartitionsToTxnTopic] = field("4+", factory=list)

    transactions: Array[AddPartitionsToTxnTransaction] = field("4+", factory=list)
    v3_and_below_transactional_id: String = field("0-3", default="")
    v3_and_below_producer_id: Int64 = field("0-3", default=0)
    v3_and_below_producer_epoch: Int16 = field("0-3", default=0)
    v3_and_below_topics: Array[AddPartitionsToTxnTopic] = field("0-3", factory=list)
    from_broker: Bool = field("", default=True, ignorable=True)
    """True if a broker sends it for its producers, as from version 4 onwards; not on the wire."""


@struct
class AddPartitionsToTxnPartitionResult:
    partition_index: Int32 = field("0+")
    partition_error_code: Int16 = field("0+")


@struct
class AddPartitionsToTxnTopicResult:
    name: String = field("0+")
    results_by_partition: Array[AddPartitionsToTxnPartitionResult] = field("0+", factory=list)


@message(api_key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("4+", default=0, ignorable=True)

    @struct
    class AddPartitionsToTxnResult:
        transactional_id: String = field("4+", default="")
        topic_results: Array[AddPartitionsToTxnTopicResult] = field("4+", factory=list)

    results_by_transaction: Array[AddPartitionsToTxnResult] = field("4+", factory=list)
    results_by_topic_v3_and_below: Array[AddPartitionsToTxnTopicResult] = field("0-3", factory=list)


def widen_request(request: AddPartitionsToTxnRequest, version: int) -> AddPartitionsToTxnRequest:
    """Turn the single transaction of versions before 4 into a list."""
    request.from_broker = version >= 4
    if version < 4:
        request.transactions = [
            AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                transactional_id=request.v3_and_below_transactional_id,
                producer_id=request.v3_and_below_producer_id,
                producer_epoch=request.v3_and_below_producer_epoch,
                topics=request.v3_and_below_topics,
            )
        ]
        request.v3_and_below_transactional_id, request.v3_and_below_topics = "", []
        request.v3_and_below_producer_id = request.v3_and_below_producer_epoch = 0
    return request


def narrow_response(
    response: AddPartitionsToTxnResponse, version: int, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Before version 4, report the results of the only transaction as the response's own.

    An error of the whole transaction becomes the error of each partition. Clients before version 2
    expect InvalidProducerEpoch instead of ProducerFenced.
    """
    if version > 3:
        return response
    results = [
        topic
        for transaction in response.results_by_transaction
        for topic in transaction.topic_results
    ]
    if response.error_code:
        results = [
            _failed_topic(topic, response.error_code)
            for transaction in request.transactions
            for topic in transaction.topics
        ]
    if version < 2:
        for topic in results:
            for result in topic.results_by_partition:
                if result.partition_error_code == ProducerFenced.code:
                    result.partition_error_code = InvalidProducerEpoch.code
    response.results_by_topic_v3_and_below, response.results_by_transaction = results, []
    return response


def _failed_topic(topic: AddPartitionsToTxnTopic, code: int) -> AddPartitionsToTxnTopicResult:
    return AddPartitionsToTxnTopicResult(
        name=topic.name,
        results_by_partition=[
            AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
            for index in topic.partitions
        ],
    )
