"""Mistakes in the order in which a log's records and indexes are synced."""

from tests.mutations.table import Mutation

ROLLS = "tests/log/test_roll_steps.py"

MUTATIONS = (
    Mutation(
        name="recovery-writes-unsynced-indexes",
        invariants=(83,),
        path="kwire/log/recovery.py",
        old="log.flush_state.on_segment_closed(segment)",
        new="log.flush_state.write_indexes(segment)",
        test=f"{ROLLS}::test_power_loss_after_a_recovery_leaves_the_front_of_the_log",
    ),
    Mutation(
        name="rolls-write-unsynced-indexes",
        invariants=(83,),
        path="kwire/log/flush_state.py",
        old="            closed[-1 - CLOSED_MAX].forget_positions()\n",
        new="            self.write_indexes(closed[0])\n            del closed[0]\n",
        test=f"{ROLLS}::test_power_loss_after_a_change_to_compaction_leaves_the_front_of_the_log",
    ),
    Mutation(
        name="first-part-of-a-flush-ends-the-cut",
        invariants=(83, 85),
        path="kwire/log/flush_state.py",
        old="        self.unsynced.has_cut = has_cut\n        return flush\n",
        new="        return flush\n",
        test=f"{ROLLS}::test_power_loss_between_parts_of_a_flush_leaves_the_front_of_the_log",
    ),
    Mutation(
        name="clean-stop-writes-indexes-before-it-syncs-the-records",
        invariants=(83,),
        path="kwire/log/directories/directory_service.py",
        old="                    await self.flusher.flush(log)\n                log.finish()",
        new="                    pass\n                log.finish()",
        test=f"{ROLLS}::test_power_loss_during_a_clean_stop_leaves_the_front_of_the_log",
    ),
    Mutation(
        name="rolled-segment-keeps-the-index-of-its-first-batches",
        invariants=(83,),
        path="kwire/log/partition_log.py",
        old="                closing.indexes.mark_growing()\n",
        new="",
        test=f"{ROLLS}::"
        "test_power_loss_after_appends_to_an_indexed_segment_leaves_the_front_of_the_log",
    ),
    Mutation(
        name="flush-writes-the-indexes-of-queued-batches",
        invariants=(83,),
        path="kwire/log/flush_state.py",
        old="[s.base_offset for s in closed if s.written < s.size]",
        new="[]",
        test=f"{ROLLS}::test_kill_with_queued_batches_leaves_the_front_of_the_log",
    ),
    Mutation(
        name="retention-deletes-queued-batches",
        invariants=(86,),
        path="kwire/log/directories/retention_plan.py",
        old="    if active.written < active.size:",
        new="    if False:",
        test="tests/log/test_retention_plan.py",
    ),
    Mutation(
        name="snapshot-changes-with-adopted-producers",
        invariants=(52,),
        path="kwire/log/producers.py",
        old="        self._generation = max(self._generation, other._generation)\n",
        new="",
        test="tests/log/test_producer_replay.py",
    ),
    Mutation(
        name="removal-forgets-producers-that-wait-for-a-flush",
        invariants=(51,),
        path="kwire/log/partition_log.py",
        old="self.snapshots.write_now(self.segments[count].base_offset)",
        new="pass",
        test="tests/log/test_producer_expiry.py::"
        "test_duplicates_of_removed_segments_are_still_known_after_a_kill",
    ),
    Mutation(
        name="recovery-forgets-a-lost-segment-before-its-cut",
        invariants=(81,),
        path="kwire/log/formats/file_plan.py",
        old="        remove=remove,\n        unused=unused,\n",
        new="        remove=remove + unused,\n        unused=[],\n",
        test=f"{ROLLS}::"
        "test_power_loss_after_the_recovery_of_a_lost_segment_leaves_the_front_of_the_log",
    ),
    Mutation(
        name="epochs-without-a-descriptor-stop-the-change-of-the-log",
        invariants=(85,),
        path="kwire/log/epochs_file.py",
        old="                elif classify(error) is DiskErrorKind.NO_DESCRIPTORS:",
        new="                elif False:",
        test="tests/log/test_descriptor_shortage.py",
    ),
    Mutation(
        name="flush-writes-older-epochs-over-newer-ones",
        invariants=(85,),
        path="kwire/log/epochs_file.py",
        old="        if self._flush_state.unwritten(names.EPOCHS_FILE) is not None:",
        new="        if False:",
        test="tests/log/test_descriptor_shortage.py",
    ),
)
