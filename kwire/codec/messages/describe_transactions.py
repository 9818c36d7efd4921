"""DescribeTransactions (API key 65): its request and its response."""

from kwire.codec.schema import Array, Int16, Int32, Int64, Request, String, field, message, struct


@message(api_key=65, versions="0", flexible="0+")
class DescribeTransactionsRequest(Request["DescribeTransactionsResponse"]):
    transactional_ids: Array[String] = field("0+", factory=list)


@message(api_key=65, versions="0", flexible="0+")
class DescribeTransactionsResponse:
    throttle_time_ms: Int32 = field("0+", default=0)

    @struct
    class TransactionState:
        error_code: Int16 = field("0+", default=0)
        transactional_id: String = field("0+")
        transaction_state: String = field("0+")
        transaction_timeout_ms: Int32 = field("0+")
        transaction_start_time_ms: Int64 = field("0+")
        producer_id: Int64 = field("0+")
        producer_epoch: Int16 = field("0+")

        @struct
        class TopicData:
            topic: String = field("0+")
            partitions: Array[Int32] = field("0+", factory=list)

        topics: Array[TopicData] = field("0+", factory=list)

    transaction_states: Array[TransactionState] = field("0+", factory=list)
