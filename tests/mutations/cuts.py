"""Mistakes in cuts of logs: what the checkpoints have meanwhile, and what a crash leaves."""

from tests.mutations.table import Mutation

MUTATIONS = (
    Mutation(
        name="cut-rebuilds-indexes-on-the-event-loop",
        invariants=(91,),
        path="kwire/log/directories/log_truncation.py",
        old="                await self._prepare_cut(log, step_end)\n",
        new="",
        test="tests/log/test_rebuilt_indexes.py::test_cut_has_a_thread_rebuild_the_index",
    ),
    Mutation(
        name="cut-keeps-surplus-aborted-transactions-in-the-file",
        invariants=(64,),
        path="kwire/log/segments/aborted_index.py",
        old="            self._packed, self._is_changed = entries.first(count), True",
        new="            self._packed = entries.first(count)",
        test="tests/log/test_aborted_lists.py"
        "::test_cut_into_a_closed_segment_keeps_the_transactions_before_it",
    ),
    Mutation(
        name="follower-reports-a-log-start-from-before-a-cut",
        invariants=(39,),
        path="kwire/replica/fetcher/log_reconciliation.py",
        old="""is_current)
        finally:
            followed.kept_start = -1
        if followed.is_current and log.end""",
        new="""is_current)
        finally:
            pass
        if followed.is_current and log.end""",
        test="tests/replica/test_leader_fetcher.py::"
        "test_log_start_that_was_stored_before_a_cut_is_stored_again",
    ),
    Mutation(
        name="follower-appends-behind-an-unsynced-cut",
        invariants=(23, 78),
        path="kwire/replica/fetcher/followed_partition.py",
        old="return log.must_flush or log.flush_state.cut_unsynced",
        new="return log.must_flush",
        test="tests/replica/test_synced_cuts.py",
    ),
    Mutation(
        name="cut-removes-segments-before-it-has-its-descriptor",
        invariants=(83, 90),
        path="kwire/log/partition_log.py",
        old="        cut = log.writer.plan_cut(new_last, offset)\n        _drop_from(log, end)\n",
        new="        _drop_from(log, end)\n        cut = log.writer.plan_cut(new_last, offset)\n",
        test="tests/log/test_descriptor_shortage.py",
    ),
    Mutation(
        name="log-that-begins-inside-a-batch-follows-an-unsynced-cut",
        invariants=(23, 78),
        path="kwire/replica/fetcher/log_reconciliation.py",
        old="        await self.sync(followed)\n",
        new="",
        test="tests/replica/test_synced_cuts.py",
    ),
    Mutation(
        name="future-replica-is-copied-behind-an-unsynced-cut",
        invariants=(23, 78),
        path="kwire/log/directories/log_move.py",
        old="if future.flush_state.cut_unsynced:",
        new="if False:",
        test="tests/log/test_move_faults.py",
    ),
    Mutation(
        name="metadata-log-continues-behind-an-unsynced-cut",
        invariants=(43, 78),
        path="kwire/raftmeta/storage/disk_storage.py",
        old="        self._log.flush_state.flush()\n\n    def clean",
        new="\n    def clean",
        test="tests/raftmeta/storage/test_raft_storage.py",
    ),
    Mutation(
        name="start-of-a-log-that-an-unsynced-cut-emptied-is-not-stored",
        invariants=(39,),
        path="kwire/log/directories/directory.py",
        old="log.flush_state.removal_unsynced or log.flush_state.cut_unsynced",
        new="log.flush_state.removal_unsynced",
        test="tests/log/test_truncation.py",
    ),
    Mutation(
        name="recovery-point-forgets-an-unsynced-cut",
        invariants=(78,),
        path="kwire/log/flush_state.py",
        old="min(point, max(self.recovery_point - 1, 0)) if self.cut_unsynced else point",
        new="point",
        test="tests/log/test_truncation.py",
    ),
    Mutation(
        name="deletion-during-a-cut-is-answered-before-it-is-stored",
        invariants=(39,),
        path="kwire/log/directories/directory_service.py",
        old="if _was_cut_since(log, count)]",
        new="if False]",
        test="tests/log/test_truncation.py",
    ),
    Mutation(
        name="cut-that-is-given-up-leaves-a-lower-start-offset",
        invariants=(39,),
        path="kwire/log/directories/log_truncation.py",
        old="if is_stored and not may_cut:",
        new="if False:",
        test="tests/log/test_truncation.py",
    ),
    Mutation(
        name="start-offset-below-the-segments-on-disk-is-not-stored",
        invariants=(39,),
        path="kwire/log/directories/directory.py",
        old="is_unnamed = log_start != log.segments[0].base_offset",
        new="is_unnamed = log_start > log.segments[0].base_offset",
        test="tests/log/test_local_start.py",
    ),
    Mutation(
        name="recovery-point-stored-for-a-cut-includes-it",
        invariants=(78,),
        path="kwire/log/flush_state.py",
        old="return self.cut_offset is not None or any(",
        new="return any(",
        test="tests/log/test_truncation.py",
    ),
    Mutation(
        name="cancelled-cut-leaves-a-lower-start-offset",
        invariants=(39,),
        path="kwire/log/directories/log_truncation.py",
        old="                self.checkpoints.mark(log)",
        new="                pass",
        test="tests/log/test_truncation.py",
    ),
    Mutation(
        name="log-without-checkpoints-and-indexes-is-cut-at-gaps-of-compaction",
        invariants=(84,),
        path="kwire/log/recovery.py",
        old="not point and (offsets.clean_end is not None or not offsets.high_watermark)",
        new="not point and offsets.clean_end is not None",
        test="tests/log/test_recovery.py",
    ),
    Mutation(
        name="entry-that-was-cut-is-found-again",
        invariants=(79,),
        path="kwire/log/segments/indexes.py",
        old="        self.load()\n        self.forget_page()\n        assert",
        new="        self.load()\n        assert",
        test="tests/log/test_index_page.py"
        "::test_lookup_after_a_truncation_finds_no_entry_that_was_cut",
    ),
)
