"""Mistakes in the coordinator of transactions."""

from tests.mutations.table import Mutation

_TESTS = "tests/transaction/test_coordinator.py"
_MACHINE = "tests/transaction/test_machine.py"
_SENDER = "kwire/transaction/marker_sender.py"
_TRANSITIONS = "kwire/transaction/transitions.py"
_SHARD = "kwire/transaction/shard.py"

MUTATIONS = (
    Mutation(
        name="complete-before-all-partitions-have-markers",
        invariants=(59, 61),
        path=_SENDER,
        old="            elif not end.missing:\n",
        new="            else:\n",
        test=f"{_TESTS}::test_markers_are_sent_until_every_partition_has_them",
    ),
    Mutation(
        name="send-markers-before-the-decision-is-committed",
        invariants=(59,),
        path="kwire/coordinator/runtime.py",
        old="        await self._wait_committed(shard, shard.written)\n        return result",
        new="        return result",
        test=f"{_TESTS}::test_markers_wait_until_the_decision_is_committed",
    ),
    Mutation(
        name="drop-a-decided-transaction-when-the-lease-ends",
        invariants=(59, 61),
        path="kwire/transaction/coordinator.py",
        old="                    if not self.service.is_led(index):\n",
        new="                    if True:\n",
        test=f"{_TESTS}::test_coordinator_finishes_what_was_decided_when_its_lease_is_renewed",
    ),
    Mutation(
        name="drop-a-completion-when-the-lease-ends",
        invariants=(61,),
        path="kwire/transaction/coordinator.py",
        old="                if not self.service.is_led(index):\n                    return",
        new="                if True:\n                    return",
        test=f"{_TESTS}::test_coordinator_finishes_what_was_decided_when_its_lease_is_renewed",
    ),
    Mutation(
        name="send-markers-with-an-old-coordinator-epoch",
        invariants=(60,),
        path=_SENDER,
        old="coordinator_epoch=self.coordinator_epoch,",
        new="coordinator_epoch=self.coordinator_epoch - 1,",
        test=f"{_TESTS}::test_coordinator_that_takes_over_finishes_what_was_decided",
    ),
    Mutation(
        name="send-markers-as-a-former-coordinator",
        invariants=(60,),
        path="kwire/transaction/coordinator.py",
        old="        return self._epochs.get(end.index) == end.coordinator_epoch",
        new="        return True",
        test=f"{_TESTS}::test_former_coordinator_stops_sending",
    ),
    Mutation(
        name="end-without-bumping-the-epoch",
        invariants=(57,),
        path=_TRANSITIONS,
        old="            producer_epoch=min(transaction.producer_epoch + 1, MAX_EPOCH),\n",
        new="            producer_epoch=transaction.producer_epoch,\n",
        test=f"{_TESTS}::test_delayed_end_does_not_touch_the_next_transaction",
    ),
    Mutation(
        name="repeat-an-end-in-the-other-direction",
        invariants=(58,),
        path=_TRANSITIONS,
        old="if transaction.state is TransactionState.EMPTY or transaction.is_commit != commit:",
        new="if transaction.state is TransactionState.EMPTY:",
        test=f"{_TESTS}::test_repeated_end_has_the_same_answer_and_the_other_direction_is_refused",
    ),
    Mutation(
        name="refuse-the-retry-of-an-end",
        invariants=(58,),
        path=_TRANSITIONS,
        old="    is_retry = is_rotated or transaction.producer_epoch == producer.epoch + 1\n",
        new="    is_retry = is_rotated\n",
        test=f"{_TESTS}::test_repeated_end_has_the_same_answer_and_the_other_direction_is_refused",
    ),
    Mutation(
        name="let-a-fenced-producer-abort-and-go-on",
        invariants=(54,),
        path=_TRANSITIONS,
        old="    is_retry &= transaction.last_producer_epoch != FENCED\n",
        new="",
        test=f"{_TESTS}::test_fenced_producer_cannot_go_on_before_the_newer_producer_has_its_epoch",
    ),
    Mutation(
        name="leave-decided-transactions-of-the-last-coordinator",
        invariants=(59,),
        path=_SHARD,
        old="        if self.unsent:\n            timers",
        new="        if False:\n            timers",
        test=f"{_TESTS}::test_coordinator_that_takes_over_finishes_what_was_decided",
    ),
    Mutation(
        name="let-transactions-take-any-time",
        invariants=(55,),
        path="kwire/transaction/shard.py",
        old="self.ongoing.get(transactional_id, inf) < moment.now",
        new="False",
        test=f"{_TESTS}::test_transaction_that_takes_too_long_is_aborted",
    ),
    Mutation(
        name="forget-time-outs-in-a-load",
        invariants=(55,),
        path=_SHARD,
        old="        if self.ongoing:\n            yield",
        new="        if self.ongoing and not is_first:\n            yield",
        test=f"{_TESTS}::test_restart_of_the_coordinator_does_not_stop_the_time_out",
    ),
    Mutation(
        name="expire-ids-with-an-open-transaction",
        invariants=(61,),
        path="kwire/transaction/model.py",
        old="return self.state.is_idle and self.update_ms",
        new="return self.update_ms",
        test=f"{_TESTS}::test_idle_transactional_id_expires_and_an_open_one_does_not",
    ),
    Mutation(
        name="let-the-older-producer-go-on",
        invariants=(54,),
        path=_TRANSITIONS,
        old="    if transaction.producer_epoch != producer.epoch:\n",
        new="    if transaction.producer_epoch < producer.epoch:\n",
        test=f"{_TESTS}::test_new_producer_aborts_the_open_transaction_of_the_older",
    ),
    Mutation(
        name="drop-markers-while-there-is-no-leader",
        invariants=(61,),
        path=_SENDER,
        old="                    leaderless.append((end, led))\n",
        new="",
        test=f"{_TESTS}::test_markers_are_sent_until_every_partition_has_them",
    ),
    Mutation(
        name="complete-the-next-transaction-of-the-producer",
        invariants=(59, 61),
        path=_SHARD,
        old="            and current.start_ms == transaction.start_ms\n"
        "            and current.update_ms == transaction.update_ms\n",
        new="",
        test=f"{_TESTS}::test_late_completion_does_not_complete_the_next_transaction",
    ),
    Mutation(
        name="go-on-as-the-producer-of-another-id",
        invariants=(54,),
        path=_TRANSITIONS,
        old="    return expected.id == transaction.producer_id or (\n",
        new="    return True or (\n",
        test=f"{_TESTS}::test_producer_of_another_transactional_id_is_fenced",
    ),
    Mutation(
        name="retry-of-a-start-bumps-the-epoch-again",
        invariants=(54,),
        path=_TRANSITIONS,
        old="    if expected.epoch == transaction.last_producer_epoch:\n"
        "        return transaction\n",
        new="    if expected.epoch == transaction.last_producer_epoch:\n"
        "        return attrs.evolve(transaction, producer_epoch=epoch + 1)\n",
        test="tests/transaction/test_conversations.py::test_answers_are_those_of_apache_kafka",
    ),
    Mutation(
        name="go-on-with-used-up-epochs",
        invariants=(57, 58),
        path=_TRANSITIONS,
        old="    if transaction.next_producer_id != NO_ID:\n"
        "        ended = attrs.evolve(ended, producer_id=transaction.next_producer_id, "
        "producer_epoch=0)\n",
        new="",
        test=_MACHINE,
    ),
    Mutation(
        name="later-partitions-replace-the-first",
        invariants=(59, 61),
        path=_TRANSITIONS,
        old="partitions=current.partitions | partitions,",
        new="partitions=partitions,",
        test=_MACHINE,
    ),
    Mutation(
        name="unanswered-marker-counts-as-written",
        invariants=(59, 61),
        path=_SENDER,
        old="dict.fromkeys(partitions, error.code)",
        new="dict.fromkeys(partitions, NONE)",
        test=_MACHINE,
    ),
    Mutation(
        name="late-marker-is-written-into-the-next-transaction",
        invariants=(57, 60),
        path="kwire/log/producers.py",
        old="(is_late and epoch == producer.epoch)",
        new="(False and epoch == producer.epoch)",
        test=_MACHINE,
    ),
)
