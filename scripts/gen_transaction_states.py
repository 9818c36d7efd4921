"""The generator of docs/transaction-states.md: the states of a transactional id."""

from kwire.transaction.model import PREVIOUS, TransactionState

_TEXT = """\
# States of a transactional id

The transitions of `kwire/transaction/model.py`; a transactional id starts in Empty, with the first
InitProducerId. `kwire/transaction/transitions.py` makes no other ones, and each state but Dead is
written to `__transaction_state` before it counts. Kafka's state PrepareEpochFence is a passing one
of a coordinator's memory: kwire goes from Ongoing to PrepareAbort in one step.

```mermaid
stateDiagram-v2
    [*] --> Empty
"""

_CAUSES = {
    TransactionState.EMPTY: "InitProducerId",
    TransactionState.ONGOING: "the first partition or a further one: AddPartitionsToTxn, "
    "AddOffsetsToTxn, or from `transaction.version` 2 on Produce and TxnOffsetCommit",
    TransactionState.PREPARE_COMMIT: "EndTxn",
    TransactionState.PREPARE_ABORT: "EndTxn, InitProducerId of a newer producer, the "
    "transaction's time-out; from `transaction.version` 2 on also EndTxn without a transaction",
    TransactionState.COMPLETE_COMMIT: "all partitions have their markers",
    TransactionState.COMPLETE_ABORT: "all partitions have their markers",
    TransactionState.DEAD: "`transactional.id.expiration.ms` without a request; a tombstone is "
    "written",
}


def transaction_states() -> str:
    edges = [
        f"    {before.title} --> {state.title}\n"
        for state, previous in PREVIOUS.items()
        for before in sorted(previous)
    ]
    rows = [f"| {state.title} | {cause} |\n" for state, cause in _CAUSES.items()]
    table = "| to | because of |\n|---|---|\n"
    return _TEXT + "".join(edges) + "```\n\n" + table + "".join(rows)
