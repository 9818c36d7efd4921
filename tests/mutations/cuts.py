"""Mistakes in cuts of logs: what the checkpoints have meanwhile, and what a crash leaves."""

from tests.mutations.table import Mutation

MUTATIONS = (
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
        name="start-offset-of-an-emptied-log-is-not-stored",
        invariants=(39,),
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
)
