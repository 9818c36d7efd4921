"""AlterPartition (API key 56): its request and its response."""

from kwire.codec.schema import (
    Array,
    Int8,
    Int16,
    Int32,
    Int64,
    Request,
    Uuid,
    field,
    message,
    struct,
)


@message(api_key=56, versions="2-3", flexible="0+")
class AlterPartitionRequest(Request["AlterPartitionResponse"]):
    broker_id: Int32 = field("0+")
    broker_epoch: Int64 = field("0+", default=-1)

    @struct
    class TopicData:
        topic_id: Uuid = field("2+", ignorable=True)

        @struct
        class PartitionData:
            partition_index: Int32 = field("0+")
            leader_epoch: Int32 = field("0+")
            new_isr: Array[Int32] = field("0-2", factory=list)

            @struct
            class BrokerState:
                broker_id: Int32 = field("3+", default=0)
                broker_epoch: Int64 = field("3+", default=-1)

            new_isr_with_epochs: Array[BrokerState] = field("3+", factory=list)
            leader_recovery_state: Int8 = field("1+", default=0)
            partition_epoch: Int32 = field("0+")

        partitions: Array[PartitionData] = field("0+", factory=list)

    topics: Array[TopicData] = field("0+", factory=list)


@message(api_key=56, versions="2-3", flexible="0+")
class AlterPartitionResponse:
    throttle_time_ms: Int32 = field("0+", default=0)
    error_code: Int16 = field("0+", default=0)

    @struct
    class TopicData:
        topic_id: Uuid = field("2+", ignorable=True)

        @struct
        class PartitionData:
            partition_index: Int32 = field("0+")
            error_code: Int16 = field("0+", default=0)
            leader_id: Int32 = field("0+")
            leader_epoch: Int32 = field("0+")
            isr: Array[Int32] = field("0+", factory=list)
            leader_recovery_state: Int8 = field("1+", default=0, ignorable=True)
            partition_epoch: Int32 = field("0+")

        partitions: Array[PartitionData] = field("0+", factory=list)

    topics: Array[TopicData] = field("0+", factory=list)


def widen_request(request: AlterPartitionRequest, version: int) -> AlterPartitionRequest:
    """Before version 3, give the ISR's brokers the epoch -1, which is not checked."""
    if version < 3:
        for topic in request.topics:
            for partition in topic.partitions:
                partition.new_isr_with_epochs = [
                    partition.BrokerState(broker_id=broker) for broker in partition.new_isr
                ]
                partition.new_isr = []
    return request
