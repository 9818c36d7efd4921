"""Mistakes that show in what clients see of a broker with faults, and in what strangers send it."""

from typing import Final

from tests.mutations.table import Mutation

CLIENTS: Final = "compat_tests/durability/test_history.py::test_clients_see_no_anomaly"

MUTATIONS = (
    Mutation(
        name="recovery-drops-last-batches",
        invariants=(1,),
        path="kwire/log/recovery.py",
        old="while position + HEADER_SIZE <= size:",
        new="while position + 600 <= size:",
        test=CLIENTS,
    ),
    Mutation(
        name="offset-given-again-after-clean-stop",
        invariants=(2,),
        path="kwire/log/recovery.py",
        old="log.end_offset = log.written_offset = log.recovery_point = end_offset",
        new="log.end_offset = log.written_offset = log.recovery_point = max(end_offset - 1, 0)",
        test=CLIENTS,
    ),
    Mutation(
        name="recovery-forgets-sequences",
        invariants=(3,),
        path="kwire/log/recovery.py",
        old="aborted = log.producers.replay(data, pos, header)",
        new="aborted = None",
        test=CLIENTS,
    ),
    Mutation(
        name="fetch-passes-over-small-batches",
        invariants=(7,),
        path="kwire/log/partition_log.py",
        old="            found = segment.locate(offset)\n            if",
        new="            found = segment.locate(offset + 1)\n            if",
        test=CLIENTS,
    ),
    Mutation(
        name="acknowledgement-names-another-offset",
        invariants=(8, 9),
        path="kwire/log/partition_log.py",
        old="return Appended(base_offset, next_offset - 1, timestamp, self.start_offset)",
        new="return Appended(base_offset & ~7, next_offset - 1, timestamp, self.start_offset)",
        test=CLIENTS,
    ),
    Mutation(
        name="later-commit-is-ignored",
        invariants=(11,),
        path="kwire/group/offsets.py",
        old="        self._put(spot, committed)",
        new="        self.get(*spot) or self._put(spot, committed)",
        test=CLIENTS,
    ),
    Mutation(
        name="commit-passes-one-record-more",
        invariants=(11,),
        path="kwire/group/requests.py",
        old="offset=spot.committed_offset,",
        new="offset=spot.committed_offset + 1,",
        test=CLIENTS,
    ),
    Mutation(
        name="last-record-is-never-readable",
        invariants=(12,),
        path="kwire/replica/partition.py",
        old="end = high_watermark if upto is Upto.HIGH_WATERMARK else stable",
        new="end = high_watermark if upto is Upto.HIGH_WATERMARK else stable - 1",
        test=CLIENTS,
    ),
)
