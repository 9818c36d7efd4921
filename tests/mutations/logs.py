"""Mistakes in the logs: appends, flushes, recovery, retention, searches."""

from tests.mutations.table import Mutation

MUTATIONS = (
    Mutation(
        name="flush-timer-of-a-flushed-record",
        invariants=(78,),
        path="kwire/log/partition_log.py",
        old="            self._dirty = False\n            self.changed(self)",
        new="            self._mark_dirty()",
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
)
