"""Records of `__transaction_state`."""

from kwire.codec.schema import (
    Array,
    Int8,
    Int16,
    Int32,
    Int64,
    NullableArray,
    String,
    field,
    message,
    struct,
)


@message(record_type=0, versions="0")
class TransactionLogKey:
    transactional_id: String = field("0")


@message(record_type=0, versions="0-1", flexible="1+")
class TransactionLogValue:
    producer_id: Int64 = field("0+")
    previous_producer_id: Int64 = field("1+", default=-1, tag=0)
    next_producer_id: Int64 = field("1+", default=-1, tag=1)
    producer_epoch: Int16 = field("0+")
    next_producer_epoch: Int16 = field("1+", default=-1, tag=3)
    transaction_timeout_ms: Int32 = field("0+")
    transaction_status: Int8 = field("0+")

    @struct
    class PartitionsSchema:
        topic: String = field("0+")
        partition_ids: Array[Int32] = field("0+", factory=list)

    transaction_partitions: NullableArray[PartitionsSchema] = field(
        "0+", factory=list, nullable="0+"
    )
    transaction_last_update_timestamp_ms: Int64 = field("0+")
    transaction_start_timestamp_ms: Int64 = field("0+")
    client_transaction_version: Int16 = field("1+", default=0, tag=2)
