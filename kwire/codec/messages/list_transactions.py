"""ListTransactions (API key 66): its request and its response."""

from kwire.codec.schema import (
    Array,
    Int16,
    Int32,
    Int64,
    NullableString,
    Request,
    String,
    field,
    message,
    struct,
)


@message(api_key=66, versions="0-2", flexible="0+")
class ListTransactionsRequest(Request["ListTransactionsResponse"]):
    state_filters: Array[String] = field("0+", factory=list)
    producer_id_filters: Array[Int64] = field("0+", factory=list)
    duration_filter: Int64 = field("1+", default=-1)
    transactional_id_pattern: NullableString = field("2+", default=None, nullable="2+")


@message(api_key=66, versions="0-2", flexible="0+")
class ListTransactionsResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)
    unknown_state_filters: Array[String] = field("0+", factory=list)

    @struct
    class TransactionState:
        transactional_id: String = field("0+")
        producer_id: Int64 = field("0+")
        transaction_state: String = field("0+")

    transaction_states: Array[TransactionState] = field("0+", factory=list)
