"""APIs and tasks without a row of their own: their work in one turn is that of few things."""

from typing import Final

_QUORUM: Final = "the voters of the quorum, a few nodes"
_CONNECTION: Final = "one connection"

APIS: Final = {
    "AddOffsetsToTxn": "adds one partition to a transaction",
    "AddRaftVoter": _QUORUM,
    "AllocateProducerIds": "one block of producer ids",
    "ApiVersions": "the APIs, of which there is a fixed number",
    "BeginQuorumEpoch": _QUORUM,
    "ControllerRegistration": "one controller",
    "DescribeCluster": "the brokers of the cluster",
    "DescribeQuorum": _QUORUM,
    "EndQuorumEpoch": _QUORUM,
    "Envelope": "one request, which has a row of its own",
    "RemoveRaftVoter": _QUORUM,
    "SaslAuthenticate": _CONNECTION,
    "SaslHandshake": _CONNECTION,
    "UpdateRaftVoter": _QUORUM,
    "Vote": _QUORUM,
}

_MACHINERY: Final = "what it runs has rows of its own"
_SHARE: Final = "serves a fixed number of connections or tasks in a turn"
_QUEUE: Final = "what is queued is done piece by piece, with rows of its own"

TASKS: Final = {
    "coordinator.runtime._load_all": _QUEUE,
    "drive.run": _MACHINERY,
    "log.cleaner._look_at_timed": "marks the logs whose lags expire together: a few lines for each",
    "log.directories.queue_writer._drain": "one log",
    "net.acceptor.close_throttled": "each connection over its rate has a time of its own",
    "net.client._read": _CONNECTION,
    "net.client._renew_login": _CONNECTION,
    "net.client._send_rest": _CONNECTION,
    "net.http_pages._accept": _CONNECTION,
    "net.oauth.issuer_keys.run": "the keys of an issuer, a few",
    "net.readiness.run": _SHARE,
    "net.task_pacer.run": _SHARE,
    "net.turns._run": _CONNECTION,
    "net.waiting_answers.run": _CONNECTION,
    "net.write_coalescer.run": "sends the answers that one turn of the readiness poller held back",
    "node.broker._end_without_directories": "ends the node",
    "node.broker_watch._watch": "the process of one broker",
    "node.server._log_waiting": "one log line",
    "raftmeta.broker.lifecycle._cancel_when_gone": "the session of one broker",
    "raftmeta.broker.lifecycle.run": "the session of one broker",
    "raftmeta.controller.periodic_tasks._write_no_ops": "one record",
    "raftmeta.delivery.run": _QUEUE,
    "replica.required_syncs._sync": "one partition",
    "transaction.coordinator._abort_with_ids": "one transaction at a time",
    "transaction.coordinator._dispatch_all": (
        "starts a task for each partition of __transaction_state"
    ),
    "waits._run_on": _MACHINERY,
}
