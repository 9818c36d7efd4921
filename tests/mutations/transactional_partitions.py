"""Mistakes in the partitions and groups of transactions."""

from tests.mutations.table import Mutation

_RECORDS = "tests/handlers/test_transactional_records.py"
_OFFSETS = "tests/handlers/test_txn_offset_commit.py"
_LISTS = "tests/handlers/test_long_aborted_lists.py"
_VERIFICATION = f"{_RECORDS}::TestVerification"

MUTATIONS = (
    Mutation(
        name="response-lists-any-number-of-aborted-transactions",
        invariants=(10,),
        path="kwire/log/aborted_transactions.py",
        old="            if listed_end < region_end:",
        new="            if False:",
        test=f"{_LISTS}::test_full_list_is_answered_at_once_and_the_rest_follows",
    ),
    Mutation(
        name="full-list-of-aborted-transactions-waits-for-bytes",
        invariants=(18,),
        path="kwire/replica/fetch_pass.py",
        old="        self.is_urgent |= self.listed_count >= LISTED_MAX\n",
        new="",
        test=f"{_LISTS}::test_full_list_is_answered_at_once_and_the_rest_follows",
    ),
    Mutation(
        name="late-batch-is-verified-as-one-of-the-next-transaction",
        invariants=(56,),
        path="kwire/handlers/shared/verifying.py",
        old="return batch.epoch > (producer.epoch if producer is not None else 0)",
        new="return True",
        test=f"{_OFFSETS}::test_zombie_whose_verification_raced_the_abort_is_refused",
    ),
    Mutation(
        name="marker-before-the-answer-refuses-the-next-transaction",
        invariants=(56,),
        path="kwire/handlers/shared/verifying.py",
        old="behind = [each for each in batches if adds_partitions",
        new="behind = [each for each in batches if False",
        test=f"{_VERIFICATION}"
        "::test_new_client_is_verified_again_if_the_marker_came_before_the_answer",
    ),
    Mutation(
        name="last-stable-offset-walks-all-open-transactions",
        invariants=(13,),
        path="kwire/log/producers.py",
        old="return next(iter(self.open_starts), None)\n",
        new="return (list(self.open_starts) or [None])[0]\n",
        test="tests/log/test_producer_replay.py",
    ),
    Mutation(
        name="marker-of-a-former-coordinator-is-written",
        invariants=(60,),
        path="kwire/log/producers.py",
        old="if coordinator_epoch < producer.coordinator_epoch:",
        new="if False:",
        test=f"{_RECORDS}::test_marker_of_an_older_coordinator_epoch_is_fenced",
    ),
    Mutation(
        name="late-marker-ends-the-next-transaction",
        invariants=(57,),
        path="kwire/log/producers.py",
        old="is_late = is_strict and producer.open_from >= 0",
        new="is_late = False and producer.open_from >= 0",
        test=f"{_RECORDS}::test_strict_marker_needs_an_epoch_above_that_of_the_open_transaction",
    ),
    Mutation(
        name="last-stable-offset-passes-an-open-transaction",
        invariants=(5, 13),
        path="kwire/log/producers.py",
        old="first_open = self.first_open()\n",
        new="first_open = None\n",
        test=f"{_RECORDS}::test_earlier_open_transaction_holds_records_of_a_later_one_back",
    ),
    Mutation(
        name="last-stable-offset-below-the-log-start",
        invariants=(13,),
        path="kwire/log/producers.py",
        old="return max(unstable, log_start)",
        new="return unstable",
        test=f"{_RECORDS}::test_last_stable_offset_is_not_below_the_start_of_deleted_records",
    ),
    Mutation(
        name="end-of-a-transaction-wakes-no-reader",
        invariants=(61,),
        path="kwire/replica/replicas.py",
        old="ends = header.attributes & CONTROL != 0",
        new="ends = False",
        test=f"{_RECORDS}"
        "::test_end_of_a_transaction_completes_a_read_committed_fetch_with_all_its_bytes",
    ),
    Mutation(
        name="replicated-marker-wakes-no-reader",
        invariants=(61,),
        path="kwire/replica/completion.py",
        old="ends_transaction = is_stable and stable_before < change.from_offset",
        new="ends_transaction = False",
        test=f"{_RECORDS}::test_read_committed_fetch_wakes_when_a_follower_has_the_marker",
    ),
    Mutation(
        name="guard-is-not-checked-at-the-append",
        invariants=(56,),
        path="kwire/replica/verification.py",
        old="if verification is None or verification.guard is not guard:",
        new="if guard is None:",
        test=f"{_VERIFICATION}::test_marker_during_the_verification_refuses_the_append",
    ),
    Mutation(
        name="verification-outlives-the-leader",
        invariants=(56,),
        path="kwire/replica/partition.py",
        old="if not leader.leads_on:",
        new="if False:",
        test=f"{_VERIFICATION}::test_verification_lasts_while_the_broker_leads",
    ),
    Mutation(
        name="lost-leadership-fences-the-producer-that-it-verifies",
        invariants=(56,),
        path="kwire/replica/verification.py",
        old="if guard is not None and guard.is_void:",
        new="if False:",
        test=f"{_VERIFICATION}::test_verification_lasts_while_the_broker_leads",
    ),
    Mutation(
        name="next-epoch-of-a-leader-ends-verifications",
        invariants=(56,),
        path="kwire/replica/partition.py",
        old="if not leader.leads_on:",
        new="if True:",
        test=f"{_VERIFICATION}::test_verification_lasts_while_the_broker_leads",
    ),
    Mutation(
        name="records-are-not-verified",
        invariants=(56,),
        path="kwire/handlers/shared/verifying.py",
        old="            if code != NONE:\n",
        new="            if False:\n",
        test=f"{_VERIFICATION}::test_partition_that_is_not_verified_fails_alone",
    ),
    Mutation(
        name="pending-offsets-are-committed-at-once",
        invariants=(6, 62),
        path="kwire/coordinator/shard.py",
        old="self.machine.apply_change(draft.change, producer.producer_id)",
        new="self.machine.apply_change(draft.change, -1)",
        test=f"{_OFFSETS}::test_offsets_take_effect_when_the_transaction_commits",
    ),
    Mutation(
        name="offset-is-read-before-the-marker-is-replicated",
        invariants=(62,),
        path="kwire/coordinator/shard.py",
        old="        self.written = to.append_marker(self.partition, marker)\n",
        new="        to.append_marker(self.partition, marker)\n",
        test=f"{_OFFSETS}::test_offset_is_fetched_only_when_the_marker_is_replicated",
    ),
    Mutation(
        name="coordinator-is-asked-about-zombies",
        invariants=(55,),
        path="kwire/replica/verification.py",
        old="    if producer is not None and epoch < producer.epoch:\n",
        new="    if False:\n",
        test=f"{_VERIFICATION}::test_zombie_is_refused_before_the_coordinator_is_asked",
    ),
    Mutation(
        name="offsets-of-an-old-generation-in-a-transaction",
        invariants=(62, 69),
        path="kwire/group/requests.py",
        old="    group.check_member(member_id, request.group_instance_id)\n",
        new="    return\n",
        test=f"{_OFFSETS}::test_commit_is_fenced_by_the_consumer_group",
    ),
    Mutation(
        name="transactions-behind-the-range-are-listed",
        invariants=(19,),
        path="kwire/log/aborted_transactions.py",
        old=" if entry.first_offset < end_offset)\n",
        new=")\n",
        test="tests/log/test_aborted_lists.py"
        "::test_aborted_transactions_of_each_range_are_those_that_touch_it",
    ),
    Mutation(
        name="search-for-aborted-transactions-ends-early",
        invariants=(64,),
        path="kwire/log/aborted_transactions.py",
        old="    return is_last\n",
        new="    return True\n",
        test="tests/log/test_aborted_lists.py"
        "::test_aborted_transactions_of_each_range_are_those_that_touch_it",
    ),
    Mutation(
        name="marker-needs-a-known-producer",
        invariants=(60,),
        path="kwire/log/producers.py",
        old="        if producer is None:\n            return\n        is_late",
        new="        if producer is None:\n            raise InvalidProducerEpoch\n        is_late",
        test=f"{_RECORDS}::test_marker_to_a_recreated_topic_is_written_and_holds_no_reader_back",
    ),
    Mutation(
        name="usual-transactional-batch-is-never-verified",
        invariants=(56,),
        path="kwire/handlers/produce.py",
        old="            if partition.leader is None or not is_open(\n"
        "                partition.log.producers.get(batch.producer_id), batch.epoch\n"
        "            ):\n",
        new="            if partition.leader is None:\n",
        test="tests/handlers/test_transactional_flat.py::"
        "test_only_the_first_batch_of_a_transaction_waits_for_its_verification",
    ),
    Mutation(
        name="usual-transactional-batch-needs-no-right",
        invariants=(105,),
        path="kwire/handlers/produce.py",
        old='\n        and context.is_allowed("Write", "TransactionalId", transactional_id)',
        new="",
        test="tests/handlers/test_transactional_flat.py::"
        "test_open_transaction_takes_no_batch_of_a_client_without_the_right",
    ),
)
