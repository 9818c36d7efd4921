"""Mistakes in partitions: what is appended, synced, acknowledged, read and waited for."""

from tests.mutations.table import Mutation

SYNCED = "tests/handlers/test_synced_first.py"

MUTATIONS = (
    Mutation(
        name="high-watermark-passes-what-is-not-synced",
        invariants=(13,),
        path="kwire/replica/partition.py",
        old="if log.must_flush else log.written_offset\n        moved",
        new="if False else log.written_offset\n        moved",
        test=f"{SYNCED}::test_nobody_reads_what_is_not_synced",
    ),
    Mutation(
        name="new-leader-counts-what-is-not-synced",
        invariants=(13,),
        path="kwire/replica/partition.py",
        old="leader.log_end = self._stored_end(self.log.high_watermark)",
        new="leader.log_end = self.log.written_offset",
        test=f"{SYNCED}::test_a_leader_tells_nothing_that_it_has_yet_to_sync",
    ),
    Mutation(
        name="epoch-of-the-acknowledgement-taken-late",
        invariants=(1, 9),
        path="kwire/replica/service.py",
        old="if leader is None or leader.leader_epoch != epoch:",
        new="if leader is None:",
        test="tests/handlers/test_faults.py::test_a_batch_that_was_truncated_is_not_acknowledged",
    ),
    Mutation(
        name="coordinators-are-not-synced",
        invariants=(11,),
        path="kwire/replica/service.py",
        old="        if not produced.is_stored:\n",
        new="        if not produced.is_stored and from_client:\n",
        test=f"{SYNCED}::test_a_commit_is_answered_after_its_fsync",
    ),
    Mutation(
        name="failed-append-fails-the-request",
        invariants=(99,),
        path="kwire/log/partition_log.py",
        old="self.uses_reserve)\n        except OSError",
        new="self.uses_reserve)\n        except ZeroDivisionError",
        test=f"{SYNCED}::test_a_partition_that_cannot_be_appended_to_fails_alone",
    ),
)
