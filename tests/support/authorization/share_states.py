"""The part of the table with requests about the states of share partitions."""

from typing import Final

from tests.support.authorization.cases import CLUSTER, NOWHERE, Case, Json


def share_states(**of_partition: int) -> Json:
    partition = {"partition": 0} | of_partition
    return {"groupId": "{G}", "topics": [{"topicId": "{ID}", "partitions": [partition]}]}


SHARE_STATES: Final = (
    Case(
        "FindCoordinator of a share partition", "FindCoordinator", 6,
        {"keyType": 2, "coordinatorKeys": [f"g:{NOWHERE}:0"]}, (f"ClusterAction {CLUSTER}",),
    ),
    Case(
        "InitializeShareGroupState", "InitializeShareGroupState", 0,
        share_states(stateEpoch=0, startOffset=0), (f"ClusterAction {CLUSTER}",),
    ),
    Case(
        "ReadShareGroupState", "ReadShareGroupState", 0, share_states(leaderEpoch=0),
        (f"ClusterAction {CLUSTER}",),
    ),
    Case(
        "WriteShareGroupState", "WriteShareGroupState", 1,
        share_states(stateEpoch=0, leaderEpoch=0, startOffset=0, deliveryCompleteCount=0),
        (f"ClusterAction {CLUSTER}",),
    ),
    Case(
        "DeleteShareGroupState", "DeleteShareGroupState", 0, share_states(),
        (f"ClusterAction {CLUSTER}",),
    ),
    Case(
        "ReadShareGroupStateSummary", "ReadShareGroupStateSummary", 1,
        share_states(leaderEpoch=0), (f"ClusterAction {CLUSTER}",),
    ),
)  # fmt: skip
