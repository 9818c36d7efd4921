"""Mistakes of transactions that clients see when a coordinator is killed or a request is late."""

from typing import Final

from tests.mutations.table import Mutation

KILLS: Final = (
    "compat_tests/cluster/test_coordinator_kills.py"
    "::test_next_coordinator_finishes_what_a_killed_one_decided"
)
LATE: Final = "compat_tests/across/test_late_requests.py"

MUTATIONS = (
    Mutation(
        name="next-coordinator-leaves-decided-transactions",
        invariants=(59, 61),
        path="kwire/transaction/shard.py",
        old="        timers = list(self._timers(moment, is_first=True))\n",
        new="        timers = list(self._timers(moment, is_first=True))\n"
        "        self.unsent.clear()\n",
        test=f"{KILLS}[PrepareCommit]",
    ),
    Mutation(
        name="next-coordinator-forgets-the-partitions-of-transactions",
        invariants=(59, 61),
        path="kwire/transaction/records.py",
        old="    return Record(decoded_key, "
        "decode(TransactionLogValue, value[2:], version), version)",
        new="    loaded = decode(TransactionLogValue, value[2:], version)\n"
        "    loaded.transaction_partitions = None\n"
        "    return Record(decoded_key, loaded, version)",
        test=f"{KILLS}[Ongoing]",
    ),
    Mutation(
        name="end-of-any-epoch-is-taken",
        invariants=(57,),
        path="kwire/transaction/transitions.py",
        old="    if not _is_valid_epoch(transaction, producer, is_retry=is_retry):\n",
        new="    if False:\n",
        test=f"{LATE}::test_late_end_does_not_end_the_next_transaction",
    ),
    Mutation(
        name="next-transaction-has-the-epoch-of-the-last",
        invariants=(57,),
        path="kwire/transaction/transitions.py",
        old="            producer_epoch=min(transaction.producer_epoch + 1, MAX_EPOCH),\n",
        new="            producer_epoch=transaction.producer_epoch,\n",
        test=f"{LATE}::test_late_record_is_in_no_later_transaction",
    ),
)
