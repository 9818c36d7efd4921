"""APIs and tasks without a row of their own: their work in one turn is that of few things."""

from typing import Final

_QUORUM: Final = "the voters of the quorum, a few nodes"
_CONNECTION: Final = "one connection"

APIS: Final = {
    "AddOffsetsToTxn": "adds one partition to a transaction",
    "AddRaftVoter": _QUORUM,
    "AllocateProducerIds": "one block of producer ids",
    "AlterClientQuotas": "a few quotas, which administrators name",
    "ApiVersions": "the APIs, of which there is a fixed number",
    "BeginQuorumEpoch": _QUORUM,
    "ControllerRegistration": "one controller",
    "DescribeClientQuotas": "a few quotas, which administrators set",
    "DescribeCluster": "the brokers of the cluster",
    "DescribeQuorum": _QUORUM,
    "EndQuorumEpoch": _QUORUM,
    "Envelope": "one request, which has a row of its own",
    "FetchSnapshot": "one piece of a file",
    "RemoveRaftVoter": _QUORUM,
    "SaslAuthenticate": _CONNECTION,
    "SaslHandshake": _CONNECTION,
    "UpdateFeatures": "the features, of which there is a fixed number",
    "UpdateRaftVoter": _QUORUM,
    "Vote": _QUORUM,
}

TASKS: Final = {
    "_write_no_ops": "one record",
    "_wakes.run": "wakes a fixed number of tasks in a turn",
    "_dispatch_all": "starts a task for each partition of __transaction_state",
    "_abort_with_ids": "one transaction at a time",
}
