"""Mistakes in the logs: appends, flushes, recovery, retention, searches."""

from tests.mutations.table import Mutation

MUTATIONS = (
    Mutation(
        name="flush-timer-of-a-flushed-record",
        invariants=(78,),
        path="kwire/log/partition_log.py",
        old="        self._dirty = False\n        self.changed(self)",
        new="        self._mark_dirty()",
        test="tests/log/test_flush_timer.py",
    ),
    Mutation(
        name="follower-notes-producers-after-the-roll",
        invariants=(51, 64),
        path="kwire/log/partition_log.py",
        old="        for pos, header in run:\n            if header.producer_id",
        new="        for pos, header in run[-1:]:\n            if header.producer_id",
        test="tests/log/test_follower_append.py",
    ),
    Mutation(
        name="recovery-point-passes-unsynced-indexes",
        invariants=(64, 78),
        path="kwire/log/directory.py",
        old="log.stored_recovery_point",
        new="log.recovery_point",
        test="tests/log/test_power_loss.py",
    ),
    Mutation(
        name="clean-stop-does-not-sync-indexes",
        invariants=(78, 81),
        path="kwire/log/partition_log.py",
        old="                    self.unsynced.files.update(dict.fromkeys(written))",
        new="                    pass",
        test="tests/log/test_power_loss.py",
    ),
    Mutation(
        name="epochs-file-is-never-synced",
        invariants=(85,),
        path="kwire/log/partition_log.py",
        old="        self.unsynced.lazy.add(names.EPOCHS_FILE)",
        new="        pass",
        test="tests/log/test_power_loss.py",
    ),
    Mutation(
        name="stale-epochs-are-kept-by-a-recovery",
        invariants=(85,),
        path="kwire/log/recovery.py",
        old="    log.epochs.truncate_end(base_offset)",
        new="    pass",
        test="tests/log/test_power_loss.py::test_a_stale_epoch_file_is_not_trusted",
    ),
    Mutation(
        name="removed-segments-come-back-with-the-power",
        invariants=(39, 83),
        path="kwire/log/directory.py",
        old=" or log.removal_unsynced",
        new="",
        test="tests/log/test_power_loss.py::test_what_retention_removed_does_not_come_back",
    ),
    Mutation(
        name="an-emptied-index-counts-as-sane",
        invariants=(79,),
        path="kwire/log/recovery.py",
        old="        and not _are_emptied(segment, index, times)\n",
        new="",
        test="tests/log/test_recovery.py",
    ),
)
