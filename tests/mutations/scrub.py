"""Mistakes in the search for damaged batches, in reads of them and in their repair."""

from tests.mutations.table import Mutation

CHECK = "kwire/log/scrub/segment_check.py"
CHECKS = "tests/log/scrub/test_segment_check.py"
SCRUBS = "tests/log/scrub/test_scrub.py"
READS = "tests/log/test_known_damage.py"
REPAIRS = "tests/replica/test_damage_repair.py"
PREFIXES = "tests/log/compaction/test_prefix_copy.py"

MUTATIONS = (
    Mutation(
        name="scrub-skips-the-checksum",
        invariants=(80,),
        path=CHECK,
        old="return None if checksum == header.crc else _WRONG",
        new="return None",
        test=CHECKS,
    ),
    Mutation(
        name="scrub-believes-a-base-offset-that-is-too-high",
        invariants=(80,),
        path=CHECK,
        old="if header.base_offset > self._end_offset:",
        new="if False:",
        test=CHECKS,
    ),
    Mutation(
        name="scrub-believes-each-leader-epoch",
        invariants=(80,),
        path=CHECK,
        old="            or self._epoch_problem(position, header)\n",
        new="",
        test=CHECKS,
    ),
    Mutation(
        name="scrub-condemns-batches-for-a-wrong-list-of-epochs",
        invariants=(7,),
        path=CHECK,
        old="if self._has_known_epoch(header) or not self._is_epoch_known:",
        new="if self._has_known_epoch(header):",
        test=CHECKS,
    ),
    Mutation(
        name="known-damage-is-returned",
        invariants=(80,),
        path="kwire/log/log_segments.py",
        old="                    if segment.damage:\n",
        new="                    if False:\n",
        test=READS,
    ),
    Mutation(
        name="damaged-length-hides-the-rest-of-its-segment",
        invariants=(7, 80),
        path="kwire/log/log_segments.py",
        old="                _check_rest(segment, offset, wait=wait)\n",
        new="",
        test=READS,
    ),
    Mutation(
        name="truncation-leaves-the-check-of-its-log-running",
        invariants=(80,),
        path="kwire/log/compaction/states.py",
        old="        if not by_retention:\n            self.abort_scrub(log)\n",
        new="",
        test=SCRUBS,
    ),
    Mutation(
        name="restored-batch-is-not-synced",
        invariants=(78, 80),
        path="kwire/log/directories/log_scrub.py",
        old="    file.sync()\n",
        new="",
        test=SCRUBS,
    ),
    Mutation(
        name="repair-copies-a-batch-of-another-epoch",
        invariants=(23, 25),
        path="kwire/replica/replacement.py",
        old="if header.leader_epoch != (NO_EPOCH if epoch is None else epoch):",
        new="if False:",
        test=REPAIRS,
    ),
    Mutation(
        name="repair-copies-damaged-bytes",
        invariants=(80,),
        path="kwire/replica/replacement.py",
        old="if not crc_ok(records, position, header):",
        new="if False:",
        test=REPAIRS,
    ),
    Mutation(
        name="repair-copies-what-another-replica-has-compacted",
        invariants=(87,),
        path="kwire/replica/replacement.py",
        old="if stored is not None and not _is_same(records, position, header, stored):",
        new="if False:",
        test=REPAIRS,
    ),
    Mutation(
        name="repair-asks-replicas-that-are-not-in-sync",
        invariants=(22, 80),
        path="kwire/replica/damage_repair.py",
        old="set(state.isr) - {self.node}",
        new="set(state.replicas) - {self.node}",
        test=REPAIRS,
    ),
    Mutation(
        name="copied-prefix-counts-as-cleaned",
        invariants=(87,),
        path="kwire/log/directories/prefix_copy.py",
        old="        state.clean_end = self._sources[0]\n",
        new="",
        test=PREFIXES,
    ),
    Mutation(
        name="copied-prefix-outlives-its-tombstones",
        invariants=(87,),
        path="kwire/log/directories/prefix_copy.py",
        old="elapsed_s * 1000 < log.config.delete_retention_ms",
        new="elapsed_s >= 0",
        test=PREFIXES,
    ),
    Mutation(
        name="copied-prefix-replaces-segments-of-a-cut-log",
        invariants=(23, 87),
        path="kwire/log/directories/prefix_copy.py",
        old="log.clean_state.removal_count == self._removal_count",
        new="self._removal_count >= 0",
        test=PREFIXES,
    ),
    Mutation(
        name="copied-prefix-ends-before-the-active-segment",
        invariants=(83, 87),
        path="kwire/log/directories/prefix_copy.py",
        old="            await self._fill()\n",
        new="            pass\n",
        test=PREFIXES,
    ),
    Mutation(
        name="copied-prefix-is-swapped-in-from-its-start",
        invariants=(83, 87),
        path="kwire/log/directories/segment_swap.py",
        old="reversed(self.segments):\n                for file in files:",
        new="self.segments:\n                for file in files:",
        test=PREFIXES,
    ),
    Mutation(
        name="copied-prefix-has-batches-of-another-epoch",
        invariants=(23, 25),
        path="kwire/replica/replacement.py",
        old="            _check(records, position, header, epochs)\n            batches.append",
        new="            batches.append",
        test=REPAIRS,
    ),
)
